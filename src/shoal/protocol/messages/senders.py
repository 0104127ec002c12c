"""Senders: the roles that send each message. A message from another role is refused.

A node that the receiver does not know may be in a view that the receiver has not adopted yet. Its
messages pass here, and the handlers decline requests that it may not make.
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
    """Return why a sender may not send a message, or why its view is invalid; empty if neither.

    role: the role of the sender, as the receiver knows it; None for a node that is no member
    """
    if isinstance(message, NewView) and (problem := message.view.problem()):
        return problem
    known: Role | None = "scheduler" if sender == SCHEDULER else role
    roles = SENDERS.get(type(message))
    if roles is None or known is None or known in roles:
        return ""
    return f"it comes from a {known}, and {' and '.join(roles)} nodes alone send it"
