"""Stragglers: workers for which the others wait most of the time."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.protocol.messages.membership import WaitTimes
from shoal.protocol.scheduler.members import Members
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.views import Member

STALLED_S = 2.0  # a server that is silent for this long may be what workers wait for
REPORTS = 200  # the most reports of a server about a worker
Reports = list[tuple[float, float]]  # (time, seconds so far)


class Stragglers:
    """The waits that servers report, over the last `slow_window_s` seconds."""

    def __init__(self, options: SchedulerOptions) -> None:
        self._options = options
        self._reports: dict[tuple[int, int], Reports] = {}  # by (server, worker)

    def heard(self, server: Member, message: WaitTimes, members: Members, now: float) -> None:
        """Add a server's report of seconds, which only grow; drop those before the window."""
        workers = {member.incarnation for member in members.by_id.values()}
        for worker, seconds in message.seconds:
            if worker not in workers:
                continue
            reports = self._reports.setdefault((server.incarnation, worker), [])
            if len(reports) > 1 and now < reports[-2][0] + self._options.slow_window_s / REPORTS:
                reports.pop()
            reports.append((now, seconds))
            while len(reports) > 1 and reports[1][0] <= now - self._options.slow_window_s:
                del reports[0]

    def shares(self, members: Mapping[str, Member], now: float) -> list[tuple[Member, float]]:
        """Return (worker, its largest share of that time in the reports of a server), sorted."""
        shares: dict[int, float] = {}
        for (_, worker), reports in self._reports.items():
            (began, before), (_, since) = reports[0], reports[-1]
            share = (since - before) / max(self._options.slow_window_s, now - began)
            shares[worker] = max(share, shares.get(worker, 0.0))
        here = {member.incarnation: member for member in members.values()}
        found = [(here[worker], share) for worker, share in shares.items() if worker in here]
        return sorted(found, key=lambda pair: -pair[1])

    def slow(self, members: Members, now: float) -> list[tuple[Member, str]]:
        """Return the worker to drop, and why; none if it is the last of its group."""
        limit = self._options.slow_share
        if not limit:
            return []
        quiet_s = members.detector.quiet_for(members.servers(), now)
        if quiet_s >= STALLED_S:  # the waits may be for that server
            self._reports.clear()
        since = min((reports[0][0] for reports in self._reports.values()), default=now)
        if now - since < self._options.slow_window_s:
            return []
        for member, share in self.shares(members.by_id, now):
            at_work = members.at_work(member.group)
            if share >= limit and member.id in at_work and len(at_work) > 1:
                seconds = f"{share:.0%} of the last {self._options.slow_window_s:g} s"
                return [(member, f"the others waited for {member.name} {seconds}")]
        return []

    def forget(self, member: Member) -> None:
        """Drop the reports about and from a member that is gone."""
        gone = member.incarnation
        self._reports = {key: reports for key, reports in self._reports.items() if gone not in key}
