"""Frames over a stream that cuts them anywhere, and peers that are not ours."""

import select
import socket
import struct
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadLength, BadMagic, BadVersion, HandshakeFailed, WireError
from shoal.protocol.machine import CopyOnWriteGuard, Sink
from shoal.protocol.messages import (
    PROTOCOL_VERSION,
    Challenge,
    Denied,
    Heartbeat,
    Hello,
    Nudge,
)
from shoal.testing.connections import CALLER, LISTENER, End
from shoal.testing.messages import EXAMPLES
from shoal.transport.handshake import challenge, hello
from shoal.transport.stream import HANDSHAKE_BYTES_MAX, INBOX_BYTES, TURN_BYTES, StreamConnection
from shoal.transport.wire import HEADER_MAX, MAGIC, PREFIX, decode, encode, read_prefix


class Raw:
    """A connection, and the bare other end of its socket."""

    def __init__(self, **options):
        self.sock, ours = socket.socketpair()
        self.connection = StreamConnection(ours, LISTENER, **{"peer": CALLER.node, **options})
        self.end = End(self.connection)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.connection.close()
        self.sock.close()

    def feed(self, data):
        """Hand over some bytes, and let the connection take them in."""
        view = memoryview(data)
        self.sock.setblocking(False)
        while view:
            view = view[self.sock.send(view) :]
            self.serve()

    def serve(self):
        """What a level-triggered poll asks for, and no more."""
        while not self.end.ended and select.select([self.connection], [], [], 0)[0]:
            self.end.receive()

    def read(self, nbytes):
        self.sock.setblocking(True)
        self.sock.settimeout(5)
        data = b""
        while len(data) < nbytes:
            more = self.sock.recv(nbytes - len(data))
            if not more:
                break
            data += more
        return data

    def read_message(self):
        _, header_bytes, _, payload_bytes = read_prefix(self.read(PREFIX.size))
        assert payload_bytes == 0
        return decode(self.read(header_bytes))

    def all_delivered(self):
        return [
            (message, b"" if sink is None else b"".join(sink.views))
            for message, sink in self.end.delivered
        ]


@pytest.fixture
def raw():
    with Raw() as raw:
        yield raw


def two_views(nbytes):
    memory = memoryview(bytearray(nbytes))
    return Sink([memory[: nbytes // 3], memory[nbytes // 3 :]])


FRAMES = [(Nudge("one"), b""), (Heartbeat(1, 2, (3, 4)), b"payload"), (Nudge("two"), b"z" * 50)]
PIECES = [encode(message, len(payload)) + payload for message, payload in FRAMES]
WIRE = b"".join(PIECES)
EDGES = list(accumulate(len(piece) for piece in PIECES))


# ---------------------------------------------------------------------------- cuts


@pytest.mark.parametrize("cut", range(len(WIRE) + 1))
def test_frames_may_be_cut_anywhere(raw, cut):
    raw.end.sinks = two_views
    raw.feed(WIRE[:cut])
    raw.feed(WIRE[cut:])
    assert raw.all_delivered() == FRAMES


@pytest.mark.parametrize("cut", range(len(WIRE)))
def test_the_stream_may_end_anywhere(raw, cut):
    """Then whole messages were delivered, and nothing else."""
    sinks = []

    def sink(nbytes):
        sinks.append(two_views(nbytes))
        return sinks[-1]

    raw.end.sinks = sink
    raw.feed(WIRE[:cut])
    raw.sock.close()
    raw.serve()
    assert raw.end.ended
    assert raw.all_delivered() == FRAMES[: sum(edge <= cut for edge in EDGES)]
    raw.connection.close()
    filled = [sink for _, sink in raw.end.delivered]
    assert all(sink.revoked != (sink in filled) for sink in sinks)


def test_frames_may_come_a_byte_at_a_time(raw):
    raw.end.sinks = two_views
    for i in range(len(WIRE)):
        raw.feed(WIRE[i : i + 1])
    assert raw.all_delivered() == FRAMES


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_frames_in_random_pieces_are_delivered(data):
    """Headers and payloads around the sizes at which the inbox moves, grows and is passed by."""
    sizes = st.sampled_from(
        [0, 1, 19, 20, 21, 4095, 4096, 4097, 65515, 65516, 65536, 65537, 200000]
    )
    frames = [
        (Nudge("x" * data.draw(sizes)), bytes([i + 1]) * data.draw(sizes))
        for i in range(data.draw(st.integers(1, 6)))
    ]
    wire = b"".join(encode(message, len(payload)) + payload for message, payload in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    with Raw() as raw:
        raw.end.sinks = two_views
        for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
            raw.feed(wire[start:stop])
        assert raw.all_delivered() == frames


def test_many_frames_in_one_read_leave_nothing_behind(raw):
    """A level-triggered poll does not see what is in the inbox: one `receive` takes it all."""
    frame = encode(Nudge("x"))
    count = (INBOX_BYTES - 10) // len(frame)
    raw.sock.sendall(frame * count)
    raw.end.receive()
    assert len(raw.end.delivered) == count


def test_a_payload_of_many_views_takes_few_system_calls(raw, monkeypatch):
    """They come by way of the inbox, not by a system call each."""
    calls = []
    real = raw.connection._sock

    class Counting:
        def recv_into(self, view):
            calls.append(view.nbytes)
            return real.recv_into(view)

        def __getattr__(self, name):
            return getattr(real, name)

    raw.connection._sock = Counting()
    memory = bytearray(100_000)
    raw.end.sinks = lambda nbytes: Sink(
        [memoryview(memory)[i : i + 100] for i in range(0, nbytes, 100)]
    )
    data = bytes(range(250)) * 400
    raw.feed(encode(Nudge("x"), len(data)) + data)
    assert memory == data
    assert len(calls) < 10


def test_a_large_payload_is_received_straight_into_its_sink(raw):
    targets = []
    real = raw.connection._sock

    class Watching:
        def recv_into(self, view):
            count = real.recv_into(view)
            targets.append(view.obj)
            return count

        def __getattr__(self, name):
            return getattr(real, name)

    memory = bytearray(1 << 20)
    raw.end.sinks = lambda nbytes: Sink([memoryview(memory)])
    raw.feed(encode(Nudge("x"), len(memory)))
    raw.connection._sock = Watching()
    raw.feed(bytes([7]) * len(memory))
    assert memory == bytes([7]) * len(memory)
    assert all(target is memory for target in targets)


# ---------------------------------------------------------------------------- the inbox


def test_the_receive_buffer_grows_for_a_large_header_and_shrinks_again(raw):
    large = Nudge("x" * (HEADER_MAX - 100))
    raw.feed(encode(large))
    assert raw.end.messages == [large]
    assert len(raw.connection._inbox) == INBOX_BYTES
    raw.feed(encode(large, 3) + b"abc" + encode(Nudge("after")))
    assert raw.end.messages == [large, large, Nudge("after")]
    assert len(raw.connection._inbox) == INBOX_BYTES


def test_messages_do_not_share_memory_with_the_receive_buffer(raw):
    raw.feed(encode(Challenge(1, b"nonce", True)))
    raw.feed(encode(Challenge(1, b"NONCE", True)))
    assert [message.nonce for message in raw.end.messages] == [b"nonce", b"NONCE"]


class Endless:
    """A socket that always has more."""

    def __init__(self, sock, data):
        self.sock, self.data, self.at, self.read = sock, data, 0, 0

    def recv_into(self, view):
        count = 0
        while count < view.nbytes:
            piece = self.data[self.at : self.at + view.nbytes - count]
            view[count : count + len(piece)] = piece
            count += len(piece)
            self.at = (self.at + len(piece)) % len(self.data)
        self.read += count
        assert self.read < 10 * TURN_BYTES, "the turn goes on for ever"
        return count

    def __getattr__(self, name):
        return getattr(self.sock, name)


@pytest.mark.parametrize("payload", [0, 100, 100_000])
def test_a_receive_turn_is_bounded(raw, payload):
    """A peer that never stops sending does not keep the others from their turn."""
    data = encode(Nudge("x"), payload) + bytes(payload)
    endless = raw.connection._sock = Endless(raw.connection._sock, data)
    raw.end.receive()
    assert not raw.end.ended
    assert TURN_BYTES <= endless.read <= TURN_BYTES + max(payload, INBOX_BYTES)
    assert abs(len(raw.end.delivered) - endless.read // len(data)) <= 1
    raw.connection._sock = endless.sock


# ---------------------------------------------------------------------------- bad bytes


def prefix(magic=MAGIC, version=PROTOCOL_VERSION, header=0, payload=0):
    return struct.pack("<4sBBHIQ", magic, version, 0, 0, header, payload)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (prefix(magic=b"SHOT"), BadMagic),
        (prefix(version=9), BadVersion),
        (prefix(header=HEADER_MAX + 1), BadLength),
        (prefix(payload=1 << 63), BadLength),
    ],
)
def test_a_bad_frame_is_a_typed_error_and_changes_nothing(raw, data, error):
    raw.feed(encode(Nudge("good")))
    with pytest.raises(error):
        raw.feed(data)
    assert raw.end.messages == [Nudge("good")]
    assert not raw.end.malformed


@pytest.mark.parametrize("payload", [0, 5, 200_000])
@pytest.mark.parametrize("cut", [False, True])
def test_a_malformed_message_is_reported_and_the_connection_goes_on(raw, payload, cut):
    body = b"\x92\xa5Nudge\x07"
    wire = prefix(header=len(body), payload=payload) + body + bytes(payload) + encode(Nudge("on"))
    for i in range(0, len(wire), 13 if cut else len(wire)):
        raw.feed(wire[i : i + 13] if cut else wire)
    assert len(raw.end.malformed) == 1
    assert isinstance(raw.end.malformed[0], WireError)
    assert raw.end.messages == [Nudge("on")]
    assert raw.end.announced == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(EXAMPLES), min_size=1, max_size=4), st.data())
def test_mutated_streams_raise_only_wire_errors(messages, data):
    wire = bytearray(b"".join(encode(message, 3) + b"abc" for message in messages))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    with Raw() as raw:
        raw.end.sinks = lambda nbytes: two_views(nbytes) if nbytes < 1 << 20 else None
        try:
            raw.feed(bytes(wire))
        except WireError:
            return
        assert len(raw.end.delivered) + len(raw.end.malformed) <= len(wire) // PREFIX.size


# ---------------------------------------------------------------------------- sending


def test_borrowed_buffers_are_sent_without_a_copy(raw):
    """What is sent is what they hold when they leave."""
    source = bytearray(8 << 20)
    raw.end.send(Nudge("x"), memoryview(source))
    assert raw.connection.backlog > 4 << 20
    source[-8:] = b"at flush"
    head = len(encode(Nudge("x"), len(source)))
    got = b""
    while len(got) < head + len(source):
        got += raw.read(min(100_000, head + len(source) - len(got)))
        raw.connection.flush()
    assert got[-8:] == b"at flush"


def test_guarded_rows_are_not_held_after_their_recall(raw):
    source, guard = bytearray(8 << 20), CopyOnWriteGuard()
    raw.end.send(Nudge("x"), memoryview(source), guard=guard)
    with pytest.raises(BufferError):
        source.extend(b"x")  # what has not left is borrowed
    guard.recall()
    source.extend(b"x")  # BufferError where a view of it is kept


def test_a_sent_message_holds_no_buffer(raw):
    source = bytearray(1000)
    raw.end.send(Nudge("x"), *[memoryview(source)] * 2000)
    assert raw.connection.backlog > 0
    while raw.connection.backlog:
        raw.sock.recv(1 << 20)
        raw.connection.flush()
    source.extend(b"x")  # BufferError where a view of it is kept


def test_no_message_follows_half_a_frame(raw):
    """A send that failed within a frame ends the connection: what follows would be misread."""
    real = raw.connection._sock

    class NoMemory:
        def sendmsg(self, buffers):
            raise OSError(105, "No buffer space available")

        send = sendmsg

        def __getattr__(self, name):
            return getattr(real, name)

    raw.connection._sock = NoMemory()
    raw.feed(encode(Nudge("came before")))
    raw.end.send(Nudge("lost"), memoryview(b"abc"))
    raw.connection._sock = real
    raw.end.send(Nudge("after"))
    raw.connection.flush()
    raw.serve()
    assert raw.end.ended
    assert raw.end.messages == [Nudge("came before")]
    assert raw.read(1000) == b""


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
    with pytest.raises((HandshakeFailed, WireError)):
        stranger.feed(encode(message))
    assert isinstance(stranger.read_message(), Denied)
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
    assert len(stranger.connection._inbox) == INBOX_BYTES
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
    me = type(LISTENER)("server-a", "server", "", "secret")
    sock, ours = socket.socketpair()
    with sock:
        connection = StreamConnection(ours, me, asked=challenge(me))
        _, header_bytes, _, _ = read_prefix(sock.recv(PREFIX.size))
        asked = decode(sock.recv(header_bytes))
        wrong = type(CALLER)("worker-b", "worker", "", "guess")
        sock.sendall(encode(hello(wrong, asked)))
        with pytest.raises(HandshakeFailed, match="wrong token"):
            End(connection).receive()
        connection.close()
        _, header_bytes, _, _ = read_prefix(sock.recv(PREFIX.size))
        assert decode(sock.recv(header_bytes)) == Denied("wrong token")


def test_a_sink_revoked_between_two_reads_takes_no_more_bytes(raw):
    """The rest of the payload goes to scratch, however the views were cut."""
    memory = bytearray(300_000)
    sink = Sink([memoryview(memory)[i : i + 30_000] for i in range(0, len(memory), 30_000)])
    raw.end.sinks = lambda nbytes: sink
    raw.feed(encode(Nudge("x"), len(memory)) + b"\1" * 100_000)
    assert memory[:100_000] == b"\1" * 100_000
    sink.revoke()
    raw.feed(b"\2" * 200_000 + encode(Nudge("y")))
    assert memory[100_000:] == bytes(200_000)
    assert raw.end.messages == [Nudge("x"), Nudge("y")]
