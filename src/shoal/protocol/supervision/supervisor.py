"""Supervisor: decides how a run continues when its processes end, or are declared dead.

A machine like those of `protocol/`: events come in, decisions come out, and time is an argument.
The engine reports exits of processes and messages of the scheduler: a living process may be dead to
the run, and one that ended with status 0 may have left its work undone. Whether the run ends with a
member is decided in `protocol.scheduler.rows.losses`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from signal import Signals

import msgspec

from shoal.errors import (
    ClusterFull,
    DeclaredDead,
    Dropped,
    InvariantBroken,
    JoinRefused,
    JoinTimeout,
    ProcessDied,
    RangeLost,
    RunAborted,
    ShoalError,
)
from shoal.protocol.messages.membership import TOO_SLOW
from shoal.protocol.supervision.restarts import Restarts

RETURNS = 3  # restarts of a worker that was dropped because it was slow
LATE_S = 20.0  # after all others have ended, for processes that may not know of the end
GRACE_S = 1.0  # after the first failure, for the others to end
KILLED_S = 4.0  # after a server was killed, for the scheduler to report the lost rows
DEAD_S = 2.0  # for a process that is dead to the run to end by itself: it may be writing its error


class Exit(msgspec.Struct, frozen=True):
    """A process has ended.

    code:       the exit status, or minus the signal that killed it
    launch:     the id of its start
    error:      the error in its error file
    how:        the way in which it ended, if the code does not tell
    host_lost:  whether it ended with its host, on which it cannot be started again
    """

    name: str
    code: int
    launch: str = ""
    error: ShoalError | None = None
    how: str = ""
    host_lost: bool = False


class LossPolicy(msgspec.Struct, frozen=True):
    """The reaction of a run to lost processes, by name; the loss of any other process ends it.

    restarted:  the processes that are started again, unless that happens too often
    given_up:   the processes without which the run goes on
    returning:  the workers that are started again after they were dropped because they were slow
    """

    restarted: frozenset[str] = frozenset()
    given_up: frozenset[str] = frozenset()
    returning: frozenset[str] = frozenset()


def loss_policy(
    servers: int,
    replicas: int,
    workers: int = 0,
    on_worker_loss: str = "stop",
    slow_workers: str = "wait",
) -> LossPolicy:
    """Return the policy for these options: with replicas, scheduler and servers are restarted.

    >>> sorted(loss_policy(1, 1, 2, "replace").restarted)
    ['worker-0', 'worker-1']
    """
    all_workers = frozenset(f"worker-{rank}" for rank in range(workers))
    nobody: frozenset[str] = frozenset()
    spare = nobody
    if replicas > 1:
        spare = frozenset(["scheduler", *(f"server-{rank}" for rank in range(servers))])
    return LossPolicy(
        spare | (all_workers if on_worker_loss == "replace" else nobody),
        all_workers if on_worker_loss in ("drop", "reassign") else nobody,
        all_workers if slow_workers == "backup" else nobody,
    )


class Start(msgspec.Struct, frozen=True):
    """Start a process again."""

    name: str


class Kill(msgspec.Struct, frozen=True):
    """End a process that is dead to the run."""

    name: str


class Report(msgspec.Struct, frozen=True):
    """Tell the scheduler that a process has ended, and ask whether its work was done.

    orderly:  whether it has ended with status 0
    """

    launch: str
    orderly: bool = False


Decision = Start | Kill | Report


class Supervisor:
    """The processes of a run on one engine.

    failed:  the exits that end the run
    lost:    the exits of processes without which the run has gone on
    """

    def __init__(self) -> None:
        self.policy = LossPolicy()
        self.failed: list[Exit] = []
        self.lost: list[Exit] = []
        self._living: dict[str, str] = {}  # launch by name
        self._restarts = Restarts()
        self._returned: Counter[str] = Counter()
        self._declared: dict[str, str] = {}  # why a process is dead to the run, by launch
        self._kill_at: dict[str, float] = {}
        self._unproven: dict[str, Exit] = {}  # exits with status 0, by launch: work may be undone
        self._too_slow: set[str] = set()  # launches of workers that were dropped for slowness
        self._gone_on_without: set[str] = set()
        self._give_up_at = inf
        self._begun = False
        self._ended_well = False  # whether the scheduler has ended with status 0: in order
        self._warnings: list[str] = []

    # ------------------------------------------------------------------ what happens

    def starts(self, name: str, launch: str, now: float) -> None:
        """Note that a process is being started, as a launch."""
        self._living[name] = launch
        self._restarts.began(name, now)

    @property
    def living(self) -> Mapping[str, str]:
        """The launches of the processes that have not ended, by name."""
        return self._living

    def restarts(self, name: str) -> bool:
        """Return whether a process that has ended will be started again."""
        return self._restarts.awaits(name)

    def starts_again(self, name: str) -> None:
        """Note that a process that has left the run in order is started again."""
        self._restarts.expect(name)

    def ended(self, each: Exit, now: float) -> list[Decision]:
        """Handle the end of a process; return a report for the scheduler, if it lives."""
        self._living.pop(each.name, None)
        self._kill_at.pop(each.name, None)
        how = self._declared.pop(each.launch, "")
        if how:
            self._lose(msgspec.structs.replace(each, how=f"was declared dead ({how})"), now, True)
        elif each.launch in self._too_slow or isinstance(each.error, Dropped):
            self._return(each, now)
        elif each.code:
            self._ended_badly(each, now)
        elif each.name == "scheduler":
            self._ended_well = True
        else:
            self._unproven[each.launch] = each
        return [Report(each.launch, not each.code)] if "scheduler" in self._living else []

    def begun(self) -> None:
        """Note that the first view is made: before that, a run needs all its processes."""
        self._begun = True

    def declared_dead(self, name: str, launch: str, how: str, now: float) -> None:
        """Handle the report that the run goes on without a member whose process may live."""
        name = self._own_name(name, launch)
        self._gone_on_without.add(name)
        ended = self._unproven.get(launch)
        if how == TOO_SLOW:  # the worker is told so, and ends at its next call, in any way
            self._too_slow.add(launch)
            if ended is not None:
                self._return(self._unproven.pop(launch), now)
        elif self._living.get(name) == launch:
            self._declared[launch] = how
            self._kill_at[name] = now + DEAD_S
        elif ended is not None and ended.name == name:
            self._left_undone(launch, now)

    def _own_name(self, name: str, launch: str) -> str:
        """Return the name that this supervisor has for a member's process.

        A server that joined before its predecessor counted as dead has another rank than the one
        that it asked for.
        """
        role = name.partition("-")[0]
        living = [own for own, at in self._living.items() if at == launch and own.startswith(role)]
        return living[0] if len(living) == 1 else name

    def unfinished(self, launch: str, now: float) -> None:
        """Handle the report that the members of an ended process had not finished their work.

        For a server this is no loss: it may have left the run in order.
        """
        each = self._unproven.get(launch)
        if each is not None and each.name.startswith("worker"):
            self._left_undone(launch, now)

    def _left_undone(self, launch: str, now: float) -> None:
        how = "ended with status 0 before its work was done"
        self._lose(msgspec.structs.replace(self._unproven.pop(launch), how=how), now, False)

    def tick(self, now: float) -> list[Decision]:
        """Return the decisions that are due, and decide whether the run is to end."""
        due: list[Decision] = [Start(name) for name in self._restarts.due(now)]
        for name in [name for name, at in self._kill_at.items() if now >= at]:
            del self._kill_at[name]
            due.append(Kill(name))
        given_up = self.policy.given_up
        if given_up and {each.name for each in self.lost} >= given_up:
            self.failed = self.failed or [*self.lost]
            self._give_up(now + GRACE_S)
        if self._only_late_ones():
            self._give_up(now + LATE_S)
        return due

    def warnings(self) -> list[str]:
        """Return the warnings for the user since the last call."""
        told, self._warnings = self._warnings, []
        return told

    def over(self, now: float) -> bool:
        """Return whether there is nothing left to wait for."""
        return now >= self._give_up_at or not (self._living or self._restarts.waiting)

    # ------------------------------------------------------------------ decisions

    def _ended_badly(self, each: Exit, now: float) -> None:
        name, error = each.name, each.error
        again = name in self._restarts.names
        if self._ended_well and isinstance(error, RunAborted):  # cut off, and not told
            self._warnings.append(f"{name} did not hear of the end of the run: {error.message}")
        elif isinstance(error, DeclaredDead):
            self._lose(each, now, True)
        elif self._does_without(name) and not isinstance(error, RunAborted):
            self._note_loss(each)
        elif error is None or isinstance(error, ProcessDied | InvariantBroken):
            self._lose(each, now, each.code < 0)
        elif again and isinstance(error, ClusterFull):  # its predecessor does not count as dead yet
            if not self._restart(each, True, now):
                self._fail(each, now)
        elif not (again and isinstance(error, JoinRefused | JoinTimeout)):  # the run was over
            self._fail(each, now)

    def _return(self, each: Exit, now: float) -> None:
        """Restart a worker that was dropped because it was slow, if the policy has it return."""
        self._returned[each.name] += each.name in self.policy.returning
        if 0 < self._returned[each.name] <= RETURNS:
            self._restart(each, True, now)

    def _lose(self, each: Exit, now: float, blameless: bool) -> None:
        """Handle the loss of a process whose work is not done.

        blameless:  whether it was killed, and would not fail again
        """
        if self._does_without(each.name):
            self._note_loss(each)
            return
        again = each.name in self.policy.restarted
        if not (again and (self._restart(each, blameless, now) or self._can_be_spared(each))):
            self._fail(each, now)

    def _does_without(self, name: str) -> bool:
        """Return whether the run goes on without a process; not before the first view."""
        return self._begun and name in self.policy.given_up

    def _note_loss(self, each: Exit) -> None:
        self.lost.append(each)
        why = each.error.message if each.error is not None else how_it_ended(each)
        self._warnings.append(f"{each.name} is lost, and the run goes on without it: {why}")

    def _restart(self, each: Exit, blameless: bool, now: float) -> bool:
        """Plan to start a process again; return False if it cannot be, or died too often lately."""
        if each.host_lost:
            return False
        if not blameless:
            why = each.error.message if each.error is not None else how_it_ended(each)
            self._warnings.append(f"{each.name} has failed, and is started again: {why}")
        return self._restarts.plan(each.name, blameless, now)

    def _can_be_spared(self, each: Exit) -> bool:
        """Return whether the run continues without a process that is not started again.

        The scheduler ends the run if a server had the last replica of some rows.
        """
        if not each.name.startswith("server"):
            return False
        if each.host_lost and not self.failed:
            self._warnings.append(f"{each.name} {each.how}, and the run goes on without it")
        return each.host_lost or self._restarts.started_well(each.name)

    def _fail(self, each: Exit, now: float) -> None:
        self.failed.append(each)
        at_once = each.code < 0 or bool(each.how)
        server = each.name.startswith("server")
        self._give_up(now + ((KILLED_S if server else 0.0) if at_once else GRACE_S))
        if isinstance(each.error, RangeLost):
            self._give_up(now)  # no other report says more

    def _give_up(self, at: float) -> None:
        self._give_up_at = min(self._give_up_at, at)

    def _only_late_ones(self) -> bool:
        """Return whether the work is done and all living processes may not know it.

        They were restarted, or the run has gone on without them.
        """
        names = self._living.keys()
        at_work = any(name.startswith("worker") for name in names) and "scheduler" in names
        may_not_know = self._restarts.names | self._gone_on_without
        return not at_work and not self._restarts.waiting and names <= may_not_know

    # ------------------------------------------------------------------ the end

    def late(self) -> list[str]:
        """Return the names of the processes that have not ended."""
        return sorted(self._living)

    def _dead_and_living(self) -> list[Exit]:
        """Return the processes that live but were declared dead, and whose loss ends the run."""
        tolerated = self.policy.given_up | self.policy.restarted
        return [
            Exit(name, 0, launch, None, f"was declared dead ({self._declared[launch]})")
            for name, launch in self._living.items()
            if launch in self._declared and name not in tolerated
        ]

    def cause(self, log_of: Callable[[str], Path]) -> ShoalError:
        """Return the most telling error: that of a process that is gone, or the first typed report.

        log_of:  the function that returns the log of a process by name
        """
        exits = [*self.failed, *self.lost]  # a run is lost as well if it has lost all its workers
        told = [(each, each.error) for each in exits if each.error is not None]
        ended = [each for each in self.failed if each.code < 0 or each.how]
        gone = next(iter([*ended, *self._dead_and_living()]), None)
        if gone is not None:
            how, where = f"{gone.name} {how_it_ended(gone)}", f"(its log: {log_of(gone.name)})"
            for _, error in told:
                if isinstance(error, RangeLost):
                    return RangeLost(f"{how} {where}: {error.message}")
            return ProcessDied(f"{how}; the run cannot go on without it {where}")
        # A process that was told of the end knows less than the one that caused it.
        told.sort(key=lambda pair: type(pair[1]) is RunAborted)
        if told:
            each, error = told[0]
            return type(error)(f"{each.name}: {error.message}", error.trace)
        each = self.failed[0]
        return ProcessDied(f"{each.name} {how_it_ended(each)}; its log: {log_of(each.name)}")


def how_it_ended(each: Exit) -> str:
    """Return how a process ended, as text to follow its name."""
    if each.how:
        return each.how
    if each.code < 0:
        return f"was killed by {Signals(-each.code).name}"
    return f"ended with status {each.code}"
