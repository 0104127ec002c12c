"""FailureDetector: suspects silent members, with a time-out that adapts to their heartbeats.

No fixed time-out fits both an idle machine and a slow one. The limit is a multiple of the largest
recent lateness of a member's heartbeats, and at least the option. Chen, Toueg and Aguilera 2002
("On the quality of service of failure detectors", section 6) have a constant safety margin over the
expected arrival instead. A scheduler that was stopped itself has heard of no member meanwhile,
which says nothing about them.

If no member is heard of any more, the scheduler is more likely cut off than all members are dead:
it waits as long for them as for a sole replica.

A member whose process sends heartbeats is alive, and busy if its loop makes no turns. Without a
turn for the hang time-out it is hung, and declared dead: a lock that is never released, for
example, stops a loop and not its process. User code may take any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec

from shoal.protocol.messages.membership import ProcessHeartbeat
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.views import NodeId

PATIENCE = 3.0  # times the largest lateness
HALVES_S = 30.0  # half-life of a lateness
WEIGHT = 0.125  # of the latest interval in the mean of all
LOOK_S = 0.1  # between suspecting a member and declaring it dead
RESPITE_S = 1.0  # grace after the scheduler did not run, to read the messages that have arrived


class _Heard(msgspec.Struct, eq=False):
    """The state of one member.

    Attributes:
        at: the time when it was last heard of.
        silent_at: the time when it is declared dead.
        beat_at: the time when its last heartbeat arrived; -1 before the first.
        mean: the mean interval between heartbeats.
        late: the largest recent excess of an interval over the mean.
        suspected: whether it is dead unless a message has arrived by the second look.
        cut_off_at: the time when its connection broke, if it was not heard of since; else inf.
        alone: whether it is waited for longer, as a sole replica or because no member is heard of.
        turns: the number of turns of its loop, from its process; -1 before the first heartbeat.
        turned_at: the time of the last heartbeat of its process with another turn or in user code.
        place: the place of its loop in the code, if it makes no turns.
    """

    at: float
    silent_at: float
    beat_at: float = -1.0
    mean: float = 0.0
    late: float = 0.0
    suspected: bool = False
    cut_off_at: float = inf
    alone: bool = False
    turns: int = -1
    turned_at: float = 0.0
    place: str = ""

    @property
    def look_at(self) -> float:
        """The time of the next look at it, the first or the second."""
        return self.silent_at if self.suspected else self.silent_at - LOOK_S

    def beat(self, now: float) -> None:
        if self.beat_at >= 0:
            interval = now - self.beat_at
            self.mean += ((interval - self.mean) * WEIGHT) if self.mean else interval
            faded = self.late * 0.5 ** (interval / HALVES_S)
            self.late = max(interval - self.mean, faded)
        self.beat_at = now


class FailureDetector:
    """The members' times of silence, and which members are declared dead."""

    def __init__(self, options: SchedulerOptions) -> None:
        self._options = options
        self._heard: dict[NodeId, _Heard] = {}
        self._isolated = False  # no member is heard of: the scheduler may be cut off

    def heard_of(self, node: NodeId, now: float, beat: bool = False) -> None:
        """Note that a member lives; `beat` marks one of its regular heartbeats."""
        heard = self._heard.get(node)
        if heard is None:
            heard = self._heard[node] = _Heard(now, inf)
        if beat and heard.turns < 0:
            heard.beat(now)
        self._lives(node, heard, now)

    def process_lives(self, beat: ProcessHeartbeat, now: float) -> None:
        """Note that the process of a member lives: it is alive, unless its loop is hung."""
        heard = self._heard.get(beat.node)
        if heard is None:
            return
        if beat.turns != heard.turns or beat.in_user_code:
            heard.turns, heard.turned_at = beat.turns, now
        heard.place = beat.at
        heard.beat(now)
        sent_since = now > heard.cut_off_at + LOOK_S or heard.cut_off_at == inf
        if sent_since and not self._hung(heard, now):
            self._lives(beat.node, heard, now)

    def _hung(self, heard: _Heard, now: float) -> bool:
        return heard.turns >= 0 and now >= heard.turned_at + self._options.hang_timeout_s

    def _lives(self, node: NodeId, heard: _Heard, now: float) -> None:
        if self._isolated:
            self._isolated = False
            for each in self._heard.values():  # the others will be heard of as well
                each.silent_at, each.suspected = now + self._options.failure_timeout_s, False
                each.alone = False
        heard.at = now
        heard.suspected = heard.alone = False
        heard.cut_off_at = inf
        heard.silent_at = now + self.limit(node)

    def forget(self, node: NodeId) -> None:
        """Stop expecting to hear of a member."""
        self._heard.pop(node, None)

    def limit(self, node: NodeId) -> float:
        """Return the seconds of silence after which a member is declared dead."""
        heard, least = self._heard[node], self._options.failure_timeout_s
        most = max(least, self._options.silence_most_s)
        return min(max(least, heard.mean + PATIENCE * heard.late), most)

    def cut_off(self, node: NodeId, now: float) -> None:
        """Note that the connection to a member broke; if it lives it reconnects."""
        heard = self._heard.get(node)
        if heard is not None:
            heard.cut_off_at = now
            wait = max(self._options.broken_s, PATIENCE * heard.late)
            heard.silent_at, heard.suspected = min(heard.silent_at, now + wait), False

    def held_up(self, now: float) -> None:
        """Grant all members a grace period: the scheduler itself was not running."""
        for heard in self._heard.values():
            heard.silent_at, heard.suspected = max(heard.silent_at, now + RESPITE_S), False
            heard.beat_at = -1.0  # its lateness would be the scheduler's

    def spare(self, node: NodeId, now: float) -> bool:
        """Wait longer for a silent member; return False if it is dead or that time is over.

        Without a proof of its death the rows of a sole replica are not abandoned so soon.
        """
        heard = self._heard[node]
        until = heard.at + self._options.sole_replica_timeout_s
        if (heard.cut_off_at < inf and self._options.same_host) or now >= until:
            return False
        heard.alone, heard.suspected, heard.silent_at = True, False, until
        return True

    def how(self, node: NodeId, now: float) -> str:
        """Return why a member is declared dead, as text."""
        heard = self._heard[node]
        if heard.place and self._hung(heard, now):
            return f"hung: its loop has been at {heard.place} for {now - heard.turned_at:.0f} s"
        broke = ", and its connection broke" if heard.cut_off_at < inf else ""
        return f"not heard of for {now - heard.at:.1f} s{broke}"

    def silent(self, now: float) -> list[NodeId]:
        """Return the members to declare dead: suspects that are still silent at a second look."""
        late = [(node, heard) for node, heard in self._heard.items() if now >= heard.look_at]
        found = [node for node, heard in late if heard.suspected]
        if found and self._hears_nobody(now):
            self._isolated = True
            found = [node for node in found if not self.spare(node, now)]
        for _, heard in late:
            if not heard.suspected:
                heard.suspected, heard.silent_at = True, max(heard.silent_at, now + LOOK_S)
        return found

    def _hears_nobody(self, now: float) -> bool:
        """Return whether all members fell silent at once, and none of their connections broke."""
        quiet_s = self._options.failure_timeout_s / 2
        all_quiet = all(
            now - each.at > quiet_s and each.cut_off_at == inf for each in self._heard.values()
        )
        return len(self._heard) > 1 and all_quiet

    def spared(self, now: float) -> list[tuple[NodeId, float]]:
        """Return (member, seconds of silence) of silent members that are waited for longer."""
        return [(node, now - each.at) for node, each in self._heard.items() if each.alone]

    def busy(self, now: float) -> list[tuple[NodeId, str, float]]:
        """Return (member, place, seconds) of members whose loop makes no turns."""
        heard = self._heard.items()
        return [(node, each.place, now - each.turned_at) for node, each in heard if each.place]

    def wakes_at(self) -> float:
        """Return the time of the next look."""
        return min((heard.look_at for heard in self._heard.values()), default=inf)

    def quiet_for(self, nodes: Iterable[NodeId], now: float) -> float:
        """Return the seconds since the quietest of these nodes was heard of."""
        heard = [self._heard[node].at for node in nodes if node in self._heard]
        return now - min(heard, default=now)
