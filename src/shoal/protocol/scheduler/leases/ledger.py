"""Leases: the ledger of batches that are granted to workers, and reassigned when one dies.

The scheduler grants a worker a few batches at a time; the worker processes one per clock, from the
clock at which it asked. So completion needs no message: a worker that asks again has finished its
batches, and a dead worker has finished as many as its last clock in the view says. Under BSP a
worker counts in the rounds below its last clock and in no other, so that each batch counts exactly
once. If pushes are applied on arrival, the batch under way may count twice.

Grants get smaller towards the end of an epoch (guided self-scheduling, Polychronopoulos and Kuck
1987), so that workers finish together.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.protocol.messages.membership import Lease, Leased, NotLeased
from shoal.protocol.views import NodeId

LEASE_MOST = 1 << 20  # the most batches of a lease


class Span(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Consecutive batches of an epoch."""

    epoch: int
    first: int
    count: int


class Granted(msgspec.Struct, frozen=True, array_like=True):
    """The batches of a worker from its clock `clock` on; an empty span is a clock without data."""

    incarnation: int
    clock: int
    span: Span

    def after(self, clock: int) -> Span:
        """Return the batches that are not done when the worker has finished `clock` clocks."""
        epoch, first, count = self.span.epoch, self.span.first, self.span.count
        done = min(max(clock - self.clock, 0), count)
        return Span(epoch, first + done, count - done)


class LedgerRecord(msgspec.Struct, frozen=True, array_like=True):
    """The part of a ledger that the journal keeps.

    Attributes:
        epochs: the number of passes over the data; 0 before the first request.
        batches: the number of batches per epoch; 0 before the first request.
        untouched: the (epoch, batch) of the first batch that was never granted.
        returned: the batches that were granted and not done.
        granted: the current grants.
    """

    epochs: int = 0
    batches: int = 0
    untouched: tuple[int, int] = (0, 0)
    returned: tuple[Span, ...] = ()
    granted: tuple[Granted, ...] = ()


class Leases:
    """The lease ledger of a worker group, and the workers that wait for batches.

    >>> leases = Leases(LedgerRecord())
    >>> leases.ask("a", Lease(7, 0, epochs=1, batches=8))
    >>> leases.answers(workers=2)
    [('a', Leased(clock=0, epoch=0, first=0, count=2, over=False))]
    >>> leases.gone(7, done_clock=1)
    Span(epoch=0, first=1, count=1)
    >>> leases.ask("b", Lease(8, 5, epochs=1, batches=8))
    >>> leases.answers(workers=1)
    [('b', Leased(clock=5, epoch=0, first=1, count=1, over=False))]
    """

    def __init__(self, record: LedgerRecord) -> None:
        self._epochs, self._batches = record.epochs, record.batches
        self._untouched = record.untouched
        self._returned = list(record.returned)
        self._granted = {each.incarnation: each for each in record.granted}
        self._wanting: dict[int, tuple[NodeId, Lease]] = {}

    def record(self) -> LedgerRecord:
        returned, granted = tuple(self._returned), tuple(self._granted.values())
        return LedgerRecord(self._epochs, self._batches, self._untouched, returned, granted)

    @property
    def size(self) -> dict[str, int]:
        """The numbers of epochs, and of batches per epoch."""
        return {"epochs": self._epochs, "batches": self._batches}

    @property
    def over(self) -> bool:
        """Whether all batches are done; false before the first request."""
        left = not self._epochs or self._returned or self._untouched[0] < self._epochs
        return not left and not any(each.span.count for each in self._granted.values())

    def granted_to(self, incarnation: int) -> Granted:
        """Return the present lease of a worker."""
        return self._granted[incarnation]

    def has_granted(self, incarnation: int) -> bool:
        return incarnation in self._granted

    @property
    def wanting(self) -> list[NodeId]:
        """The nodes that wait for batches."""
        return [node for node, _ in self._wanting.values()]

    @property
    def holders(self) -> list[int]:
        """The incarnations that have batches to do."""
        return sorted(each.incarnation for each in self._granted.values() if each.span.count)

    # ------------------------------------------------------------------ questions

    def ask(self, node: NodeId, asked: Lease) -> None:
        """Record a worker's request for batches; its earlier leases are done."""
        known = self._granted.get(asked.incarnation)
        if known is None or asked.clock >= known.clock:  # a late duplicate otherwise
            self._wanting[asked.incarnation] = node, asked

    def answers(self, workers: int) -> list[tuple[NodeId, Leased | NotLeased]]:
        """Grant the leases that can be granted now; return the answers to the nodes.

        The leases have to be persisted before the answers are sent.

        Args:
            workers: the number of workers at work.
        """
        found: list[tuple[NodeId, Leased | NotLeased]] = []
        for _, asked in self._wanting.values():  # all of them have done their earlier batches
            self._move_on(asked)
        for incarnation, (node, asked) in list(self._wanting.items()):
            answer = self._answer(asked, workers)
            if answer is not None:
                del self._wanting[incarnation]
                found.append((node, answer))
        return found

    def _move_on(self, asked: Lease) -> None:
        known = self._granted.get(asked.incarnation)
        if known is not None and asked.clock > known.clock:
            self._return(self._granted.pop(asked.incarnation).after(asked.clock))

    def _answer(self, asked: Lease, workers: int) -> Leased | NotLeased | None:
        if not self._epochs:
            self._epochs, self._batches = asked.epochs, asked.batches
        if (asked.epochs, asked.batches) != (self._epochs, self._batches):
            return NotLeased(
                f"this worker asks for {asked.epochs} epochs of {asked.batches} batches, but the "
                f"run has {self._epochs} epochs of {self._batches}: use the same data and batch "
                "size on all workers, and as in the checkpoint"
            )
        known = self._granted.get(asked.incarnation)
        if known is None:
            span = self._next(workers)
            if not span.count and asked.patient and not self.over:
                return None
            known = self._granted[asked.incarnation] = Granted(asked.incarnation, asked.clock, span)
        span = known.span
        return Leased(known.clock, span.epoch, span.first, span.count, self.over)

    # ------------------------------------------------------------------ workers that go

    def gone(self, incarnation: int, done_clock: int) -> Span | None:
        """Take back and return the unfinished batches of a worker that ended at `done_clock`."""
        self.withdraw(incarnation)
        known = self._granted.pop(incarnation, None)
        return self._return(known.after(done_clock)) if known is not None else None

    def withdraw(self, incarnation: int) -> None:
        """Drop a worker's request for batches."""
        self._wanting.pop(incarnation, None)

    def _return(self, span: Span) -> Span | None:
        if not span.count:
            return None
        self._returned.append(span)
        self._returned.sort()
        return span

    # ------------------------------------------------------------------ batches

    def _next(self, workers: int) -> Span:
        """Take the first batches that are not granted; return an empty span if there are none."""
        if self._returned:
            span = self._returned.pop(0)
            most = self._most(span.count, workers)
            if span.count > most:
                self._returned.insert(0, Span(span.epoch, span.first + most, span.count - most))
            return Span(span.epoch, span.first, min(span.count, most))
        epoch, first = self._untouched
        if epoch >= self._epochs:
            return Span(epoch, 0, 0)
        count = self._most(self._batches - first, workers)
        ended = first + count == self._batches
        self._untouched = (epoch + 1, 0) if ended else (epoch, first + count)
        return Span(epoch, first, count)

    @staticmethod
    def _most(left: int, workers: int) -> int:
        return min(max(1, left // (2 * max(workers, 1))), LEASE_MOST)

    def undone(self) -> Iterator[tuple[int, int]]:
        """Yield the (epoch, batch) of all batches that are not granted."""
        for span in self._returned:
            yield from ((span.epoch, span.first + at) for at in range(span.count))
        epoch, first = self._untouched
        yield from ((epoch, at) for at in range(first, self._batches) if epoch < self._epochs)
        for each in range(epoch + 1, self._epochs):
            yield from ((each, at) for at in range(self._batches))
