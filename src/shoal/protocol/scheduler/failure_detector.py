"""Detection: when a member that says nothing is taken for dead.

No fixed time-out fits a calm machine and a slow one. A member's heartbeats say how late they may
come while it lives: the limit is a multiple of the largest lateness lately, and the option is only
the least of it (Chen, Toueg and Aguilera, "On the Quality of Service of Failure Detectors", 2002,
section 6, has a safety margin over the expected arrival as well; there it is constant). And whoever
was held up itself has heard of nobody meanwhile, which says nothing about them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec

from shoal.protocol.scheduler.journal import SchedulerOptions
from shoal.protocol.views import NodeId

PATIENCE = 3.0  # times the largest lateness
HALVES_S = 30.0  # after which a lateness counts half
WEIGHT = 0.125  # of the latest interval in the mean of all
LOOK_S = 0.1  # between two looks at who is silent
HELD_UP_S = 0.5  # behind its own time: the scheduler was not running
RESPITE_S = 1.0  # then, for what has come in meanwhile to be read


class _Heard(msgspec.Struct, eq=False):
    """
    at:         when it was heard of last
    silent_at:  when it is taken for dead
    beat_at:    when its last heartbeat came; -1 before the first
    mean, late: of the intervals between them: the mean, and the largest excess lately
    suspected:  it is looked at once more
    cut_off:    its connection has broken since
    alone:      it has rows that nobody else has, and is waited for
    """

    at: float
    silent_at: float
    beat_at: float = -1.0
    mean: float = 0.0
    late: float = 0.0
    suspected: bool = False
    cut_off: bool = False
    alone: bool = False

    @property
    def look_at(self) -> float:
        """When it is looked at: twice."""
        return self.silent_at if self.suspected else self.silent_at - LOOK_S

    def beat(self, now: float) -> None:
        if self.beat_at >= 0:
            interval = now - self.beat_at
            self.mean += ((interval - self.mean) * WEIGHT) if self.mean else interval
            faded = self.late * 0.5 ** (interval / HALVES_S)
            self.late = max(interval - self.mean, faded)
        self.beat_at = now


class FailureDetector:
    """Who has been heard of, and who has not for too long."""

    def __init__(self, options: SchedulerOptions) -> None:
        self._options = options
        self._heard: dict[NodeId, _Heard] = {}

    def heard_of(self, node: NodeId, now: float, beat: bool = False) -> None:
        """It lives; `beat`: it said so at its own regular time."""
        heard = self._heard.get(node)
        if heard is None:
            heard = self._heard[node] = _Heard(now, inf)
        if beat:
            heard.beat(now)
        heard.at = now
        heard.suspected = heard.cut_off = heard.alone = False
        heard.silent_at = now + self.limit(node)

    def forget(self, node: NodeId) -> None:
        """It is not expected to be heard of."""
        self._heard.pop(node, None)

    def limit(self, node: NodeId) -> float:
        """Seconds without a word after which a member is taken for dead."""
        heard, least = self._heard[node], self._options.silence_s
        most = max(least, self._options.silence_most_s)
        return min(max(least, heard.mean + PATIENCE * heard.late), most)

    def cut_off(self, node: NodeId, now: float) -> None:
        """The connection to it broke; if it lives it comes back."""
        heard = self._heard.get(node)
        if heard is not None:
            heard.cut_off = True
            wait = max(self._options.broken_s, PATIENCE * heard.late)
            heard.silent_at, heard.suspected = min(heard.silent_at, now + wait), False

    def held_up(self, now: float) -> None:
        """The scheduler was not running: what members have said meanwhile is still to be read."""
        for heard in self._heard.values():
            heard.silent_at, heard.suspected = max(heard.silent_at, now + RESPITE_S), False
            heard.beat_at = -1.0  # its lateness would be the scheduler's

    def spare(self, node: NodeId, now: float) -> bool:
        """Whether to go on waiting for a member that is silent but has rows which nobody else has:
        without a proof of its death these are not given up so soon."""
        heard = self._heard[node]
        until = heard.at + self._options.alone_s
        if (heard.cut_off and self._options.same_host) or now >= until:
            return False
        heard.alone, heard.suspected, heard.silent_at = True, False, until
        return True

    def how(self, node: NodeId, now: float) -> str:
        """Why it is taken for dead, in words."""
        heard = self._heard[node]
        broke = ", and its connection broke" if heard.cut_off else ""
        return f"not heard of for {now - heard.at:.1f} s{broke}"

    def silent(self, now: float) -> list[NodeId]:
        """Who is to be taken for dead: on a second look, after what has come in by now is read."""
        late = [(node, heard) for node, heard in self._heard.items() if now >= heard.look_at]
        found = [node for node, heard in late if heard.suspected]
        for _, heard in late:
            if not heard.suspected:
                heard.suspected, heard.silent_at = True, max(heard.silent_at, now + LOOK_S)
        return found

    def spared(self, now: float) -> list[tuple[NodeId, float]]:
        """Who is waited for although silent, and for how long it has been."""
        return [(node, now - each.at) for node, each in self._heard.items() if each.alone]

    def wakes_at(self) -> float:
        """When the next one is."""
        return min((heard.look_at for heard in self._heard.values()), default=inf)

    def quiet_for(self, nodes: Iterable[NodeId], now: float) -> float:
        """For how long the one of these has not been heard of that has been quiet for longest."""
        heard = [self._heard[node].at for node in nodes if node in self._heard]
        return now - min(heard, default=now)
