"""Which role sends which message. What comes from another is refused, whoever it is.

Nodes that a receiver does not know (they may be in a view that it has not adopted yet) are taken
for what they say they are; handling declines what they may not ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shoal.protocol.messages import (
    SCHEDULER,
    Abort,
    Busy,
    CheckpointPlanned,
    CheckpointRefused,
    ConfirmRows,
    DeathReportSeen,
    Declare,
    Drain,
    Drained,
    End,
    Finished,
    Freeze,
    Frozen,
    HeartbeatSeen,
    Joined,
    Lease,
    Leased,
    Leave,
    LeaveRefused,
    Message,
    MissingPieces,
    NeighbourAck,
    NeighbourPiece,
    NeighbourProbe,
    NewView,
    NotDeclared,
    NotJoined,
    NotLeased,
    Nudge,
    OpenShards,
    Piece,
    PieceProbe,
    Probe,
    RefuseView,
    Replicate,
    ReplicateAck,
    Reply,
    Request,
    RowsConfirmed,
    ShardsOpened,
    StateChunk,
    SumAck,
    Synced,
    ViewRefused,
    WaitTimes,
    WorkerLeft,
)
from shoal.protocol.messages import BarrierReleased as Released
from shoal.protocol.views import NodeId, Role

_BY_ROLE: tuple[tuple[tuple[Role, ...], tuple[type, ...]], ...] = (
    (
        ("scheduler",),
        (
            *(Joined, NotJoined, HeartbeatSeen, Busy, Drain, Freeze, OpenShards, LeaveRefused),
            *(CheckpointPlanned, CheckpointRefused),
            *(NotDeclared, Released, Leased, NotLeased, Finished, End, DeathReportSeen),
            ConfirmRows,
        ),
    ),
    (
        ("server",),
        (
            *(Drained, Frozen, ShardsOpened, ViewRefused, Synced, WaitTimes, Leave, RefuseView),
            *(RowsConfirmed, Replicate, ReplicateAck, StateChunk, Reply, Nudge),
        ),
    ),
    (
        ("worker",),
        (
            *(Declare, Lease, Abort, Request, Probe, Piece, MissingPieces, SumAck, WorkerLeft),
            *(PieceProbe, NeighbourPiece, NeighbourProbe, NeighbourAck),
        ),
    ),
    (("scheduler", "server"), (NewView,)),
)
SENDERS: Mapping[type, tuple[Role, ...]] = MappingProxyType(
    {message: roles for roles, messages in _BY_ROLE for message in messages}
)


def misplaced(message: Message, sender: NodeId, role: Role | None) -> str:
    """Why a message is not its sender's to send, or no view that there may be; empty if it is.

    role: the sender's, as its receiver knows it; None for a node that is no member
    """
    if isinstance(message, NewView) and (problem := message.view.problem()):
        return problem
    known: Role | None = "scheduler" if sender == SCHEDULER else role
    roles = SENDERS.get(type(message))
    if roles is None or known is None or known in roles:
        return ""
    return f"it comes from a {known}, and {' and '.join(roles)} nodes alone send it"
