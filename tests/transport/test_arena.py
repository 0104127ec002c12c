"""The arena: what is read where it lies, how long it stays, and peers that lie about it."""

import fcntl
import gc
import os
import random
import re
import resource
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from weakref import ref

import pytest
import torch

from shoal.errors import BadSharedMemory, WireError
from shoal.protocol.machine import CopyOnWriteGuard, Sink
from shoal.protocol.messages.requests import Nudge
from shoal.testing.connections import connected
from shoal.testing.exchanges import in_arena
from shoal.transport.arena import (
    ARENA_BYTES,
    READ_BYTES,
    WINDOW_BYTES,
    Arena,
    PeerArena,
    _libc,
    _map,
    arena,
)
from shoal.transport.base import transport_for
from shoal.transport.shared import RING_BYTES, SHARED_BYTES
from shoal.transport.wire import FREE, PREFIX, PUT, READ, SHARED, encode, lend, signal
from tests.transport.rigs import Liar, Watched, ring_like

HEADER = Nudge("x")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def settled():
    """No garbage of earlier tests leaves a place free in the midst of one."""
    gc.collect()


@pytest.fixture
def pair(tmp_path):
    with connected(lambda: (transport_for(f"unix://{tmp_path}/s"), f"unix://{tmp_path}/s")) as pair:
        yield pair


def noise(nbytes):
    return random.Random(nbytes).randbytes(nbytes)


def window(end):
    """What may still be announced to the peer."""
    return end.connection._outbox._window


# ---------------------------------------------------------------------------- memory


def test_memory_is_zero_on_a_page_and_free_when_nothing_refers_to_it():
    arena = Arena()
    memory = arena.zeros(3 * MIB + 1)
    extent, offset = arena.find(memory)
    assert memory == bytes(3 * MIB + 1)
    assert (offset % 4096, offset) == (0, extent.offset)
    memory[:5] = b"dirty"
    part = memory[7:]
    del memory
    assert arena.find(part) == (extent, offset + 7)
    used = os.fstat(arena.fd).st_blocks
    del part, extent
    gc.collect()
    assert os.fstat(arena.fd).st_blocks < used, "its pages still take memory"
    again = arena.zeros(3 * MIB + 1)
    assert arena.find(again)[1] == offset, "its place is not used again"
    assert again[:5] == bytes(5)


def test_other_memory_is_not_found():
    held = arena.zeros(100)
    for other in (memoryview(bytearray(100)), memoryview(bytes(100)), held.toreadonly()):
        assert arena.find(other) is None


def test_memory_of_many_sizes_never_overlaps():
    draw, held = random.Random(0), {}
    for number in range(300):
        size = draw.choice((1, 4096, 4097, 100_000))
        held[number] = arena.zeros(size)
        assert held[number] == bytes(size)
        held[number][:] = number.to_bytes(2, "little") * (size // 2) + b"\1" * (size % 2)
        if draw.random() < 0.6:
            del held[draw.choice(list(held))]
    places = sorted((arena.find(each)[1], each.nbytes) for each in held.values())
    assert all(sum(one) <= other[0] for one, other in pairwise(places))
    for number, each in held.items():
        assert each[: each.nbytes // 2 * 2] == number.to_bytes(2, "little") * (each.nbytes // 2)


def test_free_places_side_by_side_become_one():
    arena = Arena()
    whole = arena.zeros(9 * MIB)
    place = arena.find(whole)[1]
    del whole
    parts = [arena.zeros(3 * MIB) for _ in range(3)]
    assert [arena.find(each)[1] - place for each in parts] == [0, 3 * MIB, 6 * MIB]
    for number in (0, 2, 1):
        parts[number] = None
    gc.collect()
    assert arena.find(arena.zeros(9 * MIB))[1] == place


def test_memory_may_be_taken_by_several_threads_at_once():
    held = []

    def take():
        for _ in range(100):
            held.append(arena.zeros(5000))
            arena.zeros(5000)

    threads = [Thread(target=take) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    places = sorted(arena.find(each)[1] for each in held)
    assert all(other - one >= 5000 for one, other in pairwise(places))


def test_a_full_arena_is_an_error_that_says_so():
    with pytest.raises(OSError, match=f"no {ARENA_BYTES + 4096} bytes"):
        arena.zeros(ARENA_BYTES + 1)
    assert arena.zeros(1) == b"\0"


def test_a_fork_writes_to_memory_of_its_own():
    memory = in_arena(b"parent")
    child = os.fork()
    if not child:
        ends = 1
        try:
            memory[:] = b"child!"
            own = in_arena(b"another")
            ends = int(arena.find(memory) is not None or arena.find(own) is None)
        finally:
            os._exit(ends)
    assert os.waitpid(child, 0)[1] == 0
    assert memory == b"parent"
    assert arena.find(memory) is not None


def test_a_fork_that_drops_inherited_memory_frees_neither_its_own_nor_its_parents():
    memory = in_arena(b"parent")
    place, number = arena.find(memory)[1], arena.fd
    child = os.fork()
    if not child:
        ends = 1
        try:
            own = arena.zeros(place + 1)  # has a page where the inherited one is
            own[place] = 1
            os.dup2(arena.fd, number)  # as where no lower number is free
            del memory
            gc.collect()
            arena.zeros(1)[0] = 2
            ends = int(own[place] != 1)
        finally:
            os._exit(ends)
    assert os.waitpid(child, 0)[1] == 0
    assert memory == b"parent"


def test_many_tensors_take_no_descriptors():
    before = len(list(Path("/proc/self/fd").iterdir()))
    held = [arena.zeros(1) for _ in range(200)]
    peer = PeerArena(os.dup(arena.fd))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    del held, peer


def test_pages_that_cannot_be_freed_are_not_used_again(monkeypatch):
    own = Arena()
    memory = own.zeros(1)
    memory[:] = b"x"
    with monkeypatch.context() as patched:
        patched.setattr(_libc(), "fallocate", lambda *args: -1)
        del memory
    assert own.zeros(1) == bytes(1)
    assert own.find(own.zeros(1))[1] > 0


def test_a_core_dump_leaves_a_peers_arena_out():
    peer = PeerArena(os.dup(arena.fd))
    told = Path("/proc/self/smaps").read_text().split("memfd:shoal-arena")
    size = rf"^Size: +{ARENA_BYTES // 1024} kB$"
    whole = [each for each in told if re.search(size, each, re.MULTILINE)]
    assert whole
    assert all(re.search(r"^VmFlags:.* dd\b", each, re.MULTILINE) for each in whole)
    del peer


def test_a_listener_without_addresses_for_an_arena_does_without(tmp_path, monkeypatch):
    """As under a limit of a process's addresses; rings are smaller."""

    def limited(fd, nbytes, *where, **how):
        if nbytes == ARENA_BYTES:
            raise OSError("no addresses are left")
        return _map(fd, nbytes, *where, **how)

    monkeypatch.setattr("shoal.transport.arena._map", limited)
    address = f"unix://{tmp_path}/s"
    with connected(lambda: (transport_for(address), address)) as pair:
        outbox = pair.caller.connection._outbox
        assert (outbox.lends, outbox.outlet is None) == (False, False)
        pair.caller.send(HEADER, in_arena(noise(MIB)))
        pair.pump(lambda: bool(pair.callee.delivered))
        assert pair.callee.delivered[0][1].views[0] == noise(MIB)


# ---------------------------------------------------------------------------- lending


@pytest.mark.parametrize(
    "size", [SHARED_BYTES, MIB + 1, WINDOW_BYTES, WINDOW_BYTES + 1, 3 * WINDOW_BYTES + 7]
)
def test_a_lent_payload_touches_neither_socket_nor_ring(pair, size):
    watched = pair.caller.connection._sock = Watched(pair.caller.connection._sock)
    ring = pair.caller.connection._outbox.outlet
    pair.caller.send(HEADER, in_arena(noise(size)))
    pair.pump(lambda: bool(pair.callee.delivered))
    assert pair.callee.delivered[0][1].views[0] == noise(size)
    assert watched.sent < 100 + 50 * (size // READ_BYTES + 2)
    assert (ring.room, ring._at) == (RING_BYTES, 0)


def test_a_view_that_may_be_lent_is_delivered_where_the_sender_has_it(pair):
    """Wherever windows and buffers end; a view across two buffers is copied."""
    data = noise(3 * WINDOW_BYTES)
    memory, other = in_arena(data[: 40 * MIB + 100]), in_arena(data[40 * MIB + 100 :])
    own = memoryview(bytearray(MIB))
    sink = Sink([own] * 48, by_view=True, lends=47)
    pair.callee.sinks = lambda nbytes: sink
    lent, came = [], []

    def look(sink):
        view = sink.views[sink.landed - 1]
        lent.append(view.readonly)
        came.append(bytes(view))

    pair.callee.on_deliver = look
    pair.caller.send(HEADER, memory, other)
    pair.pump(lambda: sink.whole)
    assert b"".join(came) == data
    assert [number for number, each in enumerate(lent) if not each] == [40, 47]


def test_a_view_as_large_as_may_be_lent_is_waited_for(pair):
    """What waits and what is owed leave the sender room, however the views are cut."""
    for extra in (-1, 0, 1):
        pair.callee.sinks = lambda nbytes: None
        pair.callee.on_deliver = lambda sink: None
        before = len(pair.callee.delivered)
        pair.caller.send(HEADER, in_arena(bytes(READ_BYTES - 1)))  # is owed, and not told
        pair.pump(lambda before=before: len(pair.callee.delivered) > before)
        size = PeerArena.most + extra
        sink = Sink([memoryview(bytearray(size)) for _ in range(5)], by_view=True, lends=5)
        pair.callee.sinks = lambda nbytes, sink=sink: sink
        lent = []
        pair.callee.on_deliver = lambda sink, lent=lent: lent.append(
            sink.views[sink.landed - 1].readonly
        )
        pair.caller.send(HEADER, in_arena(noise(5 * size)))
        pair.pump(lambda sink=sink: sink.whole)
        assert lent == [extra < 1] * 5
        assert extra < 1 or b"".join(sink.views) == noise(5 * size)


def test_a_sender_waits_when_all_that_it_may_announce_is_unread(pair):
    pair.caller.send(HEADER, in_arena(bytes(2 * WINDOW_BYTES)))
    assert pair.caller.connection.backlog == WINDOW_BYTES
    assert not pair.caller.connection.wants_write
    assert window(pair.caller) == 0
    pair.pump(lambda: bool(pair.callee.delivered))
    pair.callee.connection.flush()
    pair.caller.receive()
    assert window(pair.caller) == WINDOW_BYTES
    assert not pair.caller.connection._outbox._announced


def test_small_payloads_are_told_of_in_time(pair):
    """Each is far less than a READ is sent for."""
    count = 3 * WINDOW_BYTES // SHARED_BYTES
    memory = in_arena(bytes(SHARED_BYTES))
    for _ in range(count):
        pair.caller.send(HEADER, memory)
    pair.pump(lambda: len(pair.callee.delivered) == count)


@pytest.mark.parametrize("kind", ["guarded", "in part", "small", "by the listener"])
def test_what_is_not_lent_is_copied(pair, kind):
    """Rows that change under a guard; buffers of which one is elsewhere; from the other side."""
    memory, more = in_arena(noise(MIB)), {}
    end, other = pair.caller, pair.callee
    buffers = [memory]
    if kind == "guarded":
        more["guard"] = CopyOnWriteGuard()
    elif kind == "in part":
        buffers.append(memoryview(bytearray(1)))
    elif kind == "small":
        buffers = [memory[: SHARED_BYTES - 1]]
    else:
        end, other = other, end
    end.send(HEADER, *buffers, **more)
    assert window(end) == WINDOW_BYTES
    other_data = b"".join(buffers)
    pair.pump(lambda: bool(other.delivered))
    assert other.delivered[0][1].views[0] == other_data


def test_memory_stays_until_the_peer_has_read_it(pair):
    """Although its owner has dropped it; else the peer would read zeros."""
    pair.caller.send(HEADER, in_arena(noise(5 * MIB)))
    gc.collect()
    taken = in_arena(b"\xff" * (5 * MIB))  # would take its place
    pair.pump(lambda: bool(pair.callee.delivered))
    assert pair.callee.delivered[0][1].views[0] == noise(5 * MIB)
    assert taken == b"\xff" * (5 * MIB)


def test_what_was_announced_is_read_after_its_sender_has_closed(pair):
    """The sender has closed, its owner writes to the memory and drops it; the peer lives on."""
    memory = in_arena(noise(5 * MIB))
    pair.caller.send(HEADER, memory)
    pair.caller.connection.close()
    memory[:] = bytes(5 * MIB)
    del memory
    gc.collect()
    pair.callee.receive()
    assert pair.callee.delivered[0][1].views[0] == noise(5 * MIB)


def test_a_detached_buffer_is_its_owners_and_lent_no_more(pair):
    """The peer reads what was there; what comes after that goes through the ring."""
    memory = in_arena(noise(MIB))
    before = arena.find(memory)[1]
    pair.caller.send(HEADER, memory)
    pair.caller.connection.detach()
    assert arena.find(memory) is None
    assert memory == noise(MIB)
    memory[:] = noise(MIB)[::-1]
    pair.caller.send(HEADER, memory)
    pair.pump(lambda: len(pair.callee.delivered) == 2)
    first, second = (sink.views[0] for _, sink in pair.callee.delivered)
    assert (first, second) == (noise(MIB), noise(MIB)[::-1])
    settled_between(pair)
    del memory
    gc.collect()
    assert arena.find(arena.zeros(MIB))[1] == before, "its pages are not free"


def test_a_buffer_that_is_read_is_lent_on_after_a_detach(pair):
    memory = in_arena(noise(MIB))
    pair.caller.send(HEADER, memory)
    pair.pump(lambda: bool(pair.callee.delivered))
    settled_between(pair)
    pair.caller.connection.detach()
    assert arena.find(memory) is not None


def test_a_buffer_may_be_withdrawn_before_it_is_announced(pair):
    """By another connection: the rest goes through the ring."""
    size = 2 * WINDOW_BYTES + 5
    memory = in_arena(noise(size))
    pair.caller.send(HEADER, memory)
    arena.withdraw(arena.find(memory)[0])
    pair.pump(lambda: bool(pair.callee.delivered))
    assert pair.callee.delivered[0][1].views[0] == noise(size)


def test_the_owner_loses_no_write_while_its_memory_is_withdrawn():
    """Another thread writes to it meanwhile, without the lock of Python."""
    memory = in_arena(bytes(16 * MIB))
    values = torch.frombuffer(memory, dtype=torch.float32)
    extent = arena.find(memory)[0]
    ends = Event()

    def count():
        while not ends.is_set():
            values.add_(1)

    thread = Thread(target=count)
    thread.start()
    while not values[-1]:
        pass
    arena.withdraw(extent)
    ends.set()
    thread.join()
    assert values.min() == values.max()


def test_an_arena_that_the_system_refuses_is_done_without(tmp_path):
    """Here by a limit on the size of files, in a process of its own; rings are smaller."""
    child = os.fork()
    if not child:
        ends = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (RING_BYTES, RING_BYTES))
            before = len(list(Path("/proc/self/fd").iterdir()))
            for _ in range(3):
                with pytest.raises(OSError, match="too large"):
                    Arena().zeros(1)
            assert len(list(Path("/proc/self/fd").iterdir())) == before
            address = f"unix://{tmp_path}/s"
            with connected(lambda: (transport_for(address), address)) as pair:
                pair.caller.send(HEADER, memoryview(noise(MIB)))
                pair.pump(lambda: bool(pair.callee.delivered))
                outbox = pair.caller.connection._outbox
                assert outbox.outlet is not None
                assert not outbox.lends
            ends = 0
        finally:
            os._exit(ends)
    assert os.waitpid(child, 0)[1] == 0


def test_an_answer_brings_what_was_read_and_is_in_use_no_more(pair):
    """However little it is: a caller that has its answer closes without moving its memory."""
    memory = in_arena(noise(MIB))
    place = arena.find(memory)[1]
    pair.caller.send(HEADER, memory)
    pair.pump(lambda: bool(pair.callee.delivered))
    pair.callee.send(Nudge("done"))
    pair.pump(lambda: bool(pair.caller.delivered))
    assert pair.caller.connection._outbox._used == 0
    pair.caller.connection.close()
    assert arena.find(memory)[1] == place


# ---------------------------------------------------------------------------- borrowing


def borrow(pair, nbytes, *views):
    """Have the next payload be borrowed, in views of these sizes; its sink."""
    own = memoryview(bytearray(nbytes))
    cuts = [0, *views, nbytes]
    sink = Sink([own[a:b] for a, b in pairwise(cuts)], borrows=True)
    pair.callee.sinks = lambda nbytes: sink
    return sink


def settled_between(pair):
    """The callee says what it owes, and the caller hears it."""
    pair.callee.connection.flush()
    pair.caller.receive()


@pytest.mark.parametrize("size", [SHARED_BYTES, WINDOW_BYTES, 3 * WINDOW_BYTES + 7])
def test_a_payload_is_borrowed_until_its_loan_ends(pair, size):
    """However large it is; and no part of it counts against what may be unread."""
    memory, sink = in_arena(noise(size)), borrow(pair, size)
    given, own = sink.views, sink.views[0]
    pair.caller.send(HEADER, memory)
    pair.pump(lambda: bool(pair.callee.delivered))
    assert sink.views[0].readonly
    assert sink.views[0] == memory
    assert own[-8:] == bytes(8), "it was copied"
    assert given == [own], "the list of views may be the shard's"
    memory[-3:] = b"new"  # the peer sees it
    assert sink.views[0][-3:] == b"new"
    settled_between(pair)
    outbox = pair.caller.connection._outbox
    assert (outbox._window, outbox._used) == (WINDOW_BYTES, size)
    pair.callee.delivered.clear()
    pair.callee.sinks = None
    sink.loan = None
    settled_between(pair)
    assert (outbox._used, len(outbox._announced)) == (0, 0)


def test_views_across_two_buffers_are_copied_and_others_borrowed(pair):
    data = noise(6 * MIB)
    sink = borrow(pair, 6 * MIB, MIB, 3 * MIB, 4 * MIB)
    pair.caller.send(HEADER, in_arena(data[: 2 * MIB]), in_arena(data[2 * MIB :]))
    pair.pump(lambda: bool(pair.callee.delivered))
    assert [view.readonly for view in sink.views] == [True, False, True, True]
    assert b"".join(sink.views) == data
    pair.callee.delivered.clear()
    sink.revoke()
    settled_between(pair)
    assert pair.caller.connection._outbox._used == 0


def test_what_comes_by_another_way_is_copied(pair):
    sink = borrow(pair, 2 * RING_BYTES)
    pair.caller.send(HEADER, memoryview(noise(2 * RING_BYTES)))
    pair.pump(lambda: bool(pair.callee.delivered))
    assert sink.loan is None
    assert sink.views[0] == noise(2 * RING_BYTES)


def test_what_is_read_after_a_borrowed_payload_is_free_when_that_is(pair):
    """Bytes are told in the order in which they were lent; the lists do not grow meanwhile."""
    first = borrow(pair, MIB)
    pair.caller.send(HEADER, in_arena(noise(MIB)))
    pair.pump(lambda: len(pair.callee.delivered) == 1)
    pair.callee.sinks = lambda nbytes: None
    memory = in_arena(noise(MIB))
    for number in range(40):
        pair.caller.send(HEADER, memory)
        pair.pump(lambda number=number: len(pair.callee.delivered) == number + 2)
    settled_between(pair)
    outbox = pair.caller.connection._outbox
    assert (outbox._window, outbox._used) == (WINDOW_BYTES, 41 * MIB)
    assert len(outbox._announced) == len(pair.callee.connection._payload.arena._uses) == 2
    pair.callee.delivered.clear()
    first.loan = None
    settled_between(pair)
    assert outbox._used == 0


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("how", ["detach", "close", "peer closes", "detach, then peer closes"])
def test_what_is_borrowed_stays_when_its_memory_is_its_owners_again(pair, how, told):
    """The caller's connection ends, or its request; the callee's process may live on."""
    memory, sink = in_arena(noise(5 * MIB)), borrow(pair, 5 * MIB)
    pair.caller.send(HEADER, memory)
    pair.pump(lambda: bool(pair.callee.delivered))
    if told:
        settled_between(pair)
    if "detach" in how:
        pair.caller.connection.detach()
    if how != "detach":
        if "peer closes" in how:
            pair.callee.connection.close()
            pair.caller.receive()
            assert pair.caller.ended
        pair.caller.connection.close()
    assert memory == noise(5 * MIB)
    memory[:] = bytes(5 * MIB)
    del memory
    gc.collect()
    taken = in_arena(b"\xff" * (5 * MIB))
    assert sink.views[0] == noise(5 * MIB)
    assert taken[0] == 255


@pytest.mark.parametrize("how", ["revoked", "closed"])
def test_a_payload_that_is_borrowed_may_end_while_it_comes(pair, how):
    size = 2 * WINDOW_BYTES
    memory, sink = in_arena(noise(size)), borrow(pair, size, MIB)
    pair.caller.send(HEADER, memory)
    pair.callee.receive()
    assert [view.readonly for view in sink.views] == [True, False]
    loan = ref(sink.loan)
    if how == "closed":
        pair.callee.connection.close()
        assert (sink.views, loan()) == ([], None)
        return
    sink.revoke()
    assert loan() is None
    pair.pump(lambda: bool(pair.callee.delivered))
    settled_between(pair)
    outbox = pair.caller.connection._outbox
    assert (outbox._window, outbox._used) == (WINDOW_BYTES, 0)


# ---------------------------------------------------------------------------- lies


@pytest.fixture
def liar():
    with Liar(arena=True) as liar:
        yield liar


BEGUN = encode(HEADER, 3 * WINDOW_BYTES, SHARED)


@pytest.mark.parametrize(
    "frames",
    [
        [lend(0, 1)],
        [encode(HEADER, 100, SHARED), lend(0, 0)],
        [encode(HEADER, 100, SHARED), lend(0, 101)],
        [encode(HEADER, 100, SHARED), lend(0, 60), lend(60, 60)],
        [encode(HEADER, 100, SHARED), lend(ARENA_BYTES, 1)],
        [encode(HEADER, 100, SHARED), lend(ARENA_BYTES - 99, 100)],
        [encode(HEADER, 100, SHARED), lend((1 << 64) - 1, 100)],
        [BEGUN, lend(0, WINDOW_BYTES + 1)],
        [BEGUN, lend(0, 100), encode(HEADER)],
        [BEGUN, lend(0, 100), BEGUN],
        [signal(READ, 1)],
        [signal(FREE, 1)],
        [signal(READ, 0)],
        [encode(HEADER, 100, SHARED), signal(5, 100)],
        [encode(HEADER, 100, SHARED), signal(4, 100)],
        [encode(HEADER, 100, SHARED), signal(7, 100)],
    ],
)
def test_impossible_signals_raise_typed_errors(liar, frames):
    with pytest.raises(WireError):
        liar.says(*frames)
    assert not liar.end.delivered


def test_a_lent_payload_from_a_peer_without_an_arena_is_refused(liar):
    liar.connection._payload.arena = None
    with pytest.raises(BadSharedMemory):
        liar.says(encode(HEADER, 100, SHARED), lend(0, 100))


def test_bytes_of_the_arena_within_those_of_a_ring_are_refused(liar):
    """A view waits in the ring; what lies elsewhere does not follow it."""
    sink = Sink([memoryview(bytearray(MIB))] * 48, by_view=True, lends=48)
    liar.end.sinks = lambda nbytes: sink
    liar.ring.put(memoryview(bytes(64)), 64)
    with pytest.raises(BadSharedMemory):
        liar.says(BEGUN, signal(PUT, 64), lend(0, 100))


def test_bytes_of_a_ring_follow_those_of_the_arena(liar):
    """As from a sender that takes back what it has not announced; a view waits for neither."""
    memory = liar.memory
    memory[:100] = noise(100)
    sink = Sink([memoryview(bytearray(40)) for _ in range(5)], by_view=True, lends=5)
    liar.end.sinks = lambda nbytes: sink
    liar.says(encode(HEADER, 200, SHARED), lend(0, 100))
    assert sink.landed == 2
    liar.ring.put(memoryview(noise(101)[:100]), 100)
    liar.says(signal(PUT, 100))
    assert sink.landed == 5
    assert bytes(sink.views[2][:20]) == noise(100)[80:]
    assert bytes(sink.views[2][20:]) == noise(101)[:20]


def test_a_discarded_payload_is_not_read(liar):
    """It may be a hole, and reading it would take memory."""
    liar.end.sinks = lambda nbytes: None
    used = os.fstat(liar.arena.fd).st_blocks
    liar.says(BEGUN, lend(1 << 33, WINDOW_BYTES))
    assert os.fstat(liar.arena.fd).st_blocks == used
    assert liar.read(2 * PREFIX.size)[5] == READ


def test_a_peer_may_not_announce_more_than_it_was_told_that_is_read(liar):
    """Else a few bytes on the socket were work without end; also of payloads that are discarded."""
    liar.end.sinks = lambda nbytes: None
    half = encode(HEADER, WINDOW_BYTES // 2 + 1, SHARED), lend(0, WINDOW_BYTES // 2 + 1)
    with pytest.raises(BadSharedMemory):
        liar.says(*half, *half)


def test_a_signal_may_come_byte_by_byte(liar):
    liar.memory[:100] = noise(100)
    liar.feed(encode(HEADER, 100, SHARED))
    for byte in lend(0, 100):
        liar.feed(bytes([byte]))
    assert liar.end.delivered[0][1].views[0] == noise(100)


def test_a_delivery_that_fails_tells_what_was_read(liar):
    """Else its sender would wait for room for ever."""
    sink = Sink([memoryview(bytearray(READ_BYTES))] * 6, by_view=True, lends=6)
    liar.end.sinks = lambda nbytes: sink

    def fail(sink):
        raise KeyboardInterrupt

    liar.end.on_deliver = fail
    with pytest.raises(KeyboardInterrupt):
        liar.says(BEGUN, lend(0, READ_BYTES))
    assert liar.read(PREFIX.size)[5] == READ


@pytest.mark.parametrize(
    "make",
    [
        lambda: ring_like(size=ARENA_BYTES, seals=fcntl.F_SEAL_GROW),
        lambda: ring_like(size=ARENA_BYTES // 2),
        lambda: ring_like(size=2 * ARENA_BYTES),
    ],
)
def test_an_arena_that_could_shrink_is_refused(make):
    fd = make()
    with pytest.raises(BadSharedMemory):
        PeerArena(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
