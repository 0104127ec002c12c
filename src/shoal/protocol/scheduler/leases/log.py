"""The lease log: entries that say which batches were leased and done, stored with checkpoints.

A run that is resumed from a checkpoint does the batches that the log does not record as done at its
clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from shoal.protocol.scheduler.leases.ledger import LEASE_MOST, Granted, LedgerRecord, Span


class LedgerBegun(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The ledger that a run begins with, which continues another at `start_clock`."""

    record: LedgerRecord
    start_clock: int


class LeaseGranted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A lease of a run with these epochs, and batches per epoch."""

    epochs: int
    batches: int
    granted: Granted

    def __post_init__(self) -> None:
        span = self.granted.span
        inside = 0 <= span.epoch < self.epochs and 0 <= span.first <= self.batches - span.count
        if not inside or not 0 <= span.count <= LEASE_MOST or self.granted.clock < 0:
            raise ValueError(f"{span} is no lease of {self.batches} batches, {self.epochs} epochs")


class WorkerGone(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A worker ended after `done_clock` clocks. A later entry of the worker replaces this one."""

    incarnation: int
    done_clock: int


LogEntry = LedgerBegun | LeaseGranted | WorkerGone


class LeaseLog:
    """The contents of a lease log: which batches were done at which clock.

    An entry is durable before it takes effect, so that it may never have taken effect: then a later
    lease of the worker, at the same clock or an earlier one, replaces it.
    """

    def __init__(self, entries: Iterable[LogEntry]) -> None:
        self._began, self._start_clock = LedgerRecord(), 0
        self._leased: dict[tuple[int, int], tuple[int, int]] = {}  # by batch: incarnation, clock
        self._gone: dict[int, int] = {}
        self._latest: dict[int, Granted] = {}  # by incarnation
        for entry in entries:
            match entry:
                case LedgerBegun(record, start_clock):
                    self._began, self._start_clock = record, start_clock
                case LeaseGranted(epochs, batches, granted):
                    if not self._began.epochs:
                        self._began = LedgerRecord(epochs, batches)
                    self._grant(granted)
                case WorkerGone(incarnation, done_clock):
                    self._gone[incarnation] = done_clock

    def _grant(self, granted: Granted) -> None:
        worker = granted.incarnation
        before = self._latest.get(worker)
        if before is not None:
            for batch in _batches(before.after(granted.clock)):
                if self._leased.get(batch, (0, 0))[0] == worker:
                    del self._leased[batch]
        self._latest[worker] = granted
        for at, batch in enumerate(_batches(granted.span)):
            self._leased[batch] = worker, granted.clock + at

    def as_of(self, clock: int, epochs: int = 0) -> LedgerRecord:
        """Return the ledger at the time when all workers had finished `clock` clocks.

        Args:
            clock: the clock, counted with those of the runs that were continued.
            epochs: the epochs of the resumed run, if they differ; 0 for the same.
        """
        began = self._began
        done_at = {
            batch: self._start_clock + at
            for batch, (worker, at) in self._leased.items()
            if at < self._gone.get(worker, at + 1)
        }
        epochs = epochs or began.epochs
        # Epochs after the last leased one are left untouched, however many there are.
        untouched = max((number + 1 for number, _ in done_at), default=0)
        untouched = min(max(untouched, began.untouched[0] + bool(began.untouched[1])), epochs)
        done: dict[int, set[int]] = {}
        for (number, place), at in done_at.items():
            if at < clock:
                done.setdefault(number, set()).add(place)
        left = [
            piece
            for span in sorted(_undone(began, untouched))
            if span.epoch < epochs
            for piece in _without(span, done.get(span.epoch, ()))
        ]
        return LedgerRecord(epochs, began.batches, (untouched, 0), tuple(_joined(left)))


def _batches(span: Span) -> list[tuple[int, int]]:
    return [(span.epoch, span.first + at) for at in range(span.count)]


def _undone(record: LedgerRecord, epochs: int) -> list[Span]:
    """Return the batches of the first `epochs` epochs that are not granted."""
    epoch, first = record.untouched
    rest = [Span(each, 0, record.batches) for each in range(epoch + bool(first), epochs)]
    begun = [Span(epoch, first, record.batches - first)] if first else []
    return [*record.returned, *begun, *rest]


def _without(span: Span, batches: Collection[int]) -> Iterator[Span]:
    """Yield the parts of a span without these batches of its epoch."""
    first, stop = span.first, span.first + span.count
    for batch in sorted(each for each in batches if first <= each < stop):
        if batch > first:
            yield Span(span.epoch, first, batch - first)
        first = batch + 1
    if first < stop:
        yield Span(span.epoch, first, stop - first)


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return the spans, joined where one begins at the end of the one before."""
    found: list[Span] = []
    for each in spans:
        last = found[-1] if found else None
        if last is not None and (each.epoch, each.first) == (last.epoch, last.first + last.count):
            found[-1] = Span(last.epoch, last.first, last.count + each.count)
        else:
            found.append(each)
    return found
