"""Bugs in what a view change does to each piece of state, planted by replacing one method."""

from contextlib import contextmanager
from unittest.mock import patch

from msgspec.structs import replace

from shoal.protocol.consistency import Clocks
from shoal.protocol.scheduler import view_change as view_change_module
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.operations import Operation
from shoal.protocol.server.replication.replay import Replayer
from shoal.protocol.server.replication.replication import Replication
from shoal.protocol.server.replication.takeover import Takeover
from shoal.protocol.server.replication.transfer import StateTransfer
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.server.requests.wait_queue import WaitQueue
from shoal.protocol.server.state.replica import Replica
from shoal.protocol.server.state.replicas import Replicas
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.server.state.rounds import Rounds
from shoal.protocol.views import FOREVER
from shoal.tables.dense.shard import DenseShard
from tests.simulation.planted.patches import bug, first, instead, replaced, then

# ---------------------------------------------------------------------------- weights and rates


def _copied_entries(change):
    """`Takeover.take_over`, where what other heads had accepted is changed first."""

    def make(right):
        def take_over(self):
            for entry in self._applier.copied.entries():
                change(self, entry)
            right(self)

        return take_over

    return make


def _unrate(entry):
    entry.parts = [replace(part, lr=None) for part in entry.parts]


weight_lost_in_takeover = bug(
    Takeover, "take_over", _copied_entries(lambda self, entry: setattr(entry, "weight", 1.0)),
    "A new head counts what the one before had accepted with weight 1.",
)  # fmt: skip
rate_lost_in_takeover = bug(
    Takeover, "take_over", _copied_entries(lambda self, entry: _unrate(entry)),
    "A new head applies what the one before had accepted at the table's rate.",
)  # fmt: skip


def _keeps_the_dead(right):
    def drop(self, worker, last_clock):
        weights = {
            key: sum(each.weight for each in entries if each.log.incarnation == worker)
            for key, entries in self.open.items()
        }
        right(self, worker, last_clock)
        for key, weight in weights.items():
            if weight and key[1] >= last_clock:
                self._ghosts = {**getattr(self, "_ghosts", {}), key: weight}

    return drop


@contextmanager
def dead_weigh_in_rounds():
    """A round's weight counts a worker that died in it."""
    right = Rounds.close

    def close(self, group, clock):
        entries = right(self, group, clock)
        ghost = getattr(self, "_ghosts", {}).get((group, clock), 0.0)
        if ghost:
            self.weigh(group, clock, self.weight(group, clock) + ghost)
        return entries

    with replaced(Rounds, "drop", _keeps_the_dead), patch.object(Rounds, "close", close):
        yield


replicas_ignore_rates = bug(
    Replayer, "replay",
    lambda right: lambda self, message, replicas, loads, out: right(
        self, replace(message, rates=(None,) * len(message.rates))
        if message.what == "push" else message, replicas, loads, out,
    ),
    "Replicas apply a push at the table's rate, whatever it says.",
)  # fmt: skip
weights_not_handed_on = bug(
    Rounds, "weights", instead(()),
    "A syncing replica does not hear the weights of rounds that have closed.",
)  # fmt: skip
slots_not_transferred = bug(
    DenseShard, "install",
    then(lambda self, staged: [slot.zero_() for slot in self._piece(staged.rows)[1].values()]),
    "A syncing replica begins with fresh optimizer state.",
)  # fmt: skip
updates_not_transferred = bug(
    DenseShard, "install",
    then(lambda self, staged: self.counts.set(0, [0] * len(self.updates))),
    "A syncing replica counts its updates from zero: schedules begin anew.",
)  # fmt: skip

# ---------------------------------------------------------------------------- rounds and the dead

dead_stay_in_rounds = bug(
    Rounds, "drop", instead(None),
    "A push of a dead worker stays in its round, at or above its last clock.",
)  # fmt: skip
new_head_keeps_the_dead = bug(
    Admission, "counts", instead(True),
    "A new head keeps what the one before had accepted of a worker that is dead.",
)  # fmt: skip
departed_are_forgotten = bug(
    Admission, "adopt",
    then(lambda self, view: self.left.clear()),
    "A worker that left counts in no open round, though its last clock is ahead.",
)  # fmt: skip
open_rounds_not_cut = bug(
    Rounds, "recut", instead(None),
    "What waits for a round goes by the shards of before they were cut.",
)  # fmt: skip


def _last_clock_too_low(right):
    def next_view(*args, **more):
        view = right(*args, **more)
        gone = [
            replace(m, last_clock=m.last_clock - (0 < m.last_clock < FOREVER))
            for m in view.departed
        ]
        return replace(view, departed=tuple(gone))

    return next_view


last_clock_too_low = bug(
    view_change_module, "next_view", _last_clock_too_low,
    "A dead worker does not count in the last round that it finished.",
)  # fmt: skip


def _first_clock_zero(right):
    def next_view(number, members, previous, *args, **more):
        view = right(number, members, previous, *args, **more)
        known = {m.id for m in previous.workers} if previous else set()
        workers = [m if m.id in known else replace(m, first_clock=0) for m in view.workers]
        return replace(view, workers=tuple(workers))

    return next_view


joiner_starts_at_zero = bug(
    view_change_module, "next_view", _first_clock_zero,
    "A worker that joins begins at clock 0, of which the rounds have closed.",
)  # fmt: skip
finished_are_dead = bug(
    view_change_module, "next_view",
    lambda right: lambda *args, **more: _finished_departed(right(*args, **more)),
    "A worker that has finished counts in no round from its view on.",
)  # fmt: skip


def _finished_departed(view):
    gone = [replace(m, last_clock=0) if m.last_clock == FOREVER else m for m in view.departed]
    return replace(view, departed=tuple(gone))


dead_hold_up_clocks = bug(
    Clocks, "leave", instead(None),
    "The clock of a worker that is gone stays among the others'.",
)  # fmt: skip
joiner_enters_late = bug(
    Clocks, "enter",
    lambda right: lambda self, worker, clock, *rest: right(self, worker, clock + 1, *rest),
    "Servers take a new worker to be one clock further than it is.",
)  # fmt: skip

# ---------------------------------------------------------------------------- requests


def _fresh_logs(right):
    def adopt(self, view):
        right(self, view)
        self.logs = {
            node: RequestLog(log.incarnation, log.rank, log.group)
            for node, log in self.logs.items()
        }

    return adopt


request_logs_begin_anew = bug(
    Admission, "adopt", _fresh_logs,
    "A server forgets with each view which requests it has seen.",
)  # fmt: skip
nothing_is_rechecked = bug(
    RequestLog, "placements_changed", instead(None),
    "A request of before rows moved is taken to be whole where they are now.",
)  # fmt: skip
parts_not_cut = bug(
    RequestLog, "recut", instead(None),
    "Parts of pushes belong to shards that have been cut since.",
)  # fmt: skip
pulls_wait_on = bug(
    WaitQueue, "clear", instead(None),
    "Pulls wait on at servers that are not asked any more.",
)  # fmt: skip
half_a_push_stays_behind = bug(
    StateTransfer, "_take_in",
    lambda right: lambda self, seen, log, replica: right(
        self, replace(seen, pushes=tuple(_whole(each, replica) for each in seen.pushes)),
        log, replica,
    ),
    "Rows move with a push half streamed, which is taken for whole.",
)  # fmt: skip


def _whole(pushed, replica):
    seq, parts = pushed
    return seq, tuple(replica.part(replica.rows, -1) for _ in parts)


resend_applies_all = bug(
    Replica, "pieces", lambda right: lambda self, staged, missing: [staged],
    "A push that comes again is applied whole, though some of its fragments are in the rows.",
)  # fmt: skip


def _heard_only(right):
    def progress(self, group):
        heard = max((replica.reached for replica in self._chains.of(group)), default=0)
        return replace(right(self, group), replayed=heard)

    return progress


joiner_in_closed_rounds = bug(
    Replication, "progress", _heard_only,
    "A promise leaves out the rounds in rows that were sent there.",
)  # fmt: skip


# ---------------------------------------------------------------------------- replicas

older_chunk_is_taken = bug(
    StateTransfer, "install",
    lambda right: lambda self, message, replica, loads, out: right(
        self, replace(message, at=replica.at, since=replica.placement.syncing_since),
        replica, loads, out,
    ),
    "A syncing replica takes a chunk whichever it is, of an earlier transfer as well.",
)  # fmt: skip
syncing_begins_at_zero = bug(
    Replica, "begin_syncing", instead(None),
    "A syncing replica applies what comes before its first chunk.",
)  # fmt: skip
history_without_closed = bug(
    Replica, "sync_from",
    lambda right: lambda self, version, closed: right(self, version, 0),
    "A syncing replica does not know which rounds are in its rows.",
)  # fmt: skip


def _done_stays(right):
    def move(self, placement):
        done = self.done
        right(self, placement)
        self.done = done

    return move


new_tail_waits_for_nobody = bug(
    Replica, "move", _done_stays,
    "A server that has become the tail waits for the one after it.",
)  # fmt: skip
all_is_done_with_a_view = bug(
    Replica, "move",
    then(lambda self, placement: setattr(self, "done", max(self.version, 0))),
    "Every server takes what it has for done with each view.",
)  # fmt: skip
ended_for_ever = bug(
    Replica, "move",
    lambda right: lambda self, placement: _ended_kept(right, self, placement),
    "A clock that had ended stays so, though other workers came with the view.",
)  # fmt: skip


def _ended_kept(right, self, placement):
    ended = self.ended
    right(self, placement)
    self.ended = ended


operations_go_to_nobody = bug(
    Chains, "adopt",
    first(lambda self, *_: self._log.clear()),
    "What is not on all servers is not sent again in the next view.",
)  # fmt: skip
clock_of_later_operations = bug(
    Operation, "send_again", lambda right: Operation.keep,
    "What is sent again in a new view says a clock whose operations come after it.",
)  # fmt: skip
link_numbers_go_on = bug(
    Chains, "adopt",
    lambda right: lambda self, view, rank, out: _keep_incoming(right, self, view, rank, out),
    "A server expects the numbers of the view before.",
)  # fmt: skip


def _keep_incoming(right, self, view, rank, out):
    incoming = dict(self._incoming)
    right(self, view, rank, out)
    self._incoming.update(incoming)


transfer_goes_on_under_another_view = bug(
    StateTransfer, "adopt",
    lambda right: lambda self: _keep_transfers(right, self),
    "A transfer of before goes on where its syncing replica has begun anew.",
)  # fmt: skip


def _keep_transfers(right, self):
    before = dict(self.sending)
    right(self)
    for number in self.sending.keys() & before.keys():
        before[number].since = self.sending[number].since
        self.sending[number] = before[number]


clocks_of_takeover_ignored = bug(
    Replicas, "adopt",
    lambda right: lambda self, view, rank, take: _without_begin(right(self, view, rank, take)),
    "A new head believes that its rows are as far as its clocks.",
)  # fmt: skip


def _without_begin(moved):
    moved.begin.clear()
    return moved
