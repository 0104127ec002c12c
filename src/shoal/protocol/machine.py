"""What a machine is: events in, effects out, one mutator.

The shells (`runtime.node`, `sim.world`) call `arriving` when a header has come in and its payload
has not, `handle` for everything else, and `handle(Ticked())` when `deadline()` has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from shoal.errors import InvariantBroken, ShoalError
from shoal.keys import KeyRange
from shoal.protocol.messages import Message
from shoal.protocol.messages.describing import describe
from shoal.protocol.views import NodeId
from shoal.tables.spec import TableSpec

Buffers = tuple[memoryview, ...]


# ---------------------------------------------------------------------------- events


class Received(msgspec.Struct, frozen=True):
    """A message came in. `payload` is the sink it filled; None where it was discarded.

    Where the sink is filled by view, also each time that another view of it is full.
    """

    sender: NodeId
    message: Message
    payload: Sink | None = None


class Ticked(msgspec.Struct, frozen=True):
    """The machine's `deadline()` has passed."""


class PeerLost(msgspec.Struct, frozen=True):
    """The connection to a node broke: a hint, no proof of its death."""

    node: NodeId


class Asked(msgspec.Struct, frozen=True):
    """The shell's own caller wants something; answered by `Resolve(request_id, ...)`."""

    request_id: int
    request: Any


Event = Received | Ticked | PeerLost | Asked


# ---------------------------------------------------------------------------- effects


class CopyOnWriteGuard:
    """Live rows in messages that have not left yet.

    Whoever keeps some of them says how it would copy them. Before the rows change they are
    recalled; most have left by then, and nothing is copied.
    """

    __slots__ = ("borrowers",)

    def __init__(self) -> None:
        self.borrowers: list[Callable[[], None]] = []

    def keep(self, copy: Callable[[], None]) -> None:
        """Some are kept: call `copy` before they change."""
        if copy not in self.borrowers:
            self.borrowers.append(copy)

    def recall(self) -> None:
        """They are about to change."""
        if self.borrowers:
            for copy in self.borrowers:
                copy()
            self.borrowers.clear()


class Send(msgspec.Struct, frozen=True):
    """Send `message` and the bytes of `buffers` to a node.

    guard: the buffers are live rows, borrowed until it is recalled. Otherwise they are borrowed
    until the request that they belong to is resolved.
    """

    to: NodeId
    message: Message
    buffers: Buffers = ()
    guard: CopyOnWriteGuard | None = None


class Detach(msgspec.Struct, frozen=True):
    """What waits to be sent to a node borrows its buffers no longer: they are the caller's again,
    and what has not left yet leaves from copies."""

    to: NodeId


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended: applied, refused (with the reason) or unknown (timed out, cancelled).

    clock_min:     the slowest worker's clock that the answering servers saw, or -1
    round_weight:  total weight of the pushes in the round before the read clock, or -1
    value:         what the request asked for, where that is not rows (a view, a rank)
    """

    error: ShoalError | None = None
    clock_min: int = -1
    round_weight: float = -1.0
    value: Any = None


class Resolve(msgspec.Struct, frozen=True):
    """The answer to `Asked(request_id, ...)`."""

    request_id: int
    outcome: Outcome


class Persist(msgspec.Struct, frozen=True):
    """Make `record` this node's journal; later effects wait until it is durable."""

    record: bytes


class Save(msgspec.Struct, frozen=True, eq=False):
    """Write rows down, which are nobody else's: all rounds below `clock` are in them.

    table, spec, rows:  which, of the run's `tables`
    state:              tensors by name
    since:              ... of what has changed since that clock, of which there is a file; or -1
    """

    clock: int
    table: int
    spec: TableSpec
    rows: KeyRange
    state: dict[str, Any]
    tables: tuple[str, ...]
    since: int = -1


class Note(msgspec.Struct, frozen=True):
    """Something worth counting or logging; checkers and event logs listen."""

    kind: str
    fields: dict[str, Any] = {}


class Stop(msgspec.Struct, frozen=True):
    """This machine has ended: in order, or with an error."""

    error: ShoalError | None = None


Effect = Send | Detach | Resolve | Persist | Save | Note | Stop
Effects = list[Effect]


# ---------------------------------------------------------------------------- arrival


class Sink:
    """Where a payload goes, and who may take that permission back.

    `views` are consecutive destinations. After `revoke()` the transport finds scratch memory in
    their place, so that a late payload cannot land in a buffer that has a new owner.

    by_view:  who gave it wants to see each view when it is full, before the next is begun: they may
              be the same memory
    landed:   how many are full, where it is filled by view
    lends:    ... and while one is seen it may be other memory, in which its bytes have come: of a
              peer that may write there, so nothing but values is to be read from it
    """

    __slots__ = ("by_view", "context", "landed", "lends", "nbytes", "revoked", "views")

    def __init__(
        self,
        views: list[memoryview],
        context: Any = None,
        by_view: bool = False,
        lends: bool = False,
    ) -> None:
        self.lends = lends
        self.views = views
        self.nbytes = 0
        for view in views:
            self.nbytes += view.nbytes
        self.context = context
        self.revoked = False
        self.by_view = by_view
        self.landed = 0

    @property
    def whole(self) -> bool:
        return not self.by_view or self.landed == len(self.views)

    def fill(self, data: memoryview, start: int = 0) -> None:
        """Take the whole payload from `data`, where it begins at `start`. Not by view."""
        for view in self.views:
            stop = start + view.nbytes
            view[:] = data[start:stop]
            start = stop

    def filling(self, data: memoryview) -> Iterator[None]:
        """Take the whole payload from `data`, stopping wherever the sink is to be delivered."""
        if not self.by_view:
            self.fill(data)
            yield
            return
        start = 0
        for view in self.views:
            stop = start + view.nbytes
            view[:] = data[start:stop]
            start = stop
            self.landed += 1
            yield

    def revoke(self) -> None:
        self.revoked = True
        self.views = []


class Discard(msgspec.Struct, frozen=True):
    """The payload is drained without being looked at."""

    reason: str


Arrival = Sink | Discard


class EventTime:
    """When the present event happens, for all parts of a machine."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def set(self, now: float) -> None:
        self.now = now


class Machine(Protocol):
    """The contract of every role. See the module's docstring."""

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival: ...
    def handle(self, event: Event, now: float) -> Effects: ...
    def deadline(self) -> float | None: ...
    def check(self) -> None: ...
    def address_of(self, node: NodeId) -> str | None: ...


class EventTrace:
    """The last events of a machine in a fixed ring; formatted only when an error needs them."""

    __slots__ = ("_ring", "add")

    def __init__(self, length: int = 24) -> None:
        self._ring: deque[tuple[float, str, Any]] = deque(maxlen=length)
        self.add = self._ring.append  # (now, who, what)

    def lines(self) -> tuple[str, ...]:
        return tuple(f"{now:.6f} {who}: {_show(what)}" for now, who, what in self._ring)

    def broken(self, message: str) -> InvariantBroken:
        return InvariantBroken(message, self.lines())


def _show(what: Any) -> str:
    return what if isinstance(what, str) else describe(what)
