"""The options of a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from shoal.errors import InvalidValue

# The share of the time that others wait for a worker, from which on it is dropped; 0: never.
WITHOUT_A_BREAK = 0.98  # all the time: servers report waits only now and then
# By --slow-workers.
SLOW_SHARE: Mapping[str, float] = MappingProxyType({"wait": 0.0, "drop": 0.5, "backup": 0.5})


class SchedulerOptions(msgspec.Struct, frozen=True):
    """The options of a scheduler; those of a `SchedulerRole`, which declares flags, by their names.

    Attributes:
        servers, workers: the numbers of members that make the cluster complete.
        join_timeout_s: the time to wait for them.
        failure_timeout_s: the silence after which a member counts as failed; more after late
            heartbeats (`FailureDetector`), at most `silence_most_s`.
        broken_s: the silence after a broken connection, after which a member counts as failed.
        sole_replica_timeout_s: the silence after which a server with the sole replica of some rows
            counts as failed, if its death is not proven.
        hang_timeout_s: the time without a turn of a member's loop, outside of user code, after
            which it counts as failed though its process lives.
        same_host: whether all members are on this host, where a broken connection proves a death.
        resend_s: the time between repetitions of an unanswered Freeze or End.
        drain_s: the time for servers to drain before a view that moves rows; if it is too short, a
            view without moves is made, and the move is tried again after `pause_s` with twice the
            time, up to `DRAIN_MOST` times, or sooner if only late requests had prevented it.
        linger_s: the time at the end for members to confirm it.
        elastic: whether workers may join and leave during the run.
        on_worker_loss: the reaction to the loss of a worker of the first group: "stop": the run
            ends; "drop": it goes on; "replace": it goes on, and is not over before another worker
            has taken the place.
        replicas: the number of servers that have a replica of each row, if there are as many.
        slow_share: the share of the last `slow_window_s` that others have waited for a worker, from
            which on it is dropped; 0: never.
        checkpoint_every_s: the time between the checkpoints that views name; 0: none.
        start_clock: the clock of the checkpoint that the run continues from, for the names of its
            own.
        fragment_rows: the fragment size of each table in the shards that servers begin with: update
            counts are by fragment.
        run: the name of the run, unless an earlier scheduler has given it one.
    """

    servers: int
    workers: int
    join_timeout_s: float = 120.0
    failure_timeout_s: float = 10.0
    silence_most_s: float = 15.0  # less than workers wait for an answer
    broken_s: float = 3.0
    sole_replica_timeout_s: float = 15.0
    hang_timeout_s: float = 60.0
    same_host: bool = False
    resend_s: float = 0.25
    linger_s: float = 2.0
    elastic: bool = False
    on_worker_loss: str = "drop"
    replicas: int = 1
    drain_s: float = 2.0
    pause_s: float = 10.0
    slow_share: float = 0.0
    slow_window_s: float = 5.0
    checkpoint_every_s: float = 0.0
    start_clock: int = 0
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
