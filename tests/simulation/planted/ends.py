"""Bugs at the end of a run, and in what was promised before it."""

from msgspec.structs import replace

from shoal.protocol import session as session_module
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.messages.membership import End
from shoal.protocol.scheduler import checkpoint_plan
from shoal.protocol.scheduler.shutdown import Shutdown
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.session import Session
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
deserted_groups_are_saved = bug(
    Checkpointer, "_deserted", lambda right: property(lambda self: False),
    "A checkpoint is taken when the last worker dies, though the next one begins before its clock.",
)  # fmt: skip
ends_before_checkpoints = bug(
    Checkpointer, "owes", lambda right: property(lambda self: False),
    "A server lets the run end that has not taken a promised checkpoint.",
)  # fmt: skip
answers_of_any_view_count = bug(
    Shutdown, "answered",
    lambda right: lambda self, server, message: right(
        self, server, replace(message, view=(FOREVER, 0))
    ),
    "A run ends when its servers have answered in a view before the last one.",
)  # fmt: skip
servers_end_unheard = bug(
    Session, "handle",
    lambda right: lambda self, message, now, out: _at_once(
        self, right(self, message, now, out), message, out
    ),
    "A server ends when it is told to, and a lost answer makes a good end a loss of its rows.",
)  # fmt: skip
cut_paths_end_the_work = bug(
    Session, "peer_lost",
    lambda right: lambda self, node, now, closed: right(self, node, now, True),
    "A worker that has finished takes a scheduler that is out of reach for one that has ended.",
)  # fmt: skip


def _at_once(session, view, message, out):
    if isinstance(message, End) and not session.ended:
        session.stop(out, None)
    return view


silence_is_consent = bug(
    Shutdown, "ask", instead(True),
    "A run ends in order without a sign of life of its servers since the last worker finished.",
)  # fmt: skip
