"""Stragglers: workers that the others wait for most of the time."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.protocol.messages import WaitTimes
from shoal.protocol.scheduler.journal import SchedulerOptions
from shoal.protocol.scheduler.members import Members
from shoal.protocol.views import Member

STALLED_S = 2.0  # a server that is not heard of for so long may be what others wait for
Told = list[tuple[float, float]]  # (when, seconds so far)


class Stragglers:
    """What servers tell of waits, over the last `slow_s`."""

    def __init__(self, options: SchedulerOptions) -> None:
        self._options = options
        self._told: dict[tuple[int, int], Told] = {}  # by (server, worker)

    def heard(self, server: Member, message: WaitTimes, now: float) -> None:
        """One server's seconds, which only grow; what is older than the last `slow_s` goes."""
        for worker, seconds in message.seconds:
            told = self._told.setdefault((server.incarnation, worker), [])
            told.append((now, seconds))
            while len(told) > 1 and told[1][0] <= now - self._options.slow_s:
                del told[0]

    def shares(self, members: Mapping[str, Member], now: float) -> list[tuple[Member, float]]:
        """For what part of that time each worker was waited for, most first; at any server."""
        shares: dict[int, float] = {}
        for (_, worker), told in self._told.items():
            (began, before), (_, since) = told[0], told[-1]
            share = (since - before) / max(self._options.slow_s, now - began)
            shares[worker] = max(share, shares.get(worker, 0.0))
        here = {member.incarnation: member for member in members.values()}
        found = [(here[worker], share) for worker, share in shares.items() if worker in here]
        return sorted(found, key=lambda pair: -pair[1])

    def slow(self, members: Members, now: float) -> list[tuple[Member, str]]:
        """Whom the others are to go on without, and why; somebody is left."""
        limit = self._options.slow_share
        if not limit:
            return []
        if members.quiet_for(now) >= STALLED_S:  # perhaps it is a server that they wait for
            self._told.clear()
        since = min((told[0][0] for told in self._told.values()), default=now)
        if now - since < self._options.slow_s:
            return []
        late = [
            (member, share)
            for member, share in self.shares(members.by_id, now)
            if member.id in (at_work := members.at_work(member.group)) and len(at_work) > 1
        ]
        return [
            (
                member,
                f"the others waited for {member.name} {share:.0%} of the last "
                f"{self._options.slow_s:g} s",
            )
            for member, share in late[:1]
            if share >= limit
        ]

    def forget(self, member: Member) -> None:
        """It is gone, and what was told of it or by it."""
        gone = member.incarnation
        self._told = {key: told for key, told in self._told.items() if gone not in key}
