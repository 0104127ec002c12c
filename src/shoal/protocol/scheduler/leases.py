"""Leases: which worker has which batches of the data, and what becomes of them when it dies.

The scheduler grants a worker a few batches at a time, and the worker does one of them in each of
its clocks, from the clock on at which it asked. So nobody has to say what is done: who asks again
has done what it had, and who is gone has done as many as its last clock in the view says. Under BSP
a worker counts in the rounds below its last clock and in no other, so that each batch counts
exactly once; where pushes are applied on arrival, the one that was under way may count twice.

Grants get smaller towards the end of an epoch (guided self-scheduling, Polychronopoulos and Kuck
1987), so that workers end together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from shoal.protocol.messages import Lease, Leased, NotLeased
from shoal.protocol.views import NodeId


class Span(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Some batches of an epoch, one after the other."""

    epoch: int
    first: int
    count: int


class Granted(msgspec.Struct, frozen=True, array_like=True):
    """What a worker does from its clock `clock` on; of an empty span, nothing for one clock."""

    incarnation: int
    clock: int
    span: Span

    def after(self, clock: int) -> Span:
        """What of it is not done when the worker has finished so many clocks."""
        epoch, first, count = self.span.epoch, self.span.first, self.span.count
        done = min(max(clock - self.clock, 0), count)
        return Span(epoch, first + done, count - done)


class LedgerRecord(msgspec.Struct, frozen=True, array_like=True):
    """What survives the scheduler.

    epochs, batches:  of the data; 0 before anybody has asked
    untouched:        the first that nobody was granted: (epoch, batch)
    returned:         what somebody was granted and has not done
    granted:          what is under way
    """

    epochs: int = 0
    batches: int = 0
    untouched: tuple[int, int] = (0, 0)
    returned: tuple[Span, ...] = ()
    granted: tuple[Granted, ...] = ()


class Leases:
    """The ledger of a run's batches, and who waits for some.

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
        """Of all the data."""
        return {"epochs": self._epochs, "batches": self._batches}

    @property
    def over(self) -> bool:
        """Whether all is done. Before anybody has asked it is not known how much that is."""
        left = not self._epochs or self._returned or self._untouched[0] < self._epochs
        return not left and not any(each.span.count for each in self._granted.values())

    @property
    def wanting(self) -> list[NodeId]:
        """Who has asked and was not answered."""
        return [node for node, _ in self._wanting.values()]

    @property
    def holders(self) -> list[int]:
        """The incarnations that have batches to do."""
        return sorted(each.incarnation for each in self._granted.values() if each.span.count)

    # ------------------------------------------------------------------ questions

    def ask(self, node: NodeId, asked: Lease) -> None:
        """A worker has done what it had, and wants more."""
        known = self._granted.get(asked.incarnation)
        if known is None or asked.clock >= known.clock:  # or it is an old question, come late
            self._wanting[asked.incarnation] = node, asked

    def answers(self, workers: int) -> list[tuple[NodeId, Leased | NotLeased]]:
        """What can be said by now. It is to be on disk before it is told.

        workers: how many there are
        """
        found: list[tuple[NodeId, Leased | NotLeased]] = []
        for _, asked in self._wanting.values():  # all of them have done what they had
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
                f"leases of {asked.epochs} epochs of {asked.batches} batches, where others, or the "
                f"run that this one goes on with, had {self._epochs} of {self._batches}: all have "
                "to have the same data and the same batch size"
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
        """A worker has finished so many clocks and goes on no more: what it leaves undone."""
        self.withdraw(incarnation)
        known = self._granted.pop(incarnation, None)
        return self._return(known.after(done_clock)) if known is not None else None

    def withdraw(self, incarnation: int) -> None:
        """A worker waits for none any more; what it has done will be known."""
        self._wanting.pop(incarnation, None)

    def _return(self, span: Span) -> Span | None:
        if not span.count:
            return None
        self._returned.append(span)
        self._returned.sort()
        return span

    # ------------------------------------------------------------------ batches

    def _next(self, workers: int) -> Span:
        """The first batches that nobody does; none may be left."""
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
        return max(1, left // (2 * max(workers, 1)))

    def undone(self) -> Iterator[tuple[int, int]]:
        """(epoch, batch) of all that nobody has begun."""
        for span in self._returned:
            yield from ((span.epoch, span.first + at) for at in range(span.count))
        epoch, first = self._untouched
        yield from ((epoch, at) for at in range(first, self._batches) if epoch < self._epochs)
        for each in range(epoch + 1, self._epochs):
            yield from ((each, at) for at in range(self._batches))


def as_of(clock: int, events: Iterable[Mapping[str, Any]], epochs: int = 0) -> LedgerRecord:
    """The ledger when all workers had finished so many clocks, from what a scheduler has logged.

    events:  `ledger`, what the run began with; `leased`, `returned`
    epochs:  of the run that goes on with it, if these are others
    """
    began, passed, done_at = LedgerRecord(), 0, dict[tuple[int, int], int]()
    for each in events:
        if each["kind"] == "ledger":
            began, passed = msgspec.convert(each["record"], LedgerRecord), each["passed"]
        elif each.get("group"):
            pass  # whose data are others
        elif each["kind"] == "leased":
            if not began.epochs:
                began = LedgerRecord(each["epochs"], each["batches"])
            for at in range(each["count"]):
                done_at[each["epoch"], each["first"] + at] = passed + each["clock"] + at
        elif each["kind"] == "returned":
            for at in range(each["count"]):
                done_at.pop((each["epoch"], each["first"] + at), None)
    epochs = epochs or began.epochs
    left = [b for b in Leases(began).undone() if done_at.get(b, clock) >= clock and b[0] < epochs]
    spans: list[Span] = []
    for epoch, batch in left:
        last = spans[-1] if spans else None
        if last is not None and (epoch, batch) == (last.epoch, last.first + last.count):
            spans[-1] = Span(epoch, last.first, last.count + 1)
        else:
            spans.append(Span(epoch, batch, 1))
    untouched = min(epochs, began.epochs), 0
    return LedgerRecord(epochs, began.batches, untouched, tuple(spans))
