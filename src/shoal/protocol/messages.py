"""Every message, frozen, grouped by conversation. Plain data: no torch, no I/O.

On the wire each is a msgpack array whose first item is its class name (`transport.wire`); values
and keys ride behind it as raw buffers, in the order of the parts that announce them.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from shoal.protocol.chain_messages import Past, Replicate, Replicated, Seen, State
from shoal.protocol.outside_messages import Because, Died, Heard, Waiting, Why
from shoal.protocol.parts import KEY_BYTES, SAME, SIZE_BYTES, Body, Part
from shoal.protocol.views import NodeId, Role, View, ViewId
from shoal.tables.spec import TableSpec

Group = Literal["scheduler", "servers", "workers"]

PROTOCOL_VERSION = 1
SCHEDULER: NodeId = "scheduler"

__all__ = [
    "KEY_BYTES", "SAME", "SIZE_BYTES", "Because", "Body", "Died", "Heard", "Part", "Past",
    "Replicate", "Replicated", "Seen", "State", "Waiting", "Why",
]  # fmt: skip


# ---------------------------------------------------------------------------- handshake


class Challenge(Body, frozen=True, array_like=True, tag=True):
    """The listener's first words: its version, and a nonce to prove the token with."""

    version: int
    nonce: bytes
    token_needed: bool


class Hello(Body, frozen=True, array_like=True, tag=True):
    version: int
    job: str
    node: NodeId
    role: Role
    incarnation: int
    nonce: bytes
    proof: bytes


class Welcome(Body, frozen=True, array_like=True, tag=True):
    """`rings`: the caller's ring of shared memory came, and the listener's is with this."""

    node: NodeId
    proof: bytes
    rings: bool = False


class Denied(Body, frozen=True, array_like=True, tag=True):
    reason: str


# ---------------------------------------------------------------------------- membership


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


class Standing(msgspec.Struct, frozen=True, array_like=True):
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
    groups: tuple[Standing, ...] = ()
    drained: bool = False

    def standing(self, group: str) -> Standing:
        return next((each for each in self.groups if each.group == group), Standing(group))


class Learned(Body, frozen=True, array_like=True, tag=True):
    """A learner has all of these arcs: (table, first row, since which view)."""

    incarnation: int
    arcs: tuple[tuple[int, int, int], ...]


class Waited(Body, frozen=True, array_like=True, tag=True):
    """For how long requests have waited for which workers, here: (incarnation, seconds so far)."""

    incarnation: int
    seconds: tuple[tuple[int, float], ...]


class Leave(Body, frozen=True, array_like=True, tag=True):
    """This server wants to go, once its rows are on others. Answered by End, or by Stays."""

    incarnation: int


class Stays(Body, frozen=True, array_like=True, tag=True):
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


class Enter(Body, frozen=True, array_like=True, tag=True):
    """At barrier `name` for the `generation`-th time, with the members of `groups`.

    Of workers these are the sender's own group.
    """

    incarnation: int
    name: str
    generation: int
    groups: tuple[Group, ...]


class Released(Body, frozen=True, array_like=True, tag=True):
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


# ---------------------------------------------------------------------------- data


class Request(Body, frozen=True, array_like=True, tag=True):
    """What one worker asks of one server, in this order: push, advance, pull.

    seq:            with the incarnation, the request id
    settled_below:  every request below this is settled; the server forgets them
    clock:          the worker's clock at the push
    advance:        the worker's clock afterwards, or -1
    weight:         of this push among its round's (0 < weight), such as its batch size
    lr:             overrides the table's learning rate for this push
    assign:         write the rows instead of handing an update to the access method
    follows:        earlier requests, whose pushes have to be taken before this one is
    """

    view: ViewId
    incarnation: int
    seq: int
    settled_below: int
    clock: int
    pushes: tuple[Part, ...] = ()
    advance: int = -1
    pulls: tuple[Part, ...] = ()
    weight: float = 1.0
    lr: float | None = None
    assign: bool = False
    follows: tuple[int, ...] = ()


Code = Literal[
    "applied", "accepted", "refused", "round_closed", "missing", "parked", "stale", "early"
]


class Reply(Body, frozen=True, array_like=True, tag=True):
    """The answer to a request, or its present state.

    applied:       done; the pulled rows follow as payload
    accepted:      in the round's accumulator; `applied` comes when the round closes
    parked:        the pull waits; `reason` says for whom
    missing:       this server has not seen it: send it again
    stale:         the views differ; `view` is the server's
    early:         one that it follows is missing: send that, and then this again
    refused, round_closed: final, with `reason`
    """

    incarnation: int
    seq: int
    view: ViewId
    code: Code
    reason: str = ""
    clock_min: int = -1
    round_weight: float = -1.0
    payload: int = 0


class Probe(Body, frozen=True, array_like=True, tag=True):
    """Ask what became of a request. `urgent` asks the server to nudge those it waits for."""

    view: ViewId
    incarnation: int
    seq: int
    urgent: bool = False


class Nudge(Body, frozen=True, array_like=True, tag=True):
    """Somebody waits for you: send again what you have outstanding."""

    reason: str


# ---------------------------------------------------------------------------- collectives


class Piece(Body, frozen=True, array_like=True, tag=True):
    """A piece of a tensor on its way around the workers; its bytes follow.

    ring:    which workers these are; `number` counts their sums
    whole:   the sum of all; otherwise of those that it has passed so far
    total:   bytes of the tensor
    """

    ring: int
    number: int
    piece: int
    whole: bool
    total: int


class Lacking(Body, frozen=True, array_like=True, tag=True):
    """These pieces have not come: send again those that there are. With none it is a greeting."""

    ring: int
    number: int
    partial: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()


class Summed(Body, frozen=True, array_like=True, tag=True):
    """All that you had to send of the sums up to this one is here."""

    ring: int
    number: int


class Left(Body, frozen=True, array_like=True, tag=True):
    """The worker `name` has finished its work, and asks for no sums from number `asked` on."""

    ring: int
    name: str
    asked: int


# ---------------------------------------------------------------------------- errors


class Malformed(Body, frozen=True, array_like=True, tag=True):
    """A frame of yours could not be understood; nothing was changed."""

    reason: str


Message = (
    Challenge | Hello | Welcome | Denied
    | Join | Joined | NotJoined | Heartbeat | HeartbeatSeen
    | Drain | Drained | Freeze | Frozen | NewView | Learned | Leave | Stays
    | Waited | Why | Because | Died | Heard
    | Declare | NotDeclared | Enter | Released | Lease | Leased | NotLeased
    | Finish | Finished | End | Abort
    | Request | Reply | Probe | Nudge | Replicate | Replicated | State
    | Piece | Lacking | Summed | Left | Malformed
)  # fmt: skip
MESSAGES: tuple[type[Body], ...] = get_args(Message)
