"""The options of a scheduler, and the journal from which a restarted one continues."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from shoal.errors import DataCorrupt, InvalidValue, UsageError
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.protocol.views import FOREVER, Member, NodeId, View

# By --slow-workers: share of the time that others wait, after which a worker is dropped; 0: never.
WITHOUT_A_BREAK = 0.98  # of a time in which a worker was waited for; waits are told now and then
SLOW_SHARE: Mapping[str, float] = MappingProxyType({"wait": 0.0, "drop": 0.5, "backup": 0.5})


class SchedulerOptions(msgspec.Struct, frozen=True):
    """
    servers, workers:  members that make the cluster complete
    join_timeout_s:    time to wait for them
    silence_s:         silence after which a member counts as failed (--failure-timeout-s); more
                       after late heartbeats (`FailureDetector`), at most silence_most_s
    broken_s:          silence after a broken connection, after which a member counts as failed
    alone_s:           silence after which a server with the only copy of some rows counts as failed
                       (--sole-replica-timeout-s), if its death is not proven
    hang_s:            time without a turn of a member's loop, outside of user code, after which it
                       counts as failed though its process lives (--hang-timeout-s)
    same_host:         all members are on this host, where a broken connection proves a death
    resend_s:          time between repetitions of an unanswered Freeze or End
    drain_s:           time for servers to drain before a view that moves rows; if it is too short,
                       a view without moves is made, and the move is tried again after pause_s, or
                       sooner if only late requests had prevented it
    linger_s:          time at the end for members to confirm it
    replicas:          servers that have a copy of each row, if there are as many
    slow_share:        share of the last slow_s that others have waited for a worker, after which it
                       is dropped; 0: never
    checkpoint_s:      time between the checkpoints that views name; 0: none
    passed:            clocks of the runs that this one continues, for the names of checkpoints
    fragment_rows:     by table, its fragment size in the shards that servers begin with: update
                       counts are by fragment
    on_worker_loss:    when a worker of the first group is lost, "stop": the run ends; "drop": it
                       goes on; "replace": and is not over before another has taken its place
    elastic:           workers may join and leave during the run
    run:               name of the run, unless an earlier scheduler has given it one
    """

    servers: int
    workers: int
    join_timeout_s: float = 120.0
    silence_s: float = 10.0
    silence_most_s: float = 15.0  # less than workers wait for an answer
    broken_s: float = 3.0
    alone_s: float = 15.0
    hang_s: float = 60.0
    same_host: bool = False
    resend_s: float = 0.25
    linger_s: float = 2.0
    elastic: bool = False
    on_worker_loss: str = "drop"
    replicas: int = 1
    drain_s: float = 2.0
    pause_s: float = 10.0
    slow_share: float = 0.0
    slow_s: float = 5.0
    checkpoint_s: float = 0.0
    passed: int = 0
    fragment_rows: Mapping[str, int] = {}
    run: str = ""


def check_options(options: SchedulerOptions) -> None:
    """Refuse options that could never make a cluster."""
    if options.servers < 0:
        raise InvalidValue(
            f"a cluster has 0 servers (for allreduce) or more, not {options.servers}"
        )
    if not 1 <= options.replicas <= max(options.servers, 1):
        raise InvalidValue(
            f"--replicas {options.replicas} needs at least {options.replicas} servers (got "
            f"{options.servers})"
        )
    if options.workers < 1:
        raise InvalidValue(f"a cluster needs at least one worker, not {options.workers}")


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
    """The record in a journal.

    Raises:
        DataCorrupt: it is none, or contradicts itself
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
    """What is impossible in a record; "" if nothing is. Numbers that grow have room to."""
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
