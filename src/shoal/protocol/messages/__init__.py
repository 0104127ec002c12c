"""Every message, frozen, a module for each conversation. Plain data: no torch, no I/O.

On the wire each is a msgpack array whose first item is its class name (`transport.wire`); values
and keys ride behind it as raw buffers, in the order of the parts that announce them.
"""

from __future__ import annotations

from typing import get_args

from shoal.protocol.messages.admin import (
    Because,
    Died,
    Heard,
    Waiting,
    Why,
)
from shoal.protocol.messages.base import (
    KEY_BYTES,
    SAME,
    SIZE_BYTES,
    Body,
    Part,
)
from shoal.protocol.messages.collective import (
    Lacking,
    Left,
    Piece,
    Summed,
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
    Declare,
    Drain,
    Drained,
    End,
    Enter,
    Finish,
    Finished,
    Freeze,
    Frozen,
    Group,
    Heartbeat,
    HeartbeatSeen,
    Join,
    Joined,
    Learned,
    Lease,
    Leased,
    Leave,
    NewView,
    NotDeclared,
    NotJoined,
    NotLeased,
    Released,
    Standing,
    Stays,
    Waited,
)
from shoal.protocol.messages.replication import (
    Past,
    Replicate,
    Replicated,
    Seen,
    State,
)
from shoal.protocol.messages.requests import (
    Code,
    Nudge,
    Probe,
    Reply,
    Request,
)
from shoal.protocol.views import NodeId

PROTOCOL_VERSION = 1
SCHEDULER: NodeId = "scheduler"

__all__ = [
    "KEY_BYTES",
    "MESSAGES",
    "PROTOCOL_VERSION",
    "SAME",
    "SCHEDULER",
    "SIZE_BYTES",
    "Abort",
    "Because",
    "Body",
    "Challenge",
    "Code",
    "Declare",
    "Denied",
    "Died",
    "Drain",
    "Drained",
    "End",
    "Enter",
    "Finish",
    "Finished",
    "Freeze",
    "Frozen",
    "Group",
    "Heard",
    "Heartbeat",
    "HeartbeatSeen",
    "Hello",
    "Join",
    "Joined",
    "Lacking",
    "Learned",
    "Lease",
    "Leased",
    "Leave",
    "Left",
    "Malformed",
    "Message",
    "NewView",
    "NotDeclared",
    "NotJoined",
    "NotLeased",
    "Nudge",
    "Part",
    "Past",
    "Piece",
    "Probe",
    "Released",
    "Replicate",
    "Replicated",
    "Reply",
    "Request",
    "Seen",
    "Standing",
    "State",
    "Stays",
    "Summed",
    "Waited",
    "Waiting",
    "Welcome",
    "Why",
]

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
