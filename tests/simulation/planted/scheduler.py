"""Bugs in what the scheduler keeps over a view change, and in what workers send again after one."""

from contextlib import contextmanager
from unittest.mock import patch

from msgspec.structs import replace

from shoal.protocol.scheduler import checkpoint_plan
from shoal.protocol.scheduler import view_change as view_change_module
from shoal.protocol.scheduler.ledgers import LeaseLedgers
from shoal.protocol.scheduler.rows.rebalance import Migration
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.worker import machine as worker_module
from shoal.protocol.worker.in_flight import InFlight
from tests.simulation.planted.patches import bug, first, instead

# ---------------------------------------------------------------------------- the scheduler

departures_not_written_down = bug(
    Migration, "adopt",
    lambda right: lambda self, view: _not_left(right, self, view),
    "The next scheduler does not know the servers that left in order.",
)  # fmt: skip


def _not_left(right, self, view):
    before = set(self.left)
    gone = right(self, view)
    self.left = before
    return gone


earlier_departures_dropped = bug(
    view_change_module, "next_view",
    lambda right: lambda number, members, previous, *args, **more: _only_new_departures(
        right(number, members, previous, *args, **more), previous
    ),
    "A view names only the departures of its own, though earlier ones may still matter.",
)  # fmt: skip


def _only_new_departures(view, previous):
    before = {m.incarnation for m in previous.departed} if previous else set()
    return replace(view, departed=tuple(m for m in view.departed if m.incarnation not in before))


synced_is_for_ever = bug(
    Migration, "_forget_others", instead(None),
    "A server that had some rows once is taken to have them when it begins anew.",
)  # fmt: skip
leases_of_the_dead_are_done = bug(
    LeaseLedgers, "reclaim", instead([]),
    "Batches that a dead worker had are not given to anybody.",
)  # fmt: skip
checkpoints_begin_anew = bug(
    Checkpointer, "adopt",
    first(lambda self, view: self._taken.clear()),
    "A replica forgets with each view which checkpoints it has taken.",
)  # fmt: skip

asked_clock_is_not_regarded = bug(
    checkpoint_plan, "marked",
    lambda right: lambda view, promises, wanted=0: right(view, promises),
    "A checkpoint lacks what the worker that asked for it has pushed before.",
)  # fmt: skip
answered_before_the_view_counts = bug(
    checkpoint_plan.CheckpointPlan, "mark",
    lambda right: lambda self, view, promises, now, out: _answered(
        self, right(self, view, promises, now, out), out
    ),
    "A request for a checkpoint is answered when its view is offered, which may not be adopted.",
)  # fmt: skip


def _answered(plan, view, out):
    plan.adopted(view, out)
    return view


# ---------------------------------------------------------------------------- workers

clock_not_told_again = bug(
    worker_module, "tell", instead(None),
    "A worker does not tell new servers its clock.",
)  # fmt: skip
rerouted_push_loses_its_rate = bug(
    InFlight, "reroute",
    lambda right: lambda self, cut, view: _plain_asks(right, self, cut, view),
    "A push that is cut anew for other servers has the table's rate and weight 1.",
)  # fmt: skip


def _plain_asks(right, self, cut, view):
    right(self, cut, view)
    for sub_request in self.sub_requests.values():
        if sub_request.plan.pushed:
            sub_request.ask = replace(sub_request.ask, weight=1.0, route=None)
        for part in sub_request.parts.values():
            part.server_part = replace(part.server_part, rates=())


reads_of_before_land = bug(
    worker_module, "moved", instead(False),
    "A worker keeps to the servers that had the rows.",
)  # fmt: skip


@contextmanager
def lease_log_without_ends():
    """The lease log does not say after how many clocks a dead worker's leases ended."""
    with patch.object(LeaseLedgers, "departing", lambda self, view: []):
        yield


@contextmanager
def lease_log_after_the_journal():
    """A lease is logged after it is in the journal: a scheduler that dies in between grants it."""
    right = LeaseLedgers.answers

    def answers(self, members):
        entries, answers = right(self, members)
        return [], [*entries, *answers]

    with patch.object(LeaseLedgers, "answers", answers):
        yield
