"""Bugs of the engine's decisions, and of what members do about a peer that does not answer."""

from msgspec.structs import replace

from shoal.protocol.questions import Unanswered
from shoal.protocol.scheduler.failure_detector import FailureDetector
from shoal.protocol.scheduler.members import Members
from shoal.protocol.scheduler.tools import Tools
from shoal.protocol.session import Session
from shoal.protocol.supervision.supervisor import Supervisor
from shoal.protocol.worker.in_flight import SubRequestPart
from tests.simulation.planted.patches import bug, instead

mute_connections_stay = bug(
    Unanswered, "asked", instead(None),
    "A connection on which nothing comes any more is used for ever.",
)  # fmt: skip
views_hide_silence = bug(
    Unanswered, "keep", lambda right: lambda self, peers: self.counts.clear(),
    "With each view a silent peer counts as heard of: where views follow each other it is never "
    "dialled anew.",
)  # fmt: skip
every_message_asks_for_its_view = bug(
    Session, "ask_for_view", lambda right: lambda self, newer, out: self.tell_view(out),
    "Each message of a view that is not here asks for it: the answers fill a slow link, and the "
    "view comes ever later.",
)  # fmt: skip
servers_behind_are_probed_at_once = bug(
    SubRequestPart, "ask_soon",
    lambda right: lambda self, now, least_s, most_s: self.ask_at(now + least_s),
    "A server that is behind is asked about each request a hundred times a second.",
)  # fmt: skip
the_dead_live_on = bug(
    Supervisor, "declared_dead", instead(None),
    "The engine does not hear that the run goes on without a process that lives.",
)  # fmt: skip
other_ranks_are_other_processes = bug(
    Supervisor, "_own_name", lambda right: lambda self, name, pid: name,
    "A silent server is not ended that has got another rank than it had asked for.",
)  # fmt: skip
status_0_is_success = bug(
    Supervisor, "_left_undone", instead(None),
    "A worker that ends with status 0 has done its work, whatever the scheduler says.",
)  # fmt: skip
a_scheduler_that_is_cut_off_blames_all = bug(
    FailureDetector, "_hears_nobody", instead(False),
    "A scheduler that hears of nobody declares one member dead after the other.",
)  # fmt: skip
successors_take_other_ranks = bug(
    Members, "refusal",
    lambda right: lambda self, node, asked, view, options: right(
        self, node, asked, view, replace(options, on_worker_loss="stop")
    ),
    "A worker that is replaced before it counts as dead is another worker, with another rank.",
)  # fmt: skip
runs_begin_without_workers = bug(
    Supervisor, "_does_without",
    lambda right: lambda self, name: name in self.policy.given_up,
    "A worker that dies before the first view is done without, and the scheduler waits for it.",
)  # fmt: skip
exits_in_order_are_not_told = bug(
    Tools, "asked",
    lambda right: lambda self, sender, message, now, out: right(
        self, sender,
        replace(message, orderly=False) if hasattr(message, "orderly") else message,
        now, out,
    ),
    "A server whose farewell was lost, and that has ended in order, counts as lost with its rows.",
)  # fmt: skip
