"""What the scheduler is told at its start, and what it writes down for its successor."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from shoal.errors import InvalidValue
from shoal.protocol.scheduler.leases import LedgerRecord
from shoal.protocol.views import Member, NodeId, View

# By what becomes of slow workers: the part of the time after which one is dropped, 0 for never.
SLOW_SHARE: Mapping[str, float] = MappingProxyType({"wait": 0.0, "drop": 0.5, "backup": 0.5})


class SchedulerOptions(msgspec.Struct, frozen=True):
    """
    servers, workers:  how many make the cluster complete
    join_timeout_s:    how long to wait for them
    silence_s:         a member that is silent for this long is taken for dead; after heartbeats
                       that came late, for longer (`FailureDetector`), at most silence_most_s
    broken_s:          ... or for this long after its connection broke
    alone_s:           ... for this long where it has rows that nobody else has, and there is no
                       proof of its death
    same_host:         all members are on this host: a connection that broke is such a proof
    resend_s:          between repetitions of an unanswered Freeze or End
    drain_s:           how long servers are asked to drain for a view that moves rows; when that was
                       in vain, a view without moves is made, and it is tried again after pause_s;
                       sooner where something had only come in after they had drained
    linger_s:          at the end, how long to wait for members to confirm it
    replicas:          servers that have a copy of each row, where there are as many
    slow_share:        a worker is dropped that others have waited for in so much of the last
                       slow_s; 0 for nobody
    checkpoint_s:      a view names a clock for a checkpoint as often as that; 0 for never
    elastic:           workers may join and leave while the run goes on
    run:               its name, if no scheduler before has given it one
    """

    servers: int
    workers: int
    join_timeout_s: float = 120.0
    silence_s: float = 10.0
    silence_most_s: float = 15.0  # less than workers wait for an answer
    broken_s: float = 3.0
    alone_s: float = 15.0
    same_host: bool = False
    resend_s: float = 0.25
    linger_s: float = 2.0
    elastic: bool = False
    replicas: int = 1
    drain_s: float = 2.0
    pause_s: float = 10.0
    slow_share: float = 0.0
    slow_s: float = 5.0
    checkpoint_s: float = 0.0
    run: str = ""


def check_options(options: SchedulerOptions) -> None:
    """Refuse options that could never make a cluster."""
    if options.servers < 0:
        raise InvalidValue(
            f"a cluster has 0 servers (for allreduce) or more, not {options.servers}"
        )
    if not 1 <= options.replicas <= max(options.servers, 1):
        raise InvalidValue(
            f"{options.replicas} replicas need as many servers, and at least one; there are "
            f"{options.servers}"
        )
    if options.workers < 1:
        raise InvalidValue(f"a cluster needs at least one worker, not {options.workers}")


class JournalRecord(msgspec.Struct, array_like=True):
    """What survives a restart: written whole, before anything that rests on it is told."""

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
