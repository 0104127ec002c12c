"""What seeds have to have gone through, many of them, before they prove anything."""

from __future__ import annotations

from shoal.simulation.faults.injector import ONE_SIDED
from shoal.simulation.plan import PHASES

LEAST_SEEDS = 20  # ... of LEAST_SEEDS_OF that hit each counter of REQUIRED_COVERAGE
LEAST_SEEDS_OF = 200

_CONVERSATIONS = {
    "loss": (
        "Join Joined Heartbeat Freeze Frozen NewView Declare Enter Released Lease Leased Request "
        "Reply Probe"
    ),
    "duplicate": (
        "Join Joined Freeze Frozen NewView Declare Enter Released Lease Leased Request Reply Probe"
    ),
    "reorder": "Join Joined Freeze Frozen NewView Declare Enter Released Finish End Request Reply",
    "partition": "Heartbeat Freeze NewView Enter Request Reply Probe",
    "clog": "Heartbeat Declare Enter Request Probe",
    "stall": "Request Reply",
    "overflow": "Reply",
}
REQUIRED_COVERAGE: tuple[str, ...] = (
    *(f"{fault} ({phase})" for fault in ONE_SIDED for phase in PHASES),
    *(f"{fault} of {name}" for fault, names in _CONVERSATIONS.items() for name in names.split()),
    "crash scheduler before persist",
    "crash scheduler after persist",
    "crash worker in mid-payload",
    "crash worker in mid-advance",
    "sender crashed in mid-payload",
    "crash server",
    "server unheard",
    "crash server about to replicate",
    "crash server about to replicated",
    "crash server about to answer",
    "crash server about to state",
    "crash server about to learned",
    "crash another server",
    "crash another server at once",
    "restart server",
    "join server",
    "leave server",
    "loss of Replicate",
    "loss of Replicated",
    "duplicate of Replicate",
    "reorder of Replicate",
    "loss of State",
    "duplicate of State",
    "reorder of State",
    "loss of Drain",
    "loss of Drained",
    "loss of Learned",
    "declined between servers",
    "note replayed",
    "note installed",
    "checkpoint",
    "marked checkpoint",
    "checkpoint by time",
    "slow worker",
    "taken for dead alive",
    "stop worker",
    "stop server",
    "stop server for long",
    "stop scheduler",
    "stop scheduler for long",
    "note awaited",
    "restart worker",
    "join",
    "join during training",
    "failed RequestTimeout",
    "failed SyncTimeout",
    "failed Cancelled",
    "insisted",
    "sparse ledger",
    "handled table",
    "bounded table",
    "leased batches",
    "guests",
    "visit",
    "note returned",
    "copies made room",
    "note compared",
    "declined early",
    "note late",
    "note parked",
    "note closed",
)
