"""State machines: events in, effects out, one mutator.

The shells (`node.node`, `simulation.world`) call `arriving` when a header has arrived and its
payload has not, `handle` for every event, and `handle(Ticked())` when `deadline()` has passed.

Before `handle(Received(...))` they call `problem_of`, which changes nothing. So an error in
`arriving` or `problem_of` is the peer's fault and closes its connection; an error in `handle` is
this machine's fault and stops it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from shoal.errors import InvariantBroken, ShoalError
from shoal.keys import KeyRange
from shoal.protocol.messages.base import Message
from shoal.protocol.views import NodeId, Role
from shoal.tables.spec import TableSpec

Buffers = tuple[memoryview, ...]


# ---------------------------------------------------------------------------- events


class Received(msgspec.Struct, frozen=True):
    """A message has arrived. `payload` is the filled sink; None if it was discarded or is empty.

    If the sink is filled by view, the event occurs each time that another view of it is full.
    """

    sender: NodeId
    message: Message
    payload: Sink | None = None


class Ticked(msgspec.Struct, frozen=True):
    """The machine's `deadline()` has passed."""


class PeerLost(msgspec.Struct, frozen=True):
    """The connection to a node broke: a hint, not a proof of its death.

    Attributes:
        closed: whether the peer has closed or reset the connection. Otherwise it timed out or was
            replaced, which says nothing about the peer's process.
    """

    node: NodeId
    closed: bool = True


class Asked(msgspec.Struct, frozen=True):
    """A request of the shell's caller; answered by `Resolve(request_id, ...)`."""

    request_id: int
    request: Any


class Offloaded(msgspec.Struct, frozen=True, eq=False):
    """The work of `Offload(ticket, ...)` is done: its result, or its error."""

    ticket: int
    value: Any = None
    error: ShoalError | None = None


class HasRoom(msgspec.Struct, frozen=True):
    """The answer to `AwaitRoom(node)`: few bytes to the node are unsent, or the node is gone."""

    node: NodeId


Event = Received | Ticked | PeerLost | Asked | Offloaded | HasRoom


# ---------------------------------------------------------------------------- effects


class CopyOnWriteGuard:
    """Copy-on-write for live rows in messages that are not sent yet.

    A transport that keeps such rows registers a function that copies them. Before the rows change
    the guard calls these functions. Most messages have been sent by then, and nothing is copied.
    """

    __slots__ = ("borrowers",)

    def __init__(self) -> None:
        self.borrowers: list[Callable[[], None]] = []

    def keep(self, copy: Callable[[], None]) -> None:
        """Register `copy`, which the guard calls before the rows change."""
        if copy not in self.borrowers:
            self.borrowers.append(copy)

    def recall(self) -> None:
        """Call the registered functions, because the rows are about to change."""
        if self.borrowers:
            for copy in self.borrowers:
                copy()
            self.borrowers.clear()


class Send(msgspec.Struct, frozen=True):
    """Send `message` and the bytes of `buffers` to a node.

    Attributes:
        guard: the guard of live rows, which are borrowed until it recalls them. Buffers without a
            guard are borrowed until their request is resolved.
        cumulative: whether the message says all that an earlier one of its class to the node said.
            It is sent at the end of the turn, behind what else is sent meanwhile, and only the
            latest is.
    """

    to: NodeId
    message: Message
    buffers: Buffers = ()
    guard: CopyOnWriteGuard | None = None
    cumulative: bool = False


class Detach(msgspec.Struct, frozen=True):
    """Copy the buffers of unsent messages to a node: they belong to the caller again."""

    to: NodeId


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended: applied, refused (with the reason) or unknown (timed out, cancelled).

    Attributes:
        error: the error of a failed request; None if it was applied.
        clock_min: the clock of the slowest worker at the answering servers, or -1.
        clock: the clock of this worker, which its next push has, or -1.
        round_weight: the total weight of the pushes in the round before the read clock, or -1.
        updates: the largest number of updates of a fragment that was pulled with its slots, or -1.
        value: the result of a request that does not pull rows (a view, a lease).
        uncounted: of a failed request, the rows whose push no server has counted or will count:
            (table's full name, rows).
    """

    error: ShoalError | None = None
    clock_min: int = -1
    round_weight: float = -1.0
    value: Any = None
    updates: int = -1
    clock: int = -1
    uncounted: tuple[tuple[str, KeyRange], ...] = ()


class Resolve(msgspec.Struct, frozen=True):
    """The answer to `Asked(request_id, ...)`."""

    request_id: int
    outcome: Outcome


class Persist(msgspec.Struct, frozen=True):
    """Write `record` to this node's journal; later effects wait until it is durable.

    Attributes:
        reserve: whether there must also be room for another record, for which members will wait.
    """

    record: bytes
    reserve: bool = False


class Append(msgspec.Struct, frozen=True):
    """Add an entry to this node's lease log; later effects wait until it is durable."""

    entry: bytes


class Save(msgspec.Struct, frozen=True, eq=False):
    """Write a shard's rows to a checkpoint: they have all rounds below `clock`.

    Attributes:
        table: the number of the table among the run's `tables`.
        rows: the rows of the shard.
        state: the tensors of the shard by name, copies that belong to this effect.
        since: the clock of the previous file if `state` has only the changes since; -1 for all.
    """

    clock: int
    table: int
    spec: TableSpec
    rows: KeyRange
    state: dict[str, Any]
    tables: tuple[str, ...]
    since: int = -1


class Offload(msgspec.Struct, frozen=True, eq=False):
    """Do `work` outside of the loop, which must not wait for it; answered by `Offloaded`.

    It shares no state with the machine.
    """

    ticket: int
    work: Callable[[], Any]


class AwaitRoom(msgspec.Struct, frozen=True):
    """Report with `HasRoom` when few bytes to a node are unsent.

    If the node reads nothing for a while, its connection is closed, which frees the unsent bytes.
    """

    to: NodeId


class HangUp(msgspec.Struct, frozen=True):
    """Close the connection to a node that has left, unless it has read everything that was sent.

    The rest is dropped: the buffers that were borrowed for it belong to their owners again.
    """

    to: NodeId


class Redial(msgspec.Struct, frozen=True):
    """Open a second connection to a peer, because nothing arrives on the present one any more.

    address:  the address where the peer listens; empty for the scheduler
    """

    to: NodeId
    address: str


class Note(msgspec.Struct, frozen=True):
    """A report for event logs, counters and checkers; it changes nothing."""

    @property
    def kind(self) -> str:
        """The kind of the note's lines in the event log and in traces."""
        return str(self.__struct_config__.tag)


class Unexpected(Note, frozen=True, tag="unexpected"):
    """A message is ignored, because no member sends it to a machine in this state."""

    message: str


class Stop(msgspec.Struct, frozen=True):
    """This machine has ended: in order, or with an error."""

    error: ShoalError | None = None


Effect = (
    Send | Detach | Resolve | Persist | Append | Save | Offload | AwaitRoom | HangUp | Redial
    | Note | Stop
)  # fmt: skip
Effects = list[Effect]


# ---------------------------------------------------------------------------- arrival


class Loan:
    """The use of a peer's memory, which ends when nothing refers to the loan any more.

    ends:  called then, perhaps by the collector of garbage, in any thread
    """

    __slots__ = ("__weakref__", "ends")

    def __init__(self) -> None:
        self.ends: list[Callable[[], None]] = []

    def __del__(self) -> None:
        for end in self.ends:
            end()


class Sink:
    """Destination of a payload, which its owner may revoke.

    `views` are consecutive destinations. After `revoke()` the transport writes to scratch memory,
    so that a late payload cannot overwrite a buffer that has a new owner.

    Attributes:
        by_view: whether each view is delivered when it is full, before the next one is begun; the
            views may share memory.
        landed: the number of full views, if delivered by view.
        lends: the number of views, from the first on, of which each may be replaced, while it is
            delivered, by the shared memory in which its bytes have arrived. The peer may write
            there, so that only values may be read; and only until the delivery ends.
        borrows: whether views may be replaced for good by memory of the peer, which cannot be
            written to here. The peer leaves it alone until the loan ends, or its request.
        loan: the loan of that memory, if any view was replaced; who uses the views holds it.
    """

    __slots__ = (
        *("by_view", "borrows", "context", "landed", "lends", "loan", "nbytes"),
        *("revoked", "views"),
    )

    def __init__(
        self,
        views: list[memoryview],
        context: Any = None,
        by_view: bool = False,
        lends: int = 0,
        borrows: bool = False,
    ) -> None:
        self.lends = lends
        self.borrows = borrows
        self.loan: Loan | None = None
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
        return not self.by_view or self.revoked or self.landed == len(self.views)

    def fill(self, data: memoryview, start: int = 0) -> None:
        """Copy the payload from `data`, where it begins at `start`, unless the sink is by view."""
        for view in self.views:
            stop = start + view.nbytes
            view[:] = data[start:stop]
            start = stop

    def borrow(self, number: int, view: memoryview, end: Callable[[], None]) -> None:
        """Replace a view by memory of the peer; `end` is called when the loan ends."""
        if self.loan is None:
            self.loan, self.views = Loan(), [*self.views]  # the list may be its owner's
        self.views[number] = view
        self.loan.ends.append(end)

    def take_loan(self) -> Loan | None:
        """Hand the loan over: the memory is lent as long as the caller holds it."""
        loan, self.loan = self.loan, None
        return loan

    def revoke(self) -> None:
        self.revoked = True
        self.views = []
        self.loan = None


class Discard(msgspec.Struct, frozen=True):
    """The payload is read and dropped."""

    reason: str


Arrival = Sink | Discard


class EventTime:
    """The time of the present event, for all parts of a machine."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def set(self, now: float) -> None:
        self.now = now


class Machine(Protocol):
    """The contract of every role's state machine; see the module's docstring."""

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival: ...
    def problem_of(self, received: Received) -> str: ...
    def handle(self, event: Event, now: float) -> Effects: ...
    def deadline(self) -> float | None: ...
    def check(self) -> None: ...
    def address_of(self, node: NodeId) -> str | None: ...
    def role_of(self, node: NodeId) -> Role | None: ...


class EventTrace:
    """The last events of a machine in a ring buffer, formatted only when an error needs them."""

    __slots__ = ("_ring", "add")

    def __init__(self, length: int = 24) -> None:
        self._ring: deque[tuple[float, str, Any]] = deque(maxlen=length)
        self.add = self._ring.append  # (now, who, what)

    def lines(self) -> tuple[str, ...]:
        return tuple(f"{now:.6f} {who}: {_show(what)}" for now, who, what in self._ring)

    def broken(self, message: str) -> InvariantBroken:
        return InvariantBroken(message, self.lines())


def _show(what: Any) -> str:
    return what if isinstance(what, str) else what.describe()
