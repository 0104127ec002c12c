"""What a worker's caller asks of its machine, and what programs yield to their shells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.messages import Group
from shoal.tables.spec import TableSpec


class PushOp(msgspec.Struct, frozen=True):
    """Values for `rows` of a table, or for the sorted int64 `keys` among them. Bytes, borrowed.

    Of a sparse table `rows` are all its slots, and `keys` uint64 in the order of their slots (any
    order will do where there is one server).
    """

    table: str
    rows: KeyRange
    values: memoryview
    keys: memoryview | None = None


class Answer:
    """Where an answer of any size goes: `data`, memory of its own, once it has come."""

    __slots__ = ("__weakref__", "data")

    def __init__(self) -> None:
        self.data = memoryview(b"")

    def take(self, data: memoryview) -> None:
        """It has come."""
        self.data = data


class PullOp(msgspec.Struct, frozen=True):
    """Rows of a table into `out` (bytes).

    Of a custom table: a call (`tables.calls`) in place of the keys, to the server whose slots
    `rows` are, and an `Answer`.
    """

    table: str
    rows: KeyRange
    out: memoryview | Answer
    keys: memoryview | None = None


class Exchange(msgspec.Struct, frozen=True):
    """Push, then advance, then pull: any of the three. To ask the same again, reuse the object.

    advance:    whether this worker has finished its present clock
    last:       ... and every later one
    after:      requests that have to be resolved first
    timeout_s:  the first expiry asks for a resend, the second gives up; None: the option's
    route:      what a router has made of it, and keeps here
    """

    pushes: tuple[PushOp, ...] = ()
    advance: bool = False
    pulls: tuple[PullOp, ...] = ()
    after: tuple[int, ...] = ()
    timeout_s: float | None = None
    weight: float = 1.0
    lr: float | None = None
    assign: bool = False
    last: bool = False
    route: Any = None


class Reduce(msgspec.Struct, frozen=True):
    """Sum a tensor over all workers, in place; each asks for the same ones in the same order.

    values:  its bytes, borrowed
    add:     add(into, other): into += other, which are whole elements
    finish:  finish(into, workers), what is done to each part of the whole sum, on one of them
    """

    values: memoryview
    add: Callable[[memoryview, memoryview], None]
    finish: Callable[[memoryview, int], None] = lambda into, workers: None


class DeclareTable(msgspec.Struct, frozen=True):
    spec: TableSpec


class EnterBarrier(msgspec.Struct, frozen=True):
    name: str
    groups: tuple[Group, ...] = ("workers",)


class TakeLease(msgspec.Struct, frozen=True):
    """Resolved with the batches that this worker is to do next, a `Leased`."""

    epochs: int
    batches: int
    patient: bool = False


class GoAway(msgspec.Struct, frozen=True):
    """A server is to leave, once its rows are on others."""


class FinishWork(msgspec.Struct, frozen=True):
    pass


class AwaitView(msgspec.Struct, frozen=True):
    """Resolved with the first view that this worker is in."""


class Cancel(msgspec.Struct, frozen=True):
    request_id: int


class Start(msgspec.Struct, frozen=True):
    """What a program yields to ask without waiting; it is sent a ticket."""

    request: Exchange


class Wait(msgspec.Struct, frozen=True):
    """What a program yields to wait for a ticket; it is sent the outcome."""

    ticket: int
