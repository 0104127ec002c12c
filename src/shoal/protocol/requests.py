"""Requests of a worker's caller to its machine, which strategies' programs yield."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.messages.membership import Group
from shoal.tables.spec import TableSpec


class PushOp(msgspec.Struct, frozen=True):
    """Push values for `rows` of a table, or for the sorted int64 `keys` among them.

    All buffers are bytes and borrowed. For a sparse table `rows` are all its hash slots, and `keys`
    are uint64, which are sorted by hash slot if several servers have them.

    Attributes:
        ordered: whether the keys of a sparse table are in the order of their hash slots.
        slots: the slots of a dense table's access method, each of as many bytes as `values`, to
            assign the whole state of the rows.
        lr: the learning rate in place of that of the table.
        sizes: the bytes of each encoded fragment of `rows`, of which `values` consists; empty if
            the values are not encoded.
        decodes: whether `values` become what servers decode, if the table has a codec: for a worker
            that has to do the opposite of what they do.
    """

    table: str
    rows: KeyRange
    values: memoryview
    keys: memoryview | None = None
    ordered: bool = False
    slots: tuple[memoryview, ...] = ()
    lr: float | None = None
    sizes: tuple[int, ...] = ()
    decodes: bool = False


class Answer:
    """Receives an answer of any size: `data` has memory of its own once it has arrived."""

    __slots__ = ("__weakref__", "data")

    def __init__(self) -> None:
        self.data = memoryview(b"")

    def take(self, data: memoryview) -> None:
        """Store the answer, which has arrived."""
        self.data = data


class Scan(Answer):
    """Receives all rows of a range of a sparse table's hash slots, in a piece for each part."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[memoryview] = []

    def take(self, data: memoryview) -> None:
        """Add a piece of a server's part; a part that is cut for other servers has several."""
        self.pieces.append(data)


class PullOp(msgspec.Struct, frozen=True):
    """Pull rows of a table into `out` (bytes), or each row of a sparse table into its own view.

    For a custom table `keys` is a call (`tables.custom.calls`) to the server that has the hash
    slots `rows`, and `out` is an `Answer`. For a sparse table without keys `out` is a `Scan` of the
    hash slots `rows`.

    Attributes:
        ordered: whether the keys of a sparse table are in the order of their hash slots.
        slots: the destinations of the slots of a dense table's access method, each of as many bytes
            as `out`.
        exact: whether the rows come as they are, although the table has a codec for pulls.
        sizes: the bytes of each encoded fragment of `rows`, of which `out` takes all; empty if the
            rows come as they are.
    """

    table: str
    rows: KeyRange
    out: memoryview | list[memoryview] | Answer
    keys: memoryview | None = None
    ordered: bool = False
    slots: tuple[memoryview, ...] = ()
    exact: bool = False
    sizes: tuple[int, ...] = ()


class Exchange(msgspec.Struct, frozen=True):
    """Push, then advance, then pull: any of the three. Reuse the object to repeat the exchange.

    Attributes:
        pushes: the pushes.
        advance: whether this worker has finished its current clock.
        pulls: the pulls, which come after the pushes and the advance.
        after: the ids of requests that have to be resolved first.
        timeout_s: the seconds until an urgent probe; after twice this time the request fails. None
            for the worker's option.
        weight: the weight of the pushes in their round, > 0.
        assign: whether the pushed rows are written without the access method.
        last: whether this worker has finished every later clock as well.
        updates: the number of updates that rows which are assigned with their slots have had.
        at: the clock to which a lower clock of this worker is raised first.
        landed: the function that is called when all is done, and returns None, or the exchange
            without which it is not: pulls of rows that are still missing, at the clock of its own.
        route: the cache of the router that has cut this exchange.
    """

    pushes: tuple[PushOp, ...] = ()
    advance: bool = False
    pulls: tuple[PullOp, ...] = ()
    after: tuple[int, ...] = ()
    timeout_s: float | None = None
    weight: float = 1.0
    assign: bool = False
    last: bool = False
    updates: int = 0
    at: int = 0
    landed: Callable[[], Exchange | None] | None = None
    route: Any = None


class Reduce(msgspec.Struct, frozen=True):
    """Sum a tensor over all workers, in place. All workers ask for the same in the same order.

    Attributes:
        values: the bytes of the tensor, borrowed.
        add: the function add(into, other) that adds whole elements: into += other.
        finish: the function finish(into, workers) that is applied to each part of the sum, on one
            worker.
    """

    values: memoryview
    add: Callable[[memoryview, memoryview], None]
    finish: Callable[[memoryview, int], None] = lambda into, workers: None


class Gather(msgspec.Struct, frozen=True):
    """Take the bytes of all workers, of one length. All workers ask for the same in the same order.

    Resolved with the bytes of all workers in one memory, by rank.

    Attributes:
        values: the bytes of this worker, copied at once.
    """

    values: memoryview


class NeighbourExchange(msgspec.Struct, frozen=True):
    """Send values to this worker's neighbours, and take theirs. Resolved with a `Neighbourhood`.

    Attributes:
        name: the name that tells exchanges of several models apart; the same on all workers.
        graph: the graph of the neighbours: "complete" (every other worker), or "ring" (the
            workers of the next higher and lower rank).
        buffers: the values, copied at once; none are sent if it is empty.
        ordered: whether neighbours get and take all versions in order; otherwise the newest one, as
            often as the link allows, and once.
        wait: the condition to wait for: "all" (a version of each neighbour that is as late as this
            worker's last one), "any" (a version that this worker has not taken yet, or another
            view), or "none".
        hurries: whether neighbours that were late for an earlier exchange, if there is a time-out,
            are not waited for again until they have caught up.
        phase: the phase of this worker; versions of an earlier phase are ignored.
        clocks: the clocks that are sent with the values (`NeighbourPiece`).
    """

    name: str
    graph: Literal["complete", "ring"]
    buffers: tuple[memoryview, ...] = ()
    ordered: bool = True
    wait: Literal["all", "any", "none"] = "all"
    hurries: bool = True
    phase: int = 0
    clocks: Mapping[int, int] = {}


class NeighbourValues(msgspec.Struct, frozen=True):
    """A neighbour's values, which stay as they are until the next `NeighbourExchange`.

    Attributes:
        rank: the rank of the neighbour.
        buffers: the values.
        clocks: the clocks that it has sent with the values.
    """

    rank: int
    buffers: tuple[memoryview, ...]
    clocks: Mapping[int, int]


class Neighbourhood(msgspec.Struct, frozen=True):
    """The result of a `NeighbourExchange`.

    Attributes:
        values: the values of the neighbours, by rank. In an ordered exchange every neighbour that
            is not late has values. A late neighbour has values only if a version has arrived that
            this worker had not taken yet; so has every neighbour in an unordered exchange.
        degree: the number of neighbours.
        ranks: the ranks of all workers in the view that have not left.
    """

    values: tuple[NeighbourValues, ...]
    degree: int
    ranks: tuple[int, ...]


class Forget(msgspec.Struct, frozen=True):
    """Forget what codecs have left out of this worker's pushes to rows that another one assigns.

    No server is asked.
    """

    rows: tuple[tuple[str, KeyRange], ...]


class DeclareTable(msgspec.Struct, frozen=True):
    """Declare a table; resolved when the view has it."""

    spec: TableSpec


class EnterBarrier(msgspec.Struct, frozen=True):
    """Enter a barrier; resolved when all members of `groups` have entered it."""

    name: str
    groups: tuple[Group, ...] = ("workers",)


class TakeLease(msgspec.Struct, frozen=True):
    """Ask for batches; resolved with a `Leased`."""

    epochs: int
    batches: int
    patient: bool = False


class SaveCheckpoint(msgspec.Struct, frozen=True):
    """Ask for a checkpoint; resolved with a `CheckpointPlanned` once a view names its clock."""


class GoAway(msgspec.Struct, frozen=True):
    """Ask a server to leave after its shards have migrated."""


class FinishWork(msgspec.Struct, frozen=True):
    """Tell the scheduler that this worker has finished."""


class AbortRun(msgspec.Struct, frozen=True):
    """Tell the scheduler to end this worker's group with an error."""

    reason: str


class AwaitView(msgspec.Struct, frozen=True):
    """Wait for the first view that has this worker; resolved with the view."""


class Cancel(msgspec.Struct, frozen=True):
    """Withdraw a request."""

    request_id: int


class Start(msgspec.Struct, frozen=True):
    """Yielded by a program to begin a request without waiting; the program is sent a ticket."""

    request: Exchange | DeclareTable | Reduce | Cancel


class Wait(msgspec.Struct, frozen=True):
    """Yielded by a program to wait for a ticket; the program is sent the outcome."""

    ticket: int
