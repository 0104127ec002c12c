"""Who is there: each side proves the token, nothing shows it, and strangers get nowhere."""

import pickle

import msgspec
import pytest
from rich.pretty import pretty_repr

from shoal.errors import BadMessage, HandshakeFailed, InvalidValue, WireError
from shoal.protocol.messages.base import PROTOCOL_VERSION, SCHEDULER
from shoal.protocol.messages.handshake import Denied, Hello, Welcome
from shoal.protocol.messages.requests import Nudge
from shoal.testing.connections import CALLER, LISTENER
from shoal.testing.messages import EXAMPLES
from shoal.transport.base import Identity
from shoal.transport.handshake import challenge, conclude, hello, judge
from shoal.transport.stream import HANDSHAKE_BYTES_MAX
from shoal.transport.wire import HEADER_MAX, decode_greeting, encode
from tests.transport.rigs import Raw, prefix

SECRET = "correct horse battery staple"
SERVER = Identity("server-a", "server", "job", SECRET)
WORKER = Identity("worker-b", "worker", "job", SECRET)


def change(message, **fields):
    return msgspec.structs.replace(message, **fields)


def talk(caller, listener):
    asked = challenge(listener)
    said = hello(caller, asked)
    verdict = judge(listener, asked, said)
    return asked, said, verdict


@pytest.mark.parametrize("token", ["", SECRET, "é漢" * 8])
def test_both_sides_learn_each_others_name(token):
    server, worker = change(SERVER, token=token), change(WORKER, token=token)
    asked, said, verdict = talk(worker, server)
    assert isinstance(verdict, Welcome)
    assert said.node == "worker-b"
    assert conclude(worker, asked, said, verdict).node == "server-a"


def test_a_job_is_compared_if_both_sides_name_one():
    for mine, theirs, good in [
        ("a", "a", True),
        ("a", "", True),
        ("", "a", True),
        ("a", "b", False),
    ]:
        _, _, verdict = talk(change(WORKER, job=mine), change(SERVER, job=theirs))
        assert isinstance(verdict, Welcome) == good
    assert "'b'" in verdict.reason
    assert "'a'" in verdict.reason


@pytest.mark.parametrize("guess", ["one that is wrong", SECRET[:-1], SECRET + "x", SECRET.upper()])
def test_a_wrong_token_is_denied(guess):
    asked, said, verdict = talk(change(WORKER, token=guess), SERVER)
    assert verdict == Denied("wrong token")
    with pytest.raises(HandshakeFailed, match="refused the connection: wrong token"):
        conclude(WORKER, asked, said, verdict)


def test_a_missing_token_is_noticed_before_the_hello():
    with pytest.raises(HandshakeFailed, match="--token"):
        hello(change(WORKER, token=""), challenge(SERVER))


def test_a_hello_without_a_proof_is_denied():
    asked = challenge(SERVER)
    assert isinstance(judge(SERVER, asked, change(hello(WORKER, asked), proof=b"")), Denied)


def test_a_caller_leaves_a_listener_without_the_token():
    asked, said, verdict = talk(WORKER, change(SERVER, token=""))
    with pytest.raises(HandshakeFailed, match="the peer has another token"):
        conclude(WORKER, asked, said, verdict)


def test_a_proof_is_valid_for_one_conversation_and_direction():
    asked, said, verdict = talk(WORKER, SERVER)
    another = challenge(SERVER)
    assert isinstance(judge(SERVER, another, said), Denied), "a recorded hello was accepted"
    replayed = hello(WORKER, asked)
    with pytest.raises(HandshakeFailed):
        conclude(WORKER, asked, replayed, verdict)  # a recorded welcome
    with pytest.raises(HandshakeFailed):
        conclude(WORKER, asked, said, Welcome("server-a", said.proof))  # our own words
    assert len({challenge(SERVER).nonce for _ in range(100)}) == 100
    assert len({hello(WORKER, asked).nonce for _ in range(100)}) == 100


def test_another_protocol_version_is_refused():
    asked = challenge(SERVER)
    ours = PROTOCOL_VERSION
    text = f"the peer speaks protocol version 99, and this worker {ours}: .* for this worker, or"
    with pytest.raises(HandshakeFailed, match=text):
        hello(WORKER, change(asked, version=99))
    verdict = judge(SERVER, asked, change(hello(WORKER, asked), version=1))
    assert isinstance(verdict, Denied)
    assert f"this worker speaks protocol version 1, and the peer {ours}" in verdict.reason
    assert "a newer release of shoal for this worker" in verdict.reason


@pytest.mark.parametrize(
    "changed", [{"node": "worker-c"}, {"role": "server"}, {"job": ""}, {"nonce": bytes(16)}]
)
def test_a_proof_covers_all_that_a_caller_says(changed):
    asked = challenge(SERVER)
    assert judge(SERVER, asked, change(hello(WORKER, asked), **changed)) == Denied("wrong token")


def test_a_listeners_proof_covers_its_name():
    asked, said, verdict = talk(WORKER, SERVER)
    with pytest.raises(HandshakeFailed, match="the peer has another token"):
        conclude(WORKER, asked, said, change(verdict, node="server-b"))


@pytest.mark.parametrize(
    "changed",
    [
        {"node": "a\nb"}, {"node": "a\x1b[2J"}, {"node": "n" * 161}, {"node": "a b"},
        {"job": "a\n"}, {"role": "worker\n"}, {"nonce": bytes(15)}, {"proof": bytes(33)},
    ],
)  # fmt: skip
def test_what_a_caller_says_is_printable_and_short(changed):
    """It is shown in logs."""
    said = change(hello(WORKER, challenge(SERVER)), **changed)
    with pytest.raises(BadMessage) as caught:
        decode_greeting(msgspec.msgpack.encode(said), "caller")
    assert str(caught.value).isprintable()


def test_a_token_that_can_be_guessed_is_refused():
    with pytest.raises(InvalidValue, match="at least 16 characters") as caught:
        Identity("server-a", "server", "", "hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("who", [{"node": ""}, {"node": SCHEDULER}, {"role": "scheduler"}])
def test_a_caller_cannot_pose_as_the_scheduler(who):
    _, _, verdict = talk(change(WORKER, **who), SERVER)
    assert isinstance(verdict, Denied)


def test_other_messages_are_refused_in_a_handshake():
    asked, said, _ = talk(WORKER, SERVER)
    with pytest.raises(HandshakeFailed, match="expected a challenge, not Nudge"):
        hello(WORKER, Nudge("x"))
    assert judge(SERVER, asked, Nudge("x")) == Denied("expected a hello, not Nudge")
    with pytest.raises(HandshakeFailed, match="expected a welcome, not Nudge"):
        conclude(WORKER, asked, said, Nudge("x"))


def test_the_token_is_never_shown_and_never_travels():
    shown = [repr(SERVER), str(SERVER), f"{SERVER}", pretty_repr(SERVER), repr([SERVER])]
    assert not any(SECRET in text for text in shown)
    assert "server-a" in repr(SERVER)
    for message in talk(WORKER, SERVER):
        assert SECRET.encode() not in msgspec.msgpack.encode(message)
    assert pickle.loads(pickle.dumps(SERVER)) == SERVER  # it goes to processes that we start


# ---------------------------------------------------------------------------- strangers


@pytest.fixture
def stranger():
    with Raw(peer="", asked=challenge(LISTENER)) as raw:
        yield raw


def test_a_hello_names_the_peer_and_delivers_no_message(stranger):
    asked = stranger.read_message()
    stranger.sock.sendall(encode(hello(CALLER, asked)))
    stranger.end.receive()
    assert stranger.connection.peer == CALLER.node
    assert stranger.read_message().node == LISTENER.node
    stranger.feed(encode(Nudge("now")))
    assert stranger.end.messages == [Nudge("now")]
    assert stranger.end.senders == {CALLER.node}


def test_a_hello_may_come_a_byte_at_a_time(stranger):
    for byte in encode(hello(CALLER, stranger.read_message())):
        assert stranger.connection.peer == ""
        stranger.feed(bytes([byte]))
    assert stranger.connection.peer == CALLER.node


@pytest.mark.parametrize("message", [m for m in EXAMPLES if not isinstance(m, Hello)], ids=repr)
def test_no_message_is_delivered_before_a_hello(stranger, message):
    stranger.read_message()
    with pytest.raises(BadMessage):
        stranger.feed(encode(message))
    assert not stranger.end.delivered
    assert stranger.connection.peer == ""


@pytest.mark.parametrize(
    "data",
    [
        prefix(header=HANDSHAKE_BYTES_MAX + 1),
        prefix(header=10, payload=HANDSHAKE_BYTES_MAX),
        prefix(header=HEADER_MAX),
        prefix(header=3) + b"abc",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_large_frame_before_the_hello_is_refused(stranger, data):
    stranger.read_message()
    with pytest.raises((HandshakeFailed, WireError)):
        stranger.feed(data)
    assert len(stranger.connection._inbox) <= HANDSHAKE_BYTES_MAX
    assert not stranger.end.malformed


@pytest.mark.parametrize("more", [encode(Nudge("too early")), b"x"])
def test_a_message_before_the_welcome_is_refused(stranger, more):
    answer = encode(hello(CALLER, stranger.read_message()))
    with pytest.raises(HandshakeFailed, match="before it was welcome"):
        stranger.feed(answer + more)
    assert not stranger.end.delivered


def test_a_hello_with_a_payload_is_refused(stranger):
    answer = hello(CALLER, stranger.read_message())
    with pytest.raises(HandshakeFailed):
        stranger.feed(encode(answer, 3) + b"abc")


def test_a_wrong_token_fails_on_the_listeners_side_too():
    with Raw(SERVER, peer="", asked=challenge(SERVER)) as stranger:
        wrong = change(WORKER, token="a guess that is wrong")
        stranger.sock.sendall(encode(hello(wrong, stranger.read_message())))
        with pytest.raises(HandshakeFailed, match="wrong token"):
            stranger.end.receive()
        assert stranger.connection.denied
        stranger.connection.deny()
        stranger.connection.close()
        assert stranger.read_message() == Denied("wrong token")
