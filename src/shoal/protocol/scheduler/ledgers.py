"""LeaseLedgers: the lease ledger of each worker group."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.protocol.machine import Append, Effects, Send
from shoal.protocol.messages.membership import Lease, Leased
from shoal.protocol.messages.reasons import Waiting, some_of
from shoal.protocol.scheduler.leases.ledger import Leases, LedgerRecord, Span
from shoal.protocol.scheduler.leases.log import LeaseGranted, LogEntry, WorkerGone
from shoal.protocol.scheduler.members import Members
from shoal.protocol.scheduler.notes import BatchesLeased
from shoal.protocol.views import Member, NodeId, View


class LeaseLedgers:
    """The lease ledgers by group: which worker has which batches."""

    def __init__(self, records: Mapping[str, LedgerRecord]) -> None:
        self._leases = {group: Leases(record) for group, record in records.items()}
        self._since: dict[NodeId, float] = {}  # when each waiting worker has asked first

    def of(self, group: str) -> Leases:
        """Return the ledger of a group; create it if it is missing."""
        return self._leases.setdefault(group, Leases(LedgerRecord()))

    def records(self) -> dict[str, LedgerRecord]:
        return {group: leases.record() for group, leases in self._leases.items()}

    def end(self, group: str) -> None:
        """Drop the ledger of a finished group; a later group of that name has its own data."""
        self._leases.pop(group, None)

    def ask(self, member: Member, asked: Lease, now: float) -> None:
        """Record a worker's request for batches; its earlier leases are done."""
        self._since.setdefault(member.id, now)
        self.of(member.group).ask(member.id, asked)

    def waits(self, members: Members, now: float) -> list[Waiting]:
        """Return the workers that wait for batches, and the workers that they wait for."""
        names = {member.incarnation: member.name for member in members.by_id.values()}
        found = []
        for leases in self._leases.values():
            others = some_of([names[each] for each in leases.holders if each in names])
            for node in leases.wanting:
                who = members.by_id[node].name if node in members.by_id else node
                seconds = now - self._since.get(node, now)
                found.append(Waiting(who, "a lease", f"waits for {others} to do theirs", seconds))
        return found

    def answers(self, members: Members) -> tuple[list[Append], Effects]:
        """Grant the leases that can be granted now; return entries of the lease log, and effects.

        The effects follow once the entries and the ledgers are durable.
        """
        entries: list[Append] = []
        out: Effects = []
        for group, leases in self._leases.items():
            for node, answer in leases.answers(len(members.at_work(group))):
                if isinstance(answer, Leased) and answer.count:
                    if not group:
                        granted = leases.granted_to(members.by_id[node].incarnation)
                        entries.append(_entry(LeaseGranted(**leases.size, granted=granted)))
                    told = {**leases.size, **msgspec.structs.asdict(answer)}
                    out.append(BatchesLeased(members.by_id[node].name, group, **told))
                self._since.pop(node, None)
                out.append(Send(node, answer))
        return entries, out

    def departing(self, view: View) -> list[Append]:
        """Return entries of the lease log for a view's departed workers, before it is offered.

        Servers may write a checkpoint before the scheduler hears that the view is adopted.
        """
        leases = self.of("")
        gone = [each for each in view.departed if not each.group]
        return [
            _entry(WorkerGone(each.incarnation, each.done_clock))
            for each in gone
            if leases.has_granted(each.incarnation)
        ]

    def reclaim(self, view: View) -> list[tuple[Member, Span]]:
        """Take back the unfinished batches of a view's departed workers; return them by worker."""
        left = [(each, self.gone(each, each.done_clock)) for each in view.departed]
        return [(member, span) for member, span in left if span is not None]

    def gone(self, member: Member, done_clock: int) -> Span | None:
        """Take back and return the unfinished batches of a worker that ended at `done_clock`."""
        leases = self._leases.get(member.group)  # many groups lease nothing
        return leases.gone(member.incarnation, done_clock) if leases is not None else None

    def withdraw(self, member: Member) -> None:
        """Drop a worker's request for batches."""
        self._since.pop(member.id, None)
        if member.group in self._leases:
            self._leases[member.group].withdraw(member.incarnation)


def _entry(entry: LogEntry) -> Append:
    return Append(msgspec.json.encode(entry))
