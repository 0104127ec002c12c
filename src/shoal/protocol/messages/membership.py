"""Messages between members and the scheduler."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.keys import KeyRange
from shoal.protocol.limits import (
    NUMBER_MAX,
    PARTS_MAX,
    Launch,
    Name,
    Number,
    Rank,
    RankOrAny,
    Seconds,
    Text,
)
from shoal.protocol.messages.base import Message
from shoal.protocol.views import NO_VIEW, Role, View, ViewId
from shoal.tables.spec import TableSpec

Group = Literal["scheduler", "servers", "workers"]
Positive = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
TOO_SLOW = "dropped"  # how a worker is lost if the others have waited too long for it
MEMBERS_SHOWN = 100  # members of a view that a line names
Ranges = Annotated[tuple[KeyRange, ...], Meta(max_length=PARTS_MAX)]


def _for_view(message: Message, view: ViewId) -> str:
    return f"{type(message).__name__} for {view[0]}.{view[1]}"


class Join(Message, frozen=True):
    """Ask to become a member.

    Attributes:
        launch: the id that its host gave to this start of its process; "" if nobody watches it.
        incarnation: the granted incarnation of a node without a view yet; else 0.
        memory: the bytes that a server has for tables; 0 if there is no limit.
    """

    node: Name
    role: Role
    address: Name
    host: Name
    rank: RankOrAny = -1  # requested; -1 for any
    launch: Launch = ""
    group: Name = ""  # the group of a worker
    group_size: Number = 0
    incarnation: Number = 0
    memory: Number = 0


class Joined(Message, frozen=True):
    """The sender is admitted. `run` is the run's name."""

    senders = ("scheduler",)

    incarnation: Number
    rank: Rank
    run: Name = ""


class NotJoined(Message, frozen=True):
    """The sender is not admitted. `full`: because all members have joined already."""

    senders = ("scheduler",)

    reason: Text
    full: bool = False


class Heartbeat(Message, frozen=True):
    """The sender's machine lives, and has adopted `view`."""

    incarnation: Number
    view: ViewId


class HeartbeatSeen(Message, frozen=True):
    """Answer to a heartbeat.

    Attributes:
        finished: the names of the finished workers in the receiver's group; none for a server.
    """

    senders = ("scheduler",)

    finished: Annotated[tuple[Name, ...], Meta(max_length=1 << 16)] = ()


class ProcessHeartbeat(Message, frozen=True):
    """The process of a member lives. Sent by a second thread, on a connection of its own.

    Attributes:
        node: the member.
        turns: the number of turns of its loop; a loop without turns is busy, or hung.
        at: the place of the loop in the code, if it has made no turn since the last heartbeat.
        in_user_code: whether that place is in a user's code, which may take any time.
    """

    node: Name
    incarnation: Number
    turns: Number
    at: Name = ""
    in_user_code: bool = False


class Busy(Message, frozen=True):
    """To workers: the loop of a server makes no turns, and its process lives.

    Attributes:
        server: the name of the server.
        at: the place of its loop in the code.
    """

    senders = ("scheduler",)

    server: Name
    at: Name


class Drain(Message, frozen=True):
    """View `view` is prepared: admit no requests, and report when all replicas have everything.

    Attributes:
        seconds: the time after which requests are admitted again if no view has come.
    """

    senders = ("scheduler",)

    view: ViewId
    seconds: Seconds


class Drained(Message, frozen=True):
    """All operations of which this server is the head are on every server of their chains."""

    senders = ("server",)

    view: ViewId


class Freeze(Message, frozen=True):
    """View `view` is prepared: promise to act in no earlier view.

    Attributes:
        known: the newest view that the scheduler knows to be adopted.
    """

    senders = ("scheduler",)

    view: ViewId
    known: ViewId = NO_VIEW

    def describe(self) -> str:
        return _for_view(self, self.view)


class GroupProgress(msgspec.Struct, frozen=True, array_like=True):
    """Progress of a worker group, as a server knows it.

    Attributes:
        open_round: the first round that has not closed here.
        replayed: the first round that has not closed at the heads of this server's chains.
        closed: the clock below which all pushes in its rows are.
        waits: whether a push waits for its round to close, here or at another head.
    """

    group: Name = ""
    open_round: Number = 0
    replayed: Number = 0
    closed: Number = 0
    waits: bool = False


class Frozen(Message, frozen=True):
    """The promise that `Freeze` asks for, with this server's clocks.

    Attributes:
        clocks: the (incarnation, clock) of each worker.
        groups: the progress of each worker group.
        drained: whether no operation has arrived since the server drained for this view.
        adopted: the view of this server, if the scheduler does not know that it is adopted.
        folder: the folder for the checkpoints of this server; empty if it writes none.
    """

    senders = ("server",)

    view: ViewId
    clocks: Annotated[tuple[tuple[Number, Number], ...], Meta(max_length=PARTS_MAX)]
    groups: Annotated[tuple[GroupProgress, ...], Meta(max_length=PARTS_MAX)] = ()
    drained: bool = False
    adopted: View | None = None
    folder: str = ""

    def describe(self) -> str:
        return _for_view(self, self.view)

    def standing(self, group: str) -> GroupProgress:
        """Return the progress of a group."""
        return next((each for each in self.groups if each.group == group), GroupProgress(group))


class OpenShards(Message, frozen=True):
    """Open these shards, which the next view may place on this server.

    The server drops all other opened shards that are not in a view.

    Attributes:
        number: the number of this list; a later list replaces it.
        view: the current view.
        tables: the tables, with the rows of each shard.
    """

    senders = ("scheduler",)

    number: ViewId
    view: ViewId
    tables: Annotated[tuple[tuple[TableSpec, Ranges], ...], Meta(max_length=PARTS_MAX)]


class ShardsOpened(Message, frozen=True):
    """The state of a list of shards to open.

    Attributes:
        number: the number of the list.
        opened: the rows of each open shard, by table.
        failed: the (table, rows, reason) of each shard that cannot be opened.
    """

    senders = ("server",)

    incarnation: Number
    number: ViewId
    opened: Annotated[tuple[tuple[Name, Ranges], ...], Meta(max_length=PARTS_MAX)] = ()
    failed: Annotated[tuple[tuple[Name, KeyRange, Text], ...], Meta(max_length=PARTS_MAX)] = ()


class RefuseView(Message, frozen=True):
    """Between servers: refuse `view`, for which the sender is frozen; the scheduler is silent.

    Attributes:
        adopted: the newest view that the sender knows to be adopted.
    """

    senders = ("server",)

    view: ViewId
    adopted: ViewId

    def describe(self) -> str:
        return _for_view(self, self.view)


class ViewRefused(Message, frozen=True):
    """The sender will adopt no view up to `view` from the scheduler, and has adopted `adopted`.

    Answer to RefuseView; and to Freeze and NewView, if the view was refused before.
    """

    senders = ("server",)

    view: ViewId
    adopted: ViewId

    def describe(self) -> str:
        return _for_view(self, self.view)


class Synced(Message, frozen=True):
    """A syncing replica has all rows of these shards: (table, first row, since which view)."""

    senders = ("server",)

    incarnation: Number
    placements: Annotated[tuple[tuple[Number, Number, Number], ...], Meta(max_length=PARTS_MAX)]


class WaitTimes(Message, frozen=True):
    """How long requests have waited for workers at this server: (incarnation, seconds so far)."""

    senders = ("server",)

    incarnation: Number
    seconds: Annotated[tuple[tuple[Number, Seconds], ...], Meta(max_length=PARTS_MAX)]


class Leave(Message, frozen=True):
    """This server leaves after its shards have migrated. Answered by End or LeaveRefused."""

    senders = ("server",)

    incarnation: Number


class LeaveRefused(Message, frozen=True):
    """The server cannot leave, with the reason."""

    senders = ("scheduler",)

    reason: Text


class NewView(Message, frozen=True):
    """A view takes effect."""

    senders = ("scheduler", "server")

    view: View

    def problem(self) -> str:
        return self.view.problem()

    def describe(self) -> str:
        view = self.view
        members = " ".join(m.name for m in (*view.servers, *view.workers)[:MEMBERS_SHOWN])
        return f"NewView {view.term}.{view.number}: {members} ({view.reason})"


class Declare(Message, frozen=True):
    """Declare a table. Answered by a view that has it, or by NotDeclared."""

    senders = ("worker",)

    incarnation: Number
    spec: TableSpec


class NotDeclared(Message, frozen=True):
    """The table cannot be declared, with the reason."""

    senders = ("scheduler",)

    table: Name
    reason: Text


class BarrierArrival(Message, frozen=True):
    """The sender has entered barrier `name` for the `generation`-th time.

    It waits for the members of `groups`; among workers, for those of its own group.
    """

    incarnation: Number
    name: Name
    generation: Number
    groups: Annotated[tuple[Group, ...], Meta(max_length=8)]


class BarrierReleased(Message, frozen=True):
    """All members of the barrier have entered it."""

    senders = ("scheduler",)

    name: Name
    generation: Number


class Lease(Message, frozen=True):
    """Ask for batches from this clock on, one per clock; earlier leases are done.

    Attributes:
        epochs: the number of passes over the data.
        batches: the number of batches per epoch.
        patient: whether the worker waits for batches instead of getting an empty lease.
    """

    senders = ("worker",)

    incarnation: Number
    clock: Number
    epochs: Positive
    batches: Positive
    patient: bool = False


class Leased(Message, frozen=True):
    """Batches `[first, first + count)` of an epoch; count 0 for none now, `over` for no more."""

    senders = ("scheduler",)

    clock: Number
    epoch: Number
    first: Number
    count: Number
    over: bool


class NotLeased(Message, frozen=True):
    """The lease is refused, with the reason."""

    senders = ("scheduler",)

    reason: Text


class Finish(Message, frozen=True):
    """This member has finished its work, and the servers of the view have all its clocks.

    In a later view other servers may be heads, which have to hear the clocks again. A member says
    it also to confirm `End`, in any view.
    """

    incarnation: Number
    view: ViewId = NO_VIEW


class Finished(Message, frozen=True):
    """Answer to Finish."""

    senders = ("scheduler",)


class ConfirmRows(Message, frozen=True):
    """All workers have finished: does this server still hold its rows, in that view?"""

    senders = ("scheduler",)

    number: Number
    view: ViewId


class RowsConfirmed(Message, frozen=True):
    """The answer to ConfirmRows of this number: the server of this incarnation holds its rows.

    It has also taken all checkpoints that its view has promised.
    """

    senders = ("server",)

    incarnation: Number
    number: Number
    view: ViewId


class End(Message, frozen=True):
    """The run has ended.

    Attributes:
        error: the reason; empty if it has ended in order.
        kind: the kind of error: "lost": rows are gone; "dropped": the run goes on without this
            worker, which was too slow; "dead": it goes on without this member, which was declared
            dead.
    """

    senders = ("scheduler",)

    error: Text = ""
    kind: Literal["", "lost", "dropped", "dead"] = ""


class Abort(Message, frozen=True):
    """End the run with an error; from a worker of an attached group, that group only."""

    senders = ("worker",)

    reason: Text
