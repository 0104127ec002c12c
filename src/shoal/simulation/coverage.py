"""What seeds have to have gone through, many of them, before they prove anything."""

from __future__ import annotations

from shoal.simulation.faults.injector import ONE_SIDED
from shoal.simulation.plan import PHASES

LEAST_SEEDS = 20  # ... of LEAST_SEEDS_OF that hit each counter of REQUIRED_COVERAGE
LEAST_SEEDS_OF = 200

_CONVERSATIONS = {
    "loss": "Join Joined Heartbeat Freeze Frozen NewView Declare BarrierArrival BarrierReleased "
    "Lease Leased Request Reply Probe",
    "duplicate": "Join Joined Freeze Frozen NewView Declare BarrierArrival BarrierReleased Lease "
    "Leased Request Reply Probe",
    "reorder": "Join Joined Freeze Frozen NewView Declare BarrierArrival BarrierReleased Finish "
    "End Request Reply",
    "partition": "Heartbeat Freeze NewView BarrierArrival Request Reply Probe",
    "clog": "Heartbeat Declare BarrierArrival Request Probe",
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
    "crash server about to replicateack",
    "crash server about to answer",
    "crash server about to statechunk",
    "crash server about to synced",
    "crash another server",
    "crash another server at once",
    "restart server",
    "join server",
    "leave server",
    "loss of Replicate",
    "loss of ReplicateAck",
    "duplicate of Replicate",
    "reorder of Replicate",
    "loss of StateChunk",
    "duplicate of StateChunk",
    "reorder of StateChunk",
    "loss of Drain",
    "loss of Drained",
    "loss of Synced",
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
    "custom table",
    "bounded table",
    "leased batches",
    "guests",
    "visit",
    "note returned",
    "copies made room",
    "note compared",
    "declined out_of_order",
    "note late",
    "note waiting",
    "note closed",
)
