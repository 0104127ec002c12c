"""Bugs at the end of a run, and in what was promised before it."""

from shoal.protocol import session as session_module
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.scheduler import checkpoint_plan
from shoal.protocol.scheduler.shutdown import Shutdown
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.views import FOREVER
from tests.simulation.planted.patches import bug, instead

promised_clock_is_jumped_over = bug(
    CheckpointClocks, "due_by",
    lambda right: lambda self, clock: clock if clock < FOREVER else 0,
    "A checkpoint is not taken whose clock no worker has come to when the last one goes.",
)  # fmt: skip
pushes_stream_into_a_checkpoint = bug(
    Checkpointer, "is_due", instead(False),
    "Fragments of a push are applied before rows are copied that must not have them.",
)  # fmt: skip
unreached_clocks_are_forgotten = bug(
    checkpoint_plan, "_unreached",
    lambda right: lambda clocks, slowest: clocks[-2:],
    "A view names only the latest checkpoint clocks, whether workers have come to them or not.",
)  # fmt: skip
nobody_hangs_up = bug(
    session_module, "gone", instead([]),
    "A node that is in no later view reads memory that has been given back.",
)  # fmt: skip
silence_is_consent = bug(
    Shutdown, "ask", instead(True),
    "A run ends in order without a sign of life of its servers since the last worker finished.",
)  # fmt: skip
