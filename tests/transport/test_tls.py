"""TLS: what each side is told of the other, who gets in, and what sockets of OpenSSL do."""

import logging
import shutil
import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from time import monotonic

import pytest

from shoal.apps import keys
from shoal.errors import AddressInvalid, HandshakeRefused, InvalidValue
from shoal.node.node import Node
from shoal.node.strangers import WORK_MAX_S
from shoal.protocol.machine import Sink
from shoal.testing.connections import CALLER, LISTENER, connected
from shoal.testing.exchanges import noise, nudge
from shoal.testing.transports import TRANSPORT_LAWS
from shoal.transport import Identity, plain_links, transport_for
from shoal.transport.credentials import AUTHORITY, CERTIFICATE, KEY, requires_tls
from shoal.transport.handshake import challenge
from shoal.transport.shortcut import without_shortcut
from shoal.transport.stream import INBOX_BYTES, StreamConnection
from shoal.transport.tcp import endpoint_of, tcp_address
from shoal.transport.tls import RECORD_BYTES, TlsSocket, TlsTransport
from shoal.transport.wire import encode
from tests.node.rigs import FRIEND, TOKEN, Peer, call, until
from tests.transport.rigs import authority, keys_of

LOOPBACK = "tls://127.0.0.1:0"


@pytest.fixture(autouse=True)
def over_tcp():
    with without_shortcut():
        yield


@pytest.fixture
def own(monkeypatch):
    """The certificate of this process."""
    folder = keys_of("node-0")
    monkeypatch.setenv("SHOAL_TLS", str(folder))
    return folder


@pytest.fixture
def listening(own):
    """A node that listens over TLS, and its address."""
    node = Node(Peer(), Identity("server-b", "server", token=TOKEN))
    yield node, node.listen(LOOPBACK)
    node.close()


def refused(node):
    """The reasons for which the node has refused callers."""
    return {
        name.removeprefix("HandshakeFailed (").removesuffix(")"): count
        for name, count in node.counters.items()
    }


def test_members_of_one_authority_talk(listening):
    node, address = listening
    friend = call(address, FRIEND, node)
    assert (friend.peer, friend.encrypted) == ("server-b", True)
    assert node._peers["worker-a"].encrypted
    friend.close()


def folder_like(tmp_path, certificate, key, trusted):
    """A folder for --tls of files that do not belong together."""
    folder = tmp_path / "odd"
    folder.mkdir()
    for source, name in ((trusted, AUTHORITY), (certificate, CERTIFICATE), (key, KEY)):
        shutil.copy2(source, folder / name)
    return folder


def expired(monkeypatch, name="late"):
    monkeypatch.setattr(keys, "EARLIER", timedelta(days=10))
    return keys.add_certificate(authority(), name, days=-1)


def speaks(address, folder=None, trusts=None):
    """Shake hands as any client of TLS, and read until the listener hangs up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority() / AUTHORITY)
    if folder is not None:
        context.load_cert_chain(*folder)
    with socket.create_connection(endpoint_of(address), 10) as sock:
        try:
            with context.wrap_socket(sock) as tls:
                while tls.recv(100):
                    pass
        except OSError as error:
            return str(error)
    return ""


def hears(node, *call):
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(*call)
        until(calling.done, node)
        return calling.result()


def test_certificates_that_are_not_of_the_authority_are_refused_by_name(listening, monkeypatch):
    node, address = listening
    other, own = authority("others"), keys_of("node-1", "others")
    late = expired(monkeypatch)
    for files, reason in (
        ((own / CERTIFICATE, own / KEY), "another authority"),
        ((other / AUTHORITY, other / keys.AUTHORITY_KEY), "self-signed"),
        ((late / CERTIFICATE, late / KEY), "expired"),
        (None, "no certificate"),
    ):
        assert "alert" in hears(node, speaks, address, files).lower()
        assert refused(node) == {reason: 1}
        node.counters.clear()
    assert not node._peers


def test_both_sides_of_two_authorities_name_them(listening):
    node, address = listening
    stranger = Identity("worker-x", "worker", token=TOKEN, tls=str(keys_of("node-1", "others")))
    error = call(address, stranger, node)
    assert isinstance(error, HandshakeRefused)
    assert "other side's certificate is refused" in error.message
    assert "the authority here is 'others'" in error.message
    until(lambda: refused(node), node)
    assert refused(node) == {"tlsv1 alert unknown ca": 1}


def test_a_caller_whose_certificate_is_refused_learns_which_it_is(listening, tmp_path):
    """It trusts the listener, and the listener trusts another authority than this caller's."""
    node, address = listening
    both = keys_of("node-2", "others")
    trusted = tmp_path / "both.pem"
    trusted.write_text((both / AUTHORITY).read_text() + (authority() / AUTHORITY).read_text())
    folder = folder_like(tmp_path, both / CERTIFICATE, both / KEY, trusted)
    error = call(address, Identity("worker-x", "worker", token=TOKEN, tls=str(folder)), node)
    assert isinstance(error, HandshakeRefused)
    for told in ("unknown ca", str(folder / CERTIFICATE), "'node-2'", "'others'", "until"):
        assert told in error.message
    assert refused(node) == {"another authority": 1}


def test_a_plain_caller_is_told_and_tells(listening):
    node, address = listening
    error = call(address.replace("tls://", "tcp://"), FRIEND, node)
    assert isinstance(error, HandshakeRefused)
    assert "this listener speaks tls://" in error.message
    until(lambda: refused(node), node)
    assert refused(node) == {"plain tcp": 1}


def test_a_caller_that_waits_for_its_first_step_is_not_taken_for_a_plain_one(listening):
    node, address = listening
    node._strangers._has_time(monotonic())
    node._strangers.worked(WORK_MAX_S + 0.3)  # for 1.2 s
    friend = call(address, FRIEND, node)
    assert friend.peer == "server-b"
    friend.close()


def test_a_caller_of_tls_at_a_plain_listener_is_told_and_tells(own):
    node = Node(Peer(), Identity("server-b", "server", token=TOKEN))
    error = call(node.listen("tcp://127.0.0.1:0").replace("tcp://", "tls://"), FRIEND, node)
    assert isinstance(error, HandshakeRefused)
    assert "a plain tcp:// listener is there" in error.message
    until(lambda: refused(node), node)
    assert refused(node) == {"tls": 1}
    node.close()


def test_callers_of_other_protocols_and_no_words_are_counted(listening):
    node, address = listening
    for words, reason in (
        (b"GET / HTTP/1.1\r\n\r\n", "no TLS"),
        (b"", "cut off"),
        (b"\x16\x03\x01\x02\x00", "cut off"),
        (b"\x16\x03\x01\x00\x05nonsense", "unexpected message"),
    ):
        with socket.create_connection(endpoint_of(address)) as caller:
            caller.sendall(words)
            caller.shutdown(socket.SHUT_WR)
            until(lambda: refused(node), node)
        assert refused(node) == {reason: 1}, words
        node.counters.clear()
    friend = call(address, FRIEND, node)
    friend.close()


def test_callers_that_hang_up_at_once_end_nothing(listening):
    node, address = listening
    for _ in range(20):
        caller = socket.create_connection(endpoint_of(address))
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.sendall(b"\x16\x03\x01\x02\x00\x01")
        caller.close()  # with a reset
    until(lambda: refused(node).get("cut off") == 20, node)
    call(address, FRIEND, node).close()


@pytest.mark.parametrize("hangs_up", [True, False])
def test_callers_that_wait_take_no_time_and_little_memory(listening, hangs_up):
    """The loop was turned by each event of theirs, and kept them all."""
    node, address = listening
    node._strangers._has_time(monotonic())
    node._strangers.worked(WORK_MAX_S + 5.0)
    callers = []
    for _ in range(40):
        caller = socket.create_connection(endpoint_of(address))
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.sendall(b"\x16\x03\x01\x02\x00\x01")
        node.poll(0)
        node.poll(0)
        callers.append(caller)
    until(lambda: len(node._strangers._later) == 40, node)
    for each in callers if hangs_up else ():
        each.close()
    turns = [node.poll(0.01) for _ in range(60)]
    assert len(turns) == 60
    assert len(node._strangers._later) == (0 if hangs_up else 40)
    assert refused(node) == ({"cut off": 40} if hangs_up else {})
    for each in callers:
        each.close()


def test_a_wrong_token_is_refused_inside(listening):
    node, address = listening
    error = call(address, Identity("worker-x", "worker", token="wrong" * 4), node)
    assert "wrong token" in error.message
    assert refused(node) == {"wrong token": 1}


def test_nobody_listens_or_calls_without_a_usable_certificate(monkeypatch):
    monkeypatch.delenv("SHOAL_TLS", raising=False)
    with pytest.raises(InvalidValue, match=r"--tls FOLDER.*shoal keys init"):
        TlsTransport().listen(LOOPBACK, LISTENER)
    with pytest.raises(HandshakeRefused, match="--tls FOLDER"):
        TlsTransport().connect("tls://127.0.0.1:9", CALLER, 1.0)


def test_a_listener_goes_on_with_its_certificate_and_takes_a_renewed_one(
    listening, own, caplog, monkeypatch
):
    node, address = listening
    monkeypatch.setattr("shoal.transport.tls.LOOK_S", 0.0)
    node._listener._look_at = 0.0
    friend = Identity("worker-a", "worker", token=TOKEN, tls=str(keys_of("node-9")))
    (own / KEY).rename(own / "away")
    call(address, friend, node).close()
    assert f"{own / KEY}: No such file" in caplog.text
    (own / "away").rename(own / KEY)
    first = node._listener._own
    keys.add_certificate(authority(), own.name)
    call(address, friend, node).close()
    assert node._listener._own is not first


# ---------------------------------------------------------------------------- plain links


def test_plain_links_between_hosts_are_named_once(caplog, monkeypatch):
    monkeypatch.setattr(plain_links, "_named", set())
    for port in (4000, 4001, 4000):
        plain_links.check_link(f"tcp://10.0.0.7:{port}", "10.0.0.7")
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in warnings] == [
        "what goes to tcp://10.0.0.7:4000 is not encrypted: --tls encrypts it"
    ]


@pytest.mark.parametrize("value", ["1", "true", "on", "anything"])
def test_plain_links_between_hosts_are_refused_where_tls_is_required(monkeypatch, value):
    monkeypatch.setenv("SHOAL_REQUIRE_TLS", value)
    with pytest.raises(HandshakeRefused, match=r"10.0.0.7:4000 is not encrypted.*tls://HOST"):
        plain_links.check_link("tcp://10.0.0.7:4000", "10.0.0.7")
    with pytest.raises(AddressInvalid, match="listen at tls://"):
        transport_for("tcp://0.0.0.0:0").listen("tcp://0.0.0.0:0", FRIEND)
    with connected(lambda: (transport_for("tcp://x:1"), "tcp://127.0.0.1:0")):
        pass


@pytest.mark.parametrize("value", ["", "0", "false", "No", "off"])
def test_what_means_no_requires_nothing(monkeypatch, value):
    monkeypatch.setenv("SHOAL_REQUIRE_TLS", value)
    assert not requires_tls()


def test_a_caller_says_nothing_to_a_host_that_it_refuses(monkeypatch):
    monkeypatch.setenv("SHOAL_REQUIRE_TLS", "1")
    monkeypatch.setattr("shoal.transport.tcp.stays_here", lambda host: False)
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
        address = tcp_address(*other.getsockname())
        calling = pool.submit(transport_for(address).connect, address, FRIEND, 5.0)
        conversation, _ = other.accept()
        with conversation:
            conversation.sendall(encode(challenge(LISTENER)))
            assert conversation.recv(1000) == b""
        with pytest.raises(HandshakeRefused, match="--require-tls refuses"):
            calling.result()


# ---------------------------------------------------------------------------- OpenSSL's traps


def keeps(law):
    """Whether TLS keeps a law."""
    try:
        law(lambda: (TlsTransport(), LOOPBACK))
    except (AssertionError, OSError):
        return False
    return True


def the_last_record_is_read_in_parts(make):
    """An inbox takes the first four records; of the last a part goes up to a cache line."""
    with connected(make) as pair:
        into = bytearray(INBOX_BYTES + RECORD_BYTES - 600)
        edge = INBOX_BYTES - 600
        views = [memoryview(into)[:edge], memoryview(into)[edge:]]
        pair.callee.sinks = lambda nbytes: Sink(views)
        data = memoryview(noise(len(into)))
        pair.caller.send(nudge(1), data)
        pair.pump(lambda: bool(pair.callee.delivered))
        assert into == data


def little_is_all(self, view, nbytes=0, flags=0):
    """Return less than was asked for, as an empty socket does, while OpenSSL has more."""
    try:
        return self.read(min(view.nbytes, 4096), view)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        raise BlockingIOError from None


def other_length(self, buffers, *_):
    """Try a write again with as many bytes as there are by now."""
    joined = b"".join(buffers)[: self._tried % 7 * 10_000 + 20_000]
    self._tried += 1
    try:
        return self.write(joined)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        raise BlockingIOError from None


def turn_ends(self, *how, receive=StreamConnection.receive):
    """End a turn without a look at what OpenSSL holds."""
    self.encrypted = False
    return receive(self, *how)


@pytest.mark.parametrize(
    ("where", "name", "bug", "law"),
    [
        (TlsSocket, "recv_into", little_is_all, the_last_record_is_read_in_parts),
        (TlsSocket, "sendmsg", other_length, "anything_arrives_both_ways_at_once"),
        (StreamConnection, "receive", turn_ends, the_last_record_is_read_in_parts),
    ],
)
def test_planted_bugs_break_a_law(own, monkeypatch, where, name, bug, law):
    law = {each.__name__: each for each in TRANSPORT_LAWS}.get(law, law)
    monkeypatch.setattr("shoal.testing.connections.TIMEOUT_S", 3.0)
    monkeypatch.setattr("shoal.transport.stream.TURN_BYTES", 1)
    monkeypatch.setattr(TlsSocket, "_tried", 0, raising=False)
    assert keeps(law)
    monkeypatch.setattr(where, name, bug)
    assert not keeps(law)
