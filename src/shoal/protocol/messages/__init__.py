"""Messages of the protocol, one module per conversation. Plain data: no torch, no I/O.

On the wire a message is a msgpack array whose first item is its class name (`transport.wire`). Keys
and values follow as raw buffers, in the order of the parts that announce them.
"""

from __future__ import annotations

from typing import get_args

from shoal.protocol.messages.admin import (
    CheckpointPlanned,
    CheckpointRefused,
    CheckpointRequest,
    DeathReport,
    DeathReportSeen,
    StatusReply,
    StatusRequest,
    Waits,
)
from shoal.protocol.messages.base import (
    KEY_BYTES,
    SAME,
    SIZE_BYTES,
    Body,
    Part,
)
from shoal.protocol.messages.collective import (
    MissingPieces,
    NeighbourAck,
    NeighbourPiece,
    NeighbourProbe,
    Piece,
    PieceProbe,
    SumAck,
    WorkerLeft,
)
from shoal.protocol.messages.handshake import (
    Challenge,
    Denied,
    Hello,
    Malformed,
    Welcome,
)
from shoal.protocol.messages.membership import (
    Abort,
    BarrierArrival,
    BarrierReleased,
    Busy,
    ConfirmRows,
    Declare,
    Drain,
    Drained,
    End,
    Finish,
    Finished,
    Freeze,
    Frozen,
    Group,
    GroupProgress,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Joined,
    Lease,
    Leased,
    Leave,
    LeaveRefused,
    NewView,
    NotDeclared,
    NotJoined,
    NotLeased,
    OpenShards,
    ProcessHeartbeat,
    RefuseView,
    RowsConfirmed,
    ShardsOpened,
    Synced,
    ViewRefused,
    WaitTimes,
)
from shoal.protocol.messages.replication import (
    ReplicaHistory,
    Replicate,
    ReplicateAck,
    SeenRequests,
    StateChunk,
    What,
)
from shoal.protocol.messages.requests import (
    Code,
    Computing,
    Nudge,
    Probe,
    Reply,
    Request,
)
from shoal.protocol.views import NodeId

PROTOCOL_VERSION = 12
SCHEDULER: NodeId = "scheduler"

__all__ = [
    "KEY_BYTES", "MESSAGES", "PROTOCOL_VERSION", "SAME", "SCHEDULER", "SIZE_BYTES", "Abort",
    "BarrierArrival", "BarrierReleased", "Body", "Busy", "Challenge", "CheckpointPlanned",
    "CheckpointRefused", "CheckpointRequest", "Code", "Computing", "ConfirmRows", "DeathReport",
    "DeathReportSeen", "Declare", "Denied", "Drain", "Drained", "End", "Finish", "Finished",
    "Freeze", "Frozen", "Group", "GroupProgress", "Heartbeat", "HeartbeatSeen", "Hello", "Join",
    "Joined", "Lease", "Leased", "Leave", "LeaveRefused", "Malformed", "Message", "MissingPieces",
    "NeighbourAck", "NeighbourPiece", "NeighbourProbe", "NewView", "NotDeclared", "NotJoined",
    "NotLeased", "Nudge", "OpenShards", "Part", "Piece", "PieceProbe", "Probe",
    "ProcessHeartbeat", "RefuseView",
    "ReplicaHistory", "Replicate", "ReplicateAck", "Reply", "Request", "RowsConfirmed",
    "SeenRequests",
    "ShardsOpened", "StateChunk", "StatusReply", "StatusRequest", "SumAck", "Synced", "ViewRefused",
    "WaitTimes", "Waits", "Welcome", "What", "WorkerLeft",
]  # fmt: skip

Message = (
    Challenge | Hello | Welcome | Denied
    | Join | Joined | NotJoined | Heartbeat | HeartbeatSeen | ProcessHeartbeat | Busy
    | Drain | Drained | Freeze | Frozen | NewView | RefuseView | ViewRefused
    | Synced | Leave | LeaveRefused | WaitTimes | OpenShards | ShardsOpened
    | StatusRequest | StatusReply | DeathReport | DeathReportSeen
    | CheckpointRequest | CheckpointPlanned | CheckpointRefused
    | Declare | NotDeclared | BarrierArrival | BarrierReleased | Lease | Leased | NotLeased
    | Finish | Finished | ConfirmRows | RowsConfirmed | End | Abort
    | Request | Reply | Probe | Nudge | Computing | Replicate | ReplicateAck | StateChunk
    | Piece | PieceProbe | MissingPieces | SumAck | WorkerLeft
    | NeighbourPiece | NeighbourProbe | NeighbourAck | Malformed
)  # fmt: skip
MESSAGES: tuple[type[Body], ...] = get_args(Message)
