"""The events that many seeds together must have covered before their success means anything."""

from __future__ import annotations

from shoal.simulation.faults.kinds import FAULTS, LASTING, ONE_SIDED
from shoal.simulation.plan import PHASES

LEAST_SEEDS = 20  # seeds of LEAST_SEEDS_OF that must hit each counter of REQUIRED_COVERAGE
LEAST_SEEDS_OF = 200

_KINDS = {
    "loss of": "Join Joined Heartbeat Freeze Frozen NewView Declare BarrierArrival BarrierReleased "
    "Lease Leased Request Reply Probe Replicate ReplicateAck StateChunk Drain Drained Synced",
    "duplicate of": "Join Joined Freeze Frozen NewView Declare BarrierArrival BarrierReleased "
    "Lease Leased Request Reply Probe Replicate StateChunk",
    "reorder of": "Join Joined Freeze Frozen NewView Declare BarrierArrival BarrierReleased Finish "
    "End Request Reply Replicate StateChunk",
    "partition of": "Heartbeat Freeze NewView BarrierArrival Request Reply Probe",
    "clog of": "Heartbeat Declare BarrierArrival Request Probe",
    "stall of": "Request Reply",
    "overflow of": "Reply",
    "crash server about to": "replicate replicateack answer statechunk synced",
    "failed": "RequestTimeout SyncTimeout Cancelled",
    "note": "replayed installed awaited returned compared late waiting closed thawed unopened",
}
_NOT_REQUIRED = (*ONE_SIDED, "take for dead", "kill server")  # the first by phase, below
REQUIRED_COVERAGE: tuple[str, ...] = (
    *(fault for fault in (*FAULTS, *LASTING) if fault not in _NOT_REQUIRED),
    *(f"{fault} ({phase})" for fault in ONE_SIDED for phase in PHASES),
    *(f"{event} {kind}" for event, kinds in _KINDS.items() for kind in kinds.split()),
    "sender crashed in mid-payload",
    "crash server",
    "server unheard",
    "scheduler cut off as its view is adopted",
    "crash another server",
    "crash another server at once",
    "restart server",
    "declined between servers",
    "declined refused view",
    "note dropped view",
    "checkpoint",
    "checkpoint under ssp",
    "checkpoint by time",
    "checkpoint of leased batches",
    "checkpoint that was asked for",
    "redialled",
    "supervised run succeeds under stop",
    "supervised run succeeds under drop",
    "supervised run succeeds under replace",
    "supervised run fails under stop",
    "supervised return after a time-out",
    "supervised end of a script",
    "supervised start worker",
    "supervised start server",
    "declared dead alive",
    "declared hung",
    "busy for longer than silence",
    "restart worker",
    "server left alone",
    "join during training",
    "insisted",
    "sparse ledger",
    "custom table",
    "bounded table",
    "leased batches",
    "guests",
    "optimizer table",
    "assigned states",
    "large cluster",
    "several hosts",
    "fixed size",
    "constant faults",
    "sums around a ring",
    "fast path",
    "borrowed payload",
    "streams",
    "costly events",
    "retransmission of Request",
    "retransmission of Replicate",
    "back-pressure of Reply",
    "half-open of Heartbeat",
    "connect that hangs of Heartbeat",
    "end without all rows",
    "guest read",
    "replicas evicted",
    "declined out_of_order",
)
