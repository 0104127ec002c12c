"""Shared memory: what goes through it, and peers that lie about it."""

import fcntl
import mmap
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from shoal.errors import BadLength, BadSharedMemory, WireError
from shoal.protocol.machine import CopyOnWriteGuard, Sink
from shoal.protocol.messages.requests import Nudge
from shoal.testing.connections import connected
from shoal.transport.base import transport_for
from shoal.transport.shared import CHUNK_BYTES, RING_BYTES, SHARED_BYTES, Inlet, Outlet
from shoal.transport.wire import PUT, SHARED, TAKEN, encode, signal
from tests.transport.rigs import Liar, Raw, Watched, ring_like

HEADER = Nudge("x")


@pytest.fixture
def pair(tmp_path):
    with connected(lambda: (transport_for(f"unix://{tmp_path}/s"), f"unix://{tmp_path}/s")) as pair:
        yield pair


# ---------------------------------------------------------------------------- what goes through


@pytest.mark.parametrize("size", [SHARED_BYTES, CHUNK_BYTES + 1, RING_BYTES, 3 * RING_BYTES + 7])
def test_a_large_payload_does_not_touch_the_socket(pair, size):
    watched = pair.caller.connection._sock = Watched(pair.caller.connection._sock)
    data = random.Random(size).randbytes(size)
    pair.caller.send(HEADER, memoryview(data))
    pair.pump(lambda: bool(pair.callee.delivered))
    assert pair.callee.delivered[0][1].views[0] == data
    assert watched.sent < 100 + 20 * (size // CHUNK_BYTES + 2)


def test_a_small_payload_stays_on_the_socket(pair):
    watched = pair.caller.connection._sock = Watched(pair.caller.connection._sock)
    pair.caller.send(HEADER, memoryview(bytes(SHARED_BYTES - 1)))
    assert watched.sent >= SHARED_BYTES - 1


def test_both_ends_may_fill_their_rings_at_once(pair):
    """Neither has room, and what each has taken has to be told all the same."""
    data = random.Random(0).randbytes(5 * RING_BYTES)
    for end in (pair.caller, pair.callee):
        for number in range(2):
            end.send(Nudge(str(number)), memoryview(data))
    pair.pump(lambda: len(pair.caller.delivered) == len(pair.callee.delivered) == 2)
    for end in (pair.caller, pair.callee):
        assert all(sink.views[0] == data for _, sink in end.delivered)


def test_a_sender_that_waits_for_the_ring_does_not_poll_the_socket(pair):
    pair.caller.send(HEADER, memoryview(bytes(2 * RING_BYTES)))
    assert pair.caller.connection.backlog == RING_BYTES
    assert not pair.caller.connection.wants_write


@pytest.mark.parametrize("taken", [1, 63, 64, 1_000_003])
def test_a_chunk_is_of_whole_lines_however_many_bytes_were_taken(pair, taken):
    """Else the next one would not follow it in the ring, and a view across both were torn."""
    pair.caller.send(HEADER, memoryview(bytes(2 * RING_BYTES)))
    pair.caller.connection._outbox.taken(taken)
    pair.caller.connection.flush()
    assert pair.caller.connection.backlog == RING_BYTES - taken // 64 * 64


def test_a_taken_that_makes_room_for_nothing_is_not_answered(pair):
    for end in (pair.caller, pair.callee):
        end.send(HEADER, memoryview(bytes(SHARED_BYTES)))
    pair.pump(lambda: bool(pair.caller.delivered and pair.callee.delivered))
    watched = pair.caller.connection._sock = Watched(pair.caller.connection._sock)
    pair.callee.connection.flush()  # its TAKEN
    pair.caller.receive()
    assert pair.caller.connection._outbox.outlet.room == RING_BYTES
    assert (watched.sent, pair.caller.connection._outbox.owed) == (0, SHARED_BYTES)


def test_guarded_rows_are_not_copied_unless_they_are_recalled(pair):
    rows, guard = bytearray(2 * RING_BYTES), CopyOnWriteGuard()
    pair.caller.send(HEADER, memoryview(rows), guard=guard)
    rows[-4:] = b"late"  # they were not to change; it shows that no copy was made
    pair.pump(lambda: bool(pair.callee.delivered))
    assert bytes(pair.callee.delivered[0][1].views[0][-4:]) == b"late"


def test_payloads_of_any_size_follow_each_other_through_the_ring(pair):
    """Each begins on a line's edge in the ring: what is skipped is counted on both sides."""
    sizes = [SHARED_BYTES + extra for extra in (1, 63, 64, 65, 0, 7)] * 40
    for size in sizes:
        pair.caller.send(HEADER, memoryview(bytes([size % 251]) * size))
    pair.pump(lambda: len(pair.callee.delivered) == len(sizes))
    for size, (_, sink) in zip(sizes, pair.callee.delivered, strict=True):
        assert sink.views[0] == bytes([size % 251]) * size
    assert pair.caller.connection._outbox.outlet._at % 64 == 0


def test_views_at_unaligned_offsets_are_filled(pair):
    into = memoryview(bytearray(RING_BYTES))
    cuts = [0, 13, 77, 1000, CHUNK_BYTES + 1, RING_BYTES]
    views = [into[a:b] for a, b in pairwise(cuts)]
    pair.callee.sinks = lambda nbytes: Sink(views)
    data = random.Random(0).randbytes(RING_BYTES)
    pair.caller.send(HEADER, memoryview(data))
    pair.pump(lambda: bool(pair.callee.delivered))
    assert into == data


def test_rings_are_not_visible_in_the_file_system(pair):
    pair.caller.send(HEADER, memoryview(bytes(RING_BYTES)))
    assert not [path for path in Path("/dev/shm").iterdir() if "shoal" in path.name]


# ---------------------------------------------------------------------------- lies


@pytest.fixture
def liar():
    with Liar() as liar:
        yield liar


@pytest.mark.parametrize(
    "frames",
    [
        [signal(PUT, 1)],
        [encode(HEADER, 0, SHARED)],
        [encode(HEADER, 100, SHARED), signal(PUT, 101)],
        [encode(HEADER, 100, SHARED), signal(PUT, 0)],
        [encode(HEADER, 100, SHARED), encode(HEADER)],
        [encode(HEADER, 100, SHARED), encode(HEADER, 100, SHARED)],
        [encode(HEADER, 3 * RING_BYTES, SHARED), signal(PUT, RING_BYTES + 1)],
        [encode(HEADER, 3 * RING_BYTES, SHARED), signal(PUT, 63)],
        [signal(TAKEN, 1)],
        [signal(TAKEN, 0)],
    ],
)
def test_impossible_ring_signals_raise_typed_errors(liar, frames):
    with pytest.raises(WireError):
        liar.says(*frames)
    assert not liar.end.delivered


def test_a_shared_payload_from_a_peer_without_a_ring_is_refused():
    with Raw() as raw, pytest.raises(BadSharedMemory):
        raw.feed(encode(HEADER, 100, SHARED))


def test_a_malformed_messages_payload_is_drained_from_the_ring(liar):
    liar.ring.put(memoryview(bytes(100)), 100)
    liar.says(encode(Nudge(7), 100, SHARED), signal(PUT, 100), encode(Nudge("after")))
    assert len(liar.end.malformed) == 1
    assert liar.end.messages == [Nudge("after")]


def test_taking_more_than_was_put_is_refused():
    outlet = Outlet()
    outlet.put(memoryview(bytes(100)), 100)
    with pytest.raises(BadLength):
        outlet.taken(101)
    outlet.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ring_like(seals=fcntl.F_SEAL_GROW),
        lambda: ring_like(size=RING_BYTES // 2),
        lambda: ring_like(size=2 * RING_BYTES),
        lambda: os.open(os.devnull, os.O_RDONLY),
        lambda: os.eventfd(0),
    ],
)
def test_memory_that_could_shrink_is_refused(make):
    fd = make()
    with pytest.raises(BadSharedMemory):
        Inlet(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)  # and not kept open


def test_a_ring_cannot_be_resized_or_written_by_its_reader():
    outlet = Outlet()
    fd = os.dup(outlet.fd)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    inlet = Inlet(fd)
    with pytest.raises(TypeError):
        inlet._map[0] = 1
    inlet.close()
    outlet.close()


@pytest.mark.parametrize("lends", [0, 7, 8])
def test_an_interrupted_delivery_loses_no_view(liar, lends):
    """Ctrl-C, or a machine that fails, while the third of eight views is delivered."""
    size = 16 << 10
    data = b"".join(bytes([number]) * size for number in range(8))
    view, seen = memoryview(bytearray(size)), []
    liar.end.sinks = lambda nbytes: Sink([view] * 8, None, by_view=True, lends=lends)

    def interrupted(sink):
        seen.append(sink.views[sink.landed - 1][0])
        assert (sink.views[sink.landed - 1] is not view) == (sink.landed <= lends)
        if len(seen) == 3:
            raise KeyboardInterrupt

    liar.end.on_deliver = interrupted
    liar.ring.put(memoryview(data), len(data))
    with pytest.raises(KeyboardInterrupt):
        liar.says(encode(HEADER, len(data), SHARED), signal(PUT, len(data)))
    liar.says(encode(Nudge("after")))
    assert seen == list(range(8))
    assert liar.end.messages[-1] == Nudge("after")


@pytest.mark.parametrize(("size", "copied"), [(1 << 20, 0), (1_000_003, 3), (RING_BYTES, 4)])
def test_a_view_is_lent_unless_it_is_at_the_end_of_the_ring_or_too_large(pair, size, copied):
    """Wherever the chunks end in which it comes."""
    memory, seen = memoryview(bytearray(size)), []
    pair.callee.sinks = lambda nbytes: Sink([memory] * (nbytes // size), None, True, 13)
    data = random.Random(size).randbytes(size * (4 if size == RING_BYTES else 13))

    def see(sink):
        seen.append(sink.views[sink.landed - 1])
        start = size * (sink.landed - 1)
        assert seen[-1] == data[start : start + size]

    pair.callee.on_deliver = see
    pair.caller.send(HEADER, memoryview(data))
    pair.pump(lambda: len(seen) * size == len(data))
    assert sum(each is memory for each in seen) == copied


class Sips:
    """A socket from which a signal is read at a time, as while its sender copies the next chunk."""

    def __init__(self, sock):
        self._sock = sock

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def recv_into(self, into):
        return self._sock.recv_into(into[: len(signal(PUT, 1))])


def test_a_view_that_waits_leaves_room_for_its_rest(pair):
    """What is owed, and what waits, leaves less than a line of the ring otherwise."""
    half = RING_BYTES // 2
    sizes = [half // 2, half // 2 + 63, half - 63, 62, half, 64]
    memory, seen = memoryview(bytearray(half)), []
    pair.callee.connection._sock = Sips(pair.callee.connection._sock)
    pair.callee.sinks = lambda nbytes: Sink([memory[:size] for size in sizes], None, True, 6)
    pair.callee.on_deliver = lambda sink: seen.append(sink.views[sink.landed - 1].tobytes())
    data = random.Random(0).randbytes(sum(sizes))
    pair.caller.send(HEADER, memoryview(data))
    pair.pump(lambda: len(seen) == len(sizes))
    assert b"".join(seen) == data


def test_a_view_that_never_comes_whole_is_not_delivered(liar):
    """Its bytes stay in the ring, and no more can be put there than it holds."""
    liar.end.sinks = lambda nbytes: Sink([memoryview(bytearray(nbytes // 2))] * 2, None, True, 2)
    liar.ring.put(memoryview(bytes(64)), 64)
    liar.says(encode(HEADER, RING_BYTES, SHARED), signal(PUT, 64))
    assert not liar.end.delivered
    with pytest.raises(WireError):
        liar.says(signal(PUT, RING_BYTES))


# ---------------------------------------------------------------------------- races


def test_a_reader_may_read_while_the_writer_writes():
    """What is read is what somebody wrote; nothing crashes."""
    outlet = Outlet()
    inlet = Inlet(os.dup(outlet.fd))
    into = memoryview(bytearray(RING_BYTES))
    inlet.take(into)
    outlet.put(memoryview(b"\x01" * RING_BYTES), RING_BYTES)
    inlet.take(into)
    assert into == b"\x01" * RING_BYTES
    assert inlet._map.size() == mmap.mmap(outlet.fd, 0).size() == RING_BYTES
    inlet.close()
    outlet.close()
