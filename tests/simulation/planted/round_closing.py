"""Bugs in rounds that close without some workers, planted by replacing one method."""

from math import inf

from shoal.protocol.consistency import Clocks, VectorClock
from shoal.protocol.server.requests.executor import Executor
from shoal.protocol.server.requests.round_closing import RoundCloser
from shoal.protocol.server.requests.wait_queue import WaitQueue
from shoal.protocol.views import FOREVER
from tests.simulation.planted.patches import bug, instead


def _fewer(right):
    def passed(self):
        at_work = sorted((at for _, at in self.items() if at < FOREVER), reverse=True)
        return at_work[: max(1, self.closes.k - 1)][-1] if at_work else FOREVER

    return passed


def _with_finished(right):
    def passed(self):
        latest_first = sorted((at for _, at in self.items()), reverse=True)
        return latest_first[: self.closes.k][-1] if latest_first else FOREVER

    return passed


def _at_once(right):
    def look(self, now):
        moved = right(self, now)
        return (bool(self._passed) and right(self, self._passed[-1][0])) or moved

    return look


def _unwatched(right):
    def look(self, group, now):
        moved = right(self, group, now)
        self.due_at = inf
        return moved

    return look


def _own_clock_only(right):
    def too_late(self, admitted):
        clock = admitted.request.clock
        reached = self._clocks.by_worker[admitted.request.incarnation].closed
        return right(self, admitted) if clock < reached else ""

    return too_late


def _together(right):
    def by_pushes(self, entries, group):
        numbers = {part.number for entry in entries for part in entry.parts}
        return [(entries, sorted(numbers))] if entries else []

    return by_pushes


def _stays(right):
    def do(self, admitted, out):
        advance, self._advance = self._advance, lambda *ignored: None
        try:
            late = bool(admitted.request.pushes) and self.wait_queue.too_late(admitted)
            self._advance = self._advance if late else advance
            right(self, admitted, out)
        finally:
            self._advance = advance

    return do


quorum_of_one_less = bug(
    VectorClock, "passed", _fewer,
    "A round closes one worker too early.",
)  # fmt: skip
quorum_of_finished_workers = bug(
    VectorClock, "passed", _with_finished,
    "Workers that have finished count as if they were in every round.",
)  # fmt: skip
grace_window_is_ignored = bug(
    VectorClock, "look", _at_once,
    "A round closes as soon as a quorum has passed it.",
)  # fmt: skip
grace_window_never_ends = bug(
    Clocks, "look", _unwatched,
    "Nothing wakes the server at the end of a grace window.",
)  # fmt: skip
late_pushes_are_taken = bug(
    WaitQueue, "too_late", instead(""),
    "A push is applied although its round has closed.",
)  # fmt: skip
received_rows_have_no_rounds = bug(
    WaitQueue, "too_late", _own_clock_only,
    "A round is opened again in rows that were received after it had closed in them.",
)  # fmt: skip
late_parts_count_as_applied = bug(
    RoundCloser, "_by_pushes", _together,
    "A push that is in the round of some shards counts as applied to all of the server's.",
)  # fmt: skip
late_workers_stay_behind = bug(
    Executor, "_do", _stays,
    "The clock of a worker whose push comes late is not moved.",
)  # fmt: skip
