"""What members and the scheduler say to each other."""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.protocol.messages.base import Body
from shoal.protocol.views import NodeId, Role, View, ViewId
from shoal.tables.spec import TableSpec

Group = Literal["scheduler", "servers", "workers"]


class Join(Body, frozen=True, array_like=True, tag=True):
    node: NodeId
    role: Role
    address: str
    host: str
    rank: int = -1  # a wish; -1 for any
    process: int = 0  # its number on that host
    group: str = ""  # of a worker
    group_size: int = 0


class Joined(Body, frozen=True, array_like=True, tag=True):
    """`run`: its name, the same for all members and schedulers."""

    incarnation: int
    rank: int
    run: str = ""


class NotJoined(Body, frozen=True, array_like=True, tag=True):
    """full: because there are as many as there are to be."""

    reason: str
    full: bool = False


class Heartbeat(Body, frozen=True, array_like=True, tag=True):
    """`progress` counts what the node's loop has done, so that a hung loop is seen."""

    incarnation: int
    progress: int
    view: ViewId


class HeartbeatSeen(Body, frozen=True, array_like=True, tag=True):
    progress: int


class Drain(Body, frozen=True, array_like=True, tag=True):
    """The scheduler prepares view `view`: take no requests, and say when all is on all replicas."""

    view: ViewId


class Drained(Body, frozen=True, array_like=True, tag=True):
    """What this server did first is on all servers of its chains."""

    view: ViewId


class Freeze(Body, frozen=True, array_like=True, tag=True):
    """The scheduler prepares view `view`: promise to act in no earlier one."""

    view: ViewId


class GroupProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far a group of workers has come, as a server knows it.

    open_round: the first that has not closed
    replayed:   ... at the heads that it follows, as far as it knows
    closed:     no push of this clock or a later one is in its rows
    waits:      whether a push waits for a round to close, or has at another head
    """

    group: str = ""
    open_round: int = 0
    replayed: int = 0
    closed: int = 0
    waits: bool = False


class Frozen(Body, frozen=True, array_like=True, tag=True):
    """The promise, with this server's clocks: (incarnation, clock) pairs, and of each group more.

    drained:  nothing has come in since it drained for this view
    """

    view: ViewId
    clocks: tuple[tuple[int, int], ...]
    groups: tuple[GroupProgress, ...] = ()
    drained: bool = False

    def standing(self, group: str) -> GroupProgress:
        return next((each for each in self.groups if each.group == group), GroupProgress(group))


class Synced(Body, frozen=True, array_like=True, tag=True):
    """A learner has all of these arcs: (table, first row, since which view)."""

    incarnation: int
    placements: tuple[tuple[int, int, int], ...]


class WaitTimes(Body, frozen=True, array_like=True, tag=True):
    """For how long requests have waited for which workers, here: (incarnation, seconds so far)."""

    incarnation: int
    seconds: tuple[tuple[int, float], ...]


class Leave(Body, frozen=True, array_like=True, tag=True):
    """This server wants to go, once its rows are on others. Answered by End, or by Stays."""

    incarnation: int


class LeaveRefused(Body, frozen=True, array_like=True, tag=True):
    reason: str


class NewView(Body, frozen=True, array_like=True, tag=True):
    view: View


class Declare(Body, frozen=True, array_like=True, tag=True):
    """Ask for a table. Answered by a view that has it, or by NotDeclared."""

    incarnation: int
    spec: TableSpec


class NotDeclared(Body, frozen=True, array_like=True, tag=True):
    table: str
    reason: str


class BarrierArrival(Body, frozen=True, array_like=True, tag=True):
    """At barrier `name` for the `generation`-th time, with the members of `groups`.

    Of workers these are the sender's own group.
    """

    incarnation: int
    name: str
    generation: int
    groups: tuple[Group, ...]


class BarrierReleased(Body, frozen=True, array_like=True, tag=True):
    name: str
    generation: int


class Lease(Body, frozen=True, array_like=True, tag=True):
    """Ask for batches to do from this clock on, one a clock; what was leased before is done.

    epochs, batches:  of all the data: so many batches in each epoch
    patient:          rather than that there are none now, be told when there are
    """

    incarnation: int
    clock: int
    epochs: int
    batches: int
    patient: bool = False


class Leased(Body, frozen=True, array_like=True, tag=True):
    """Batches `first` to `first + count` of an epoch; or none now, or none any more: `over`."""

    clock: int
    epoch: int
    first: int
    count: int
    over: bool


class NotLeased(Body, frozen=True, array_like=True, tag=True):
    reason: str


class Finish(Body, frozen=True, array_like=True, tag=True):
    """This member's work is done."""

    incarnation: int


class Finished(Body, frozen=True, array_like=True, tag=True):
    pass


class End(Body, frozen=True, array_like=True, tag=True):
    """The run is over; `error` is empty when it ended in order.

    kind:  of the error: rows are gone; or the run is over for this worker only, which was too slow
    """

    error: str = ""
    kind: Literal["", "lost", "dropped"] = ""


class Abort(Body, frozen=True, array_like=True, tag=True):
    """A member asks for the run's end; or one of a group that has a name, or a server on account of
    that `group`, for the group's."""

    reason: str
    group: str = ""
