"""Frames over a stream that cuts them anywhere, and bytes that are no frames."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadLength, BadMagic, BadVersion, WireError
from shoal.protocol.machine import CopyOnWriteGuard, Sink
from shoal.protocol.messages.base import PROTOCOL_VERSION
from shoal.protocol.messages.handshake import Challenge
from shoal.protocol.messages.membership import Heartbeat
from shoal.protocol.messages.requests import Nudge
from shoal.testing.messages import EXAMPLES
from shoal.transport import stream
from shoal.transport.stream import INBOX_BYTES, TURN_BYTES, TURN_S
from shoal.transport.wire import HEADER_MAX, PREFIX, encode
from tests.transport.rigs import Raw, Watched, Wrapped, prefix, two_views


@pytest.fixture
def raw():
    with Raw() as raw:
        yield raw


FRAMES = [(Nudge("one"), b""), (Heartbeat(1, (3, 4)), b"payload"), (Nudge("two"), b"z" * 50)]
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


def test_a_payload_of_many_views_takes_few_system_calls(raw):
    """They come by way of the inbox, not by a system call each."""
    watched = raw.connection._sock = Watched(raw.connection._sock)
    memory = bytearray(100_000)
    raw.end.sinks = lambda nbytes: Sink(
        [memoryview(memory)[i : i + 100] for i in range(0, nbytes, 100)]
    )
    data = bytes(range(250)) * 400
    raw.feed(encode(Nudge("x"), len(data)) + data)
    assert memory == data
    assert watched.reads < 10


def test_a_large_payload_is_received_straight_into_its_sink(raw):
    memory = bytearray(1 << 20)
    raw.end.sinks = lambda nbytes: Sink([memoryview(memory)])
    raw.feed(encode(Nudge("x"), len(memory)))
    watched = raw.connection._sock = Watched(raw.connection._sock)
    raw.feed(bytes([7]) * len(memory))
    assert memory == bytes([7]) * len(memory)
    assert all(target is memory for target in watched.targets)


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
    raw.feed(encode(Challenge(1, b"a nonce of 16 b.", True)))
    raw.feed(encode(Challenge(1, b"A NONCE OF 16 B.", True)))
    assert [message.nonce for message in raw.end.messages] == [
        b"a nonce of 16 b.",
        b"A NONCE OF 16 B.",
    ]


class Endless(Wrapped):
    """A socket that always has more."""

    def __init__(self, sock, data):
        super().__init__(sock)
        self.data, self.at, self.read = data, 0, 0

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


@pytest.mark.parametrize("payload", [0, 100, 100_000])
def test_a_receive_turn_is_bounded(raw, payload, monkeypatch):
    """A peer that never stops sending does not keep the others from their turn."""
    monkeypatch.setattr(stream, "monotonic", lambda: 0.0)
    data = encode(Nudge("x"), payload) + bytes(payload)
    endless = raw.connection._sock = Endless(raw.connection._sock, data)
    raw.end.receive()
    assert not raw.end.ended
    assert TURN_BYTES <= endless.read <= TURN_BYTES + max(payload, INBOX_BYTES)
    assert abs(len(raw.end.delivered) - endless.read // len(data)) <= 1
    raw.connection._sock = endless.sock


def test_a_receive_turn_is_bounded_in_time(raw, monkeypatch):
    """A few bytes may be much work: what is in the inbox is done, and no more is read."""
    monkeypatch.setattr(stream, "monotonic", lambda: TURN_S * len(raw.end.delivered) / 1000)
    endless = raw.connection._sock = Endless(raw.connection._sock, encode(Nudge("x")))
    raw.end.receive()
    assert 1000 <= len(raw.end.delivered) <= 1000 + INBOX_BYTES // len(endless.data)
    raw.connection._sock = endless.sock


# ---------------------------------------------------------------------------- bad bytes


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (prefix(magic=b"SHOT"), BadMagic),
        (prefix(version=PROTOCOL_VERSION + 1), BadVersion),
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


class NoMemory(Wrapped):
    """A socket that can send nothing."""

    def sendmsg(self, buffers):
        raise OSError(105, "No buffer space available")

    send = sendmsg


def test_no_message_follows_half_a_frame(raw):
    """A send that failed within a frame ends the connection: what follows would be misread."""
    real = raw.connection._sock
    raw.connection._sock = NoMemory(real)
    raw.feed(encode(Nudge("came before")))
    raw.end.send(Nudge("lost"), memoryview(b"abc"))
    raw.connection._sock = real
    raw.end.send(Nudge("after"))
    raw.connection.flush()
    raw.serve()
    assert raw.end.ended
    assert raw.end.messages == [Nudge("came before")]
    assert raw.read(1000) == b""
