"""The laws of messages and payloads between two ends; `testing.transports` has all laws."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from time import monotonic

from shoal.errors import WireError
from shoal.protocol.machine import CopyOnWriteGuard, Sink
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.requests import Nudge
from shoal.testing.connections import (
    CALLER,
    LISTENER,
    Make,
    Pair,
    connected,
    laws_in,
    poll_once,
    raises,
)
from shoal.testing.messages import EXAMPLES
from shoal.transport.arena import arena

KIB, MIB = 1 << 10, 1 << 20


# ---------------------------------------------------------------------------- messages


def messages_arrive_in_order_and_intact(make: Make) -> None:
    """Send every kind of message, both ways."""
    with connected(make) as pair:
        for _ in range(3):
            for message in EXAMPLES:
                pair.caller.send(message)
            for message in reversed(EXAMPLES):
                pair.callee.send(message)
        count = 3 * len(EXAMPLES)
        pair.pump(lambda: min(len(pair.caller.messages), len(pair.callee.messages)) == count)
        assert pair.callee.messages == 3 * EXAMPLES
        assert pair.caller.messages == 3 * EXAMPLES[::-1]
        assert pair.callee.senders == {CALLER.node}
        assert pair.caller.senders == {LISTENER.node}


def many_small_messages_do_not_deadlock(make: Make) -> None:
    """Send more than any buffer holds from both ends before either reads; read all of it."""
    count = 20_000
    with connected(make) as pair:
        for number in range(count):
            pair.caller.send(nudge(number))
            pair.callee.send(nudge(-number))
        ends = (pair.caller, pair.callee)
        pair.pump(lambda: all(len(end.delivered) == count for end in ends))
        assert pair.callee.messages == [nudge(number) for number in range(count)]
        assert pair.caller.messages == [nudge(-number) for number in range(count)]


def large_headers_arrive(make: Make) -> None:
    """Send headers around and beyond the size of any inbox, with small ones and payloads."""
    with connected(make) as pair:
        sent: list[Message] = []
        for size in (60, 64, 66, 100, 200, 3000):
            around = [Nudge("x" * (size * KIB)), nudge(size), Nudge("y" * (size * KIB - 1))]
            for message in around:
                pair.caller.send(message, memoryview(noise(size)))
                sent.append(message)
        pair.pump(lambda: len(pair.callee.delivered) == len(sent))
        assert pair.callee.messages == sent
        for _, sink in pair.callee.delivered:
            assert sink is not None, "a payload is missing"
            assert sink.views[0].tobytes() == noise(sink.nbytes)


def a_message_that_makes_no_sense_is_reported(make: Make) -> None:
    """Check that the payload is drained, nothing is delivered, and the next message is intact."""
    nonsense = Nudge(7)  # type: ignore[arg-type]
    with connected(make) as pair:
        pair.caller.send(nudge(1))
        pair.caller.send(nonsense)
        pair.caller.send(nonsense, memoryview(noise(300 * KIB)))
        pair.caller.send(nudge(2), memoryview(b"abc"))
        pair.pump(lambda: len(pair.callee.delivered) == 2)
        assert pair.callee.messages == [nudge(1), nudge(2)]
        assert len(pair.callee.malformed) == 2
        assert all(isinstance(error, WireError) for error in pair.callee.malformed)
        assert pair.callee.announced == [3]


def receiving_does_not_wait(make: Make) -> None:
    with connected(make) as pair:
        began = monotonic()
        for end in (pair.caller, pair.callee):
            end.receive()
            assert not end.ended
            assert not end.delivered
        assert monotonic() - began < 1


# ---------------------------------------------------------------------------- payloads


def payloads_land_in_their_sinks(make: Make) -> None:
    """Send several buffers into several views, cut elsewhere; nothing beyond them is touched."""
    with connected(make) as pair:
        for size in (0, 1, 64, 64 * KIB, MIB):
            for pieces in (1, 3, 40):
                _one_payload(pair, size, pieces)
        _one_payload(pair, 40 * MIB, 3)


def _one_payload(pair: Pair, size: int, pieces: int) -> None:
    for place in PLACES:
        _one_payload_from(pair, place(noise(size, pieces)), size, pieces)


def _one_payload_from(pair: Pair, data: memoryview, size: int, pieces: int) -> None:
    into = memoryview(bytearray(b"\xaa" * (size + 16)))
    pair.callee.delivered.clear()
    pair.callee.announced.clear()
    views = _cut(into, pieces)
    edge = 0
    kept = []
    for view in views:  # only as far as the payload reaches
        kept.append(view[: max(0, size - edge)])
        edge += view.nbytes
    pair.callee.sinks = lambda nbytes: Sink(kept)
    pair.caller.send(nudge(size), *_cut(data, pieces + 1))
    pair.caller.send(nudge(-1))
    pair.pump(lambda: len(pair.callee.delivered) == 2)
    (first, sink), (second, nothing) = pair.callee.delivered
    assert (first, second, nothing) == (nudge(size), nudge(-1), None)
    assert pair.callee.announced == ([size] if size else [])
    assert (sink is not None) == bool(size), "an empty payload has no sink, another has one"
    assert into[:size] == data, f"a payload of {size} bytes arrived damaged"
    assert into[size:] == b"\xaa" * 16, "bytes were written beyond the payload"


def many_buffers_leave_and_land(make: Make) -> None:
    """Send more buffers to more views than one system call takes."""
    data, into = noise(5000), bytearray(5000)
    with connected(make) as pair:
        pair.callee.sinks = lambda nbytes: Sink([memoryview(into)[i : i + 1] for i in range(5000)])
        pair.caller.send(nudge(0), *(memoryview(data)[i : i + 1] for i in range(5000)))
        pair.pump(lambda: bool(pair.callee.delivered))
        assert into == data


def a_discarded_payload_is_drained(make: Make) -> None:
    """Check that the message is delivered without its payload, and what follows is intact."""
    with connected(make) as pair:
        for size in (1, 64 * KIB, 5 * MIB):
            pair.callee.delivered.clear()
            pair.callee.sinks = lambda nbytes: None if nbytes != 7 else Sink([_memory(nbytes)])
            for place in PLACES:
                pair.caller.send(nudge(1), place(noise(size)))
            pair.caller.send(nudge(2), memoryview(b"1234567"))
            pair.pump(lambda: len(pair.callee.delivered) == 1 + len(PLACES))
            *_, (first, nothing), (second, sink) = pair.callee.delivered
            assert (first, second, nothing) == (nudge(1), nudge(2), None)
            assert content(sink) == b"1234567"


def a_revoked_sink_is_not_written_to(make: Make) -> None:
    """Revoke a sink while its payload is under way: the rest is dropped, what follows is intact."""
    for place in PLACES:
        _one_revoked_from(make, place)


def _one_revoked_from(make: Make, place: Place) -> None:
    with connected(make) as pair:
        into = bytearray(40 * MIB)
        sink = Sink([memoryview(into)[: MIB + 1], memoryview(into)[MIB + 1 :]])
        pair.callee.sinks = lambda nbytes: sink if nbytes == len(into) else Sink([_memory(nbytes)])
        pair.caller.send(nudge(1), place(noise(len(into))))
        pair.caller.send(nudge(2), memoryview(b"1234567"))
        pair.pump(lambda: bool(pair.callee.announced))
        sink.revoke()
        into[:] = bytes(len(into))  # it has a new owner
        pair.pump(lambda: len(pair.callee.delivered) == 2)
        assert into == bytes(len(into)), "a sink was written to after it was revoked"
        (first, revoked), (second, intact) = pair.callee.delivered
        assert (first, second) == (nudge(1), nudge(2))
        assert revoked is None or revoked.revoked
        assert content(intact) == b"1234567"


def a_sink_is_delivered_by_view_if_it_asks_for_that(make: Make) -> None:
    """Check that each view is delivered when full and before the next begins: they share memory."""
    sizes = (7, 3), (100 * KIB, 30_001), (9 * MIB, MIB), (9 * MIB, 1_000_003), (9 * MIB, 70_001)
    for size, step in sizes:
        for lends in (False, True):
            for place in PLACES:
                with connected(make) as pair:
                    _one_by_view(pair, place(noise(size)), step, lends)


def _one_by_view(pair: Pair, data: memoryview, step: int, lends: bool) -> None:
    memory = _memory(step)
    views = [memory[: min(step, len(data) - start)] for start in range(0, len(data), step)]
    sink = Sink(views, by_view=True, lends=len(views) * lends)
    own, seen = list(views), []
    pair.callee.sinks = lambda nbytes: sink
    pair.callee.on_deliver = lambda sink: seen.append(sink.views[sink.landed - 1].tobytes())
    pair.caller.send(nudge(1), data)
    pair.caller.send(nudge(2))
    pair.pump(lambda: nudge(2) in pair.callee.messages)
    assert len(seen) == len(views), f"{len(views)} views, delivered {len(seen)} times"
    assert b"".join(seen) == data
    assert sink.whole
    assert all(view is mine for view, mine in zip(sink.views, own, strict=True)), "still lent"


def a_sink_by_view_may_be_revoked_between_two(make: Make) -> None:
    """Check that the rest is dropped, the sink delivered once more, and what follows intact."""
    for lends in (False, True):
        for place in PLACES:
            _one_revoked(make, place, lends)


def _one_revoked(make: Make, place: Place, lends: bool) -> None:
    with connected(make) as pair:
        memory = memoryview(bytearray(MIB))
        sink = Sink([memory] * 9, by_view=True, lends=9 * lends)
        pair.callee.sinks = lambda nbytes: sink if nbytes == 9 * MIB else Sink([_memory(nbytes)])

        def revoke(sink: Sink) -> None:
            if sink.by_view and not sink.revoked:
                sink.revoke()
                memory[:] = bytes(MIB)

        pair.callee.on_deliver = revoke
        pair.caller.send(nudge(1), place(noise(9 * MIB)))
        pair.caller.send(nudge(2), memoryview(b"1234567"))
        pair.pump(lambda: nudge(2) in pair.callee.messages)
        assert memory == bytes(MIB), "a sink was written to after it was revoked"
        assert len(pair.callee.delivered) == 3
        assert content(pair.callee.delivered[-1][1]) == b"1234567"


def a_sink_of_another_size_is_refused(make: Make) -> None:
    for size in (99, 101):
        with connected(make) as pair:
            into = bytearray(b"\xaa" * size)
            pair.callee.sinks = lambda nbytes, into=into: Sink(  # type: ignore[misc]
                [memoryview(into)]
            )
            pair.caller.send(nudge(1), memoryview(bytes(100)))
            pair.caller.send(nudge(2))
            with raises(WireError):
                pair.pump(lambda pair=pair: bool(pair.callee.delivered))  # type: ignore[misc]
            assert into == b"\xaa" * size, "it was written to all the same"
            assert not pair.callee.delivered


def lent_rows_may_change_after_their_recall(make: Make) -> None:
    """Recall the rows of messages that are far larger than what leaves at once."""
    for place in PLACES:
        _one_recalled(make, place)


def _one_recalled(make: Make, place: Place) -> None:
    with connected(make) as pair:
        source, guard = place(noise(20 * MIB)), CopyOnWriteGuard()
        for _ in range(2):
            pair.caller.send(nudge(1), *_cut(source, 5), guard=guard)
        guard.recall()
        source[:] = bytes(len(source))
        pair.pump(lambda: len(pair.callee.delivered) == 2)
        for _, sink in pair.callee.delivered:
            assert content(sink) == noise(20 * MIB), "lent rows were not copied"


def buffers_are_not_borrowed_after_detach(make: Make) -> None:
    """Detach at once, and when the peer has read a part."""
    for place in PLACES:
        for reads in (0, 3):
            for views in (False, True):
                _one_detached(make, place, reads, views)


def _one_detached(make: Make, place: Place, reads: int, by_view: bool) -> None:
    with connected(make) as pair:
        source, seen = place(noise(40 * MIB)), bytearray()
        if by_view:
            views = [_memory(MIB + 1) for _ in range(39)] + [_memory(MIB - 39)]
            sink = Sink(views, by_view=True, lends=40)
            pair.callee.sinks = lambda nbytes: sink
            pair.callee.on_deliver = lambda sink: seen.extend(sink.views[sink.landed - 1])
        pair.caller.send(nudge(0), *_cut(source, 5))
        for _ in range(reads):
            pair.callee.receive()
            pair.caller.receive()
        pair.caller.connection.detach()
        source[:] = bytes(len(source))
        pair.caller.send(nudge(1))
        pair.pump(lambda: nudge(1) in pair.callee.messages)
        late = bytes(seen) if by_view else content(pair.callee.delivered[0][1])
        assert late == noise(40 * MIB), "what waited was read from its buffer"
        assert source == bytes(len(source)), "the buffer is not its owner's"


def the_backlog_is_what_was_given_and_not_sent(make: Make) -> None:
    with connected(make) as pair:
        connection = pair.caller.connection
        assert connection.backlog == 0
        given, data = 0, noise(3 * MIB)
        for number in range(4):
            pair.caller.send(nudge(number), memoryview(data))
            given += len(data) + 100  # a small header
            assert connection.backlog <= given, "more waits than was given"
            before = connection.backlog
            connection.flush()
            assert connection.backlog <= before, "a flush made it more"
        pair.pump(lambda: len(pair.callee.delivered) == 4)
        assert connection.backlog == 0, "all has arrived, and something still waits"
        assert all(content(sink) == data for _, sink in pair.callee.delivered)


def anything_arrives_both_ways_at_once(make: Make) -> None:
    """Send payloads of sizes around every limit, cut anywhere, some lent; read now and then."""
    sizes = (0, 1, 100, 5000, 32 * KIB - 1, 32 * KIB, 100_001, MIB, 4 * MIB + 1, 9_000_001)
    draw = random.Random(0)
    with connected(make) as pair:
        ends, sent, guard = (pair.caller, pair.callee), ([], []), CopyOnWriteGuard()  # type: ignore[var-annotated]
        for number in range(120):
            side, place = draw.randrange(2), draw.choice(PLACES)
            data = place(noise(draw.choice(sizes), number))
            sent[side].append((nudge(number), bytes(data)))
            lent = draw.random() < 0.3
            views = _cut(data, 1 + draw.randrange(4)) if data else []
            ends[side].send(nudge(number), *views, guard=guard if lent else None)
            if lent and draw.random() < 0.5:
                guard.recall()
                data[:] = bytes(len(data))
            for _ in range(draw.randrange(3)):
                poll_once(*ends, timeout_s=0)
        pair.pump(lambda: all(len(ends[s].delivered) == len(sent[1 - s]) for s in (0, 1)))
        for side in (0, 1):
            came = [(message, content(sink)) for message, sink in ends[1 - side].delivered]
            assert came == sent[side], "something arrived damaged or out of order"
            assert ends[side].connection.backlog == 0


# ---------------------------------------------------------------------------- helpers


def content(sink: Sink | None) -> bytes:
    """Return what has landed in a sink; nothing where there is no sink."""
    return b"" if sink is None else b"".join(sink.views)


def in_arena(data: bytes) -> memoryview:
    """Return a copy of data in memory that peers read in place."""
    memory = arena.zeros(len(data) + 1)[: len(data)]
    memory[:] = data
    return memory


Place = Callable[[bytes], memoryview]
PLACES: tuple[Place, ...] = (lambda data: memoryview(bytearray(data)), in_arena)


def _memory(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


def noise(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def _cut(data: memoryview, pieces: int) -> list[memoryview]:
    """Return uneven consecutive views of `data`, the first of one byte, an empty one among them."""
    draw = random.Random(pieces)
    inner = sorted(draw.randrange(len(data) + 1) for _ in range(pieces - 1))
    edges = [0, min(1, len(data)), *inner, len(data)] if pieces > 1 else [0, len(data)]
    edges.sort()
    views = [data[a:b] for a, b in pairwise(edges)]
    return [*views[:1], data[:0], *views[1:]]


def nudge(number: int) -> Nudge:
    return Nudge(f"number {number}")


MESSAGE_LAWS = laws_in(__name__)
