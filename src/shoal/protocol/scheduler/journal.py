"""The journal from which a restarted scheduler continues."""

from __future__ import annotations

import msgspec

from shoal.errors import DataCorrupt, UsageError
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.protocol.views import FOREVER, Member, NodeId, View


class JournalRecord(msgspec.Struct, array_like=True):
    """The state that survives a restart: written whole, before any message depends on it.

    Attributes:
        view: the current view, which some member has adopted.
        offered: the next view, which no server is known to have adopted.
        rows_lost: whether the run has ended because rows are lost.
    """

    term: int = 0
    view: View | None = None
    next_incarnation: int = 1
    members: tuple[Member, ...] = ()
    finished: tuple[NodeId, ...] = ()
    released: dict[str, int] = {}
    ended: bool = False
    reason: str = ""
    left: tuple[NodeId, ...] = ()
    ledgers: dict[str, LedgerRecord] = {}
    run: str = ""
    offered: View | None = None
    rows_lost: bool = False


def read_record(data: bytes) -> JournalRecord:
    """Return the record in a journal.

    Raises:
        DataCorrupt: the data is no record, or the record contradicts itself
    """
    try:
        record = msgspec.msgpack.decode(data, type=JournalRecord)
    except (ValueError, RecursionError, UsageError) as error:
        raise DataCorrupt(f"is no record of a scheduler: {error}") from None
    problem = _contradiction(record)
    if problem:
        raise DataCorrupt(f"is no record of a scheduler: {problem}")
    return record


def _contradiction(record: JournalRecord) -> str:
    """Return the contradiction or number out of range in a record; "" if there is none."""
    views = [view for view in (record.view, record.offered) if view is not None]
    members = [*record.members, *(m for v in views for m in (*v.servers, *v.workers, *v.departed))]
    counts = [record.term, *(n for view in views for n in view.id), *record.released.values()]
    counts += [n for m in members for n in (m.rank, m.first_clock, m.last_clock, m.done_clock)]
    counts += [n for view in views for n in view.checkpoint_clocks]
    if not all(0 <= count <= FOREVER for count in counts):
        return "a number in it is out of its range"
    if not all(0 < m.incarnation < record.next_incarnation <= FOREVER for m in members):
        return "a member's incarnation was not granted"
    problems = [(view, view.problem()) for view in views]
    return next((f"view {view.id}: {problem}" for view, problem in problems if problem), "")
