"""The fault injector of `shoal chaos`: signals to processes, and disturbed links."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import msgspec

from shoal.engines.hosts import Hosts
from shoal.engines.processes import Processes
from shoal.errors import JoinTimeout
from shoal.runs.job import JobSpec
from shoal.simulation.faults.schedule import Fault
from shoal.storage.event_log import NewEvents

HANDLED_S = 0.003  # between two signals: while both are pending they count as one, and no event
# says that the first was handled
SIGNALS = {"kill": signal.SIGKILL, "exit": signal.SIGINT, "restart": signal.SIGTERM}
LASTS_S = {"stop": 1.0, "fill": 2.0, "slow": 2.0, "partition": 2.0}  # until the fault is undone
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
RECOVERY_S = 60.0  # a cluster that is not whole so long after a fault will not recover
EARLY_S = 0.1  # with --early the next fault does not wait for recovery
PAUSE_S = (0.1, 0.8)  # between being whole and the next fault


class InjectedFault(msgspec.Struct):
    """A fault, with its time by both clocks and the step of the fastest worker."""

    fault: Fault
    name: str
    at: float
    clock: float
    step: int
    back_s: float = -1.0


class FaultInjector:
    """Injects the next fault when the cluster is whole and has reached the fault's step.

    hosts:     the namespaces whose links may be disturbed
    injected:  the faults that were injected so far
    over:      whether all faults were injected, and the cluster was whole again
    """

    def __init__(
        self,
        processes: Processes,
        job: JobSpec,
        schedule: Sequence[Fault],
        faults: int,
        early: bool,
        hosts: Hosts | None = None,
    ) -> None:
        self.injected: list[InjectedFault] = []
        self.over = False
        self._processes = processes
        self._hosts = hosts
        self._sizes = {"servers": job.servers, "workers": job.workers + 1}
        self._schedule = schedule
        self._faults = faults
        self._early = early
        self._random = Random(job.seed)
        self._next_at = float("inf")
        self._recovers_since = 0.0  # the end of the last fault
        self._undo: tuple[float, Callable[[], None]] | None = None  # when, and how
        self._servers = {f"server-{rank}" for rank in range(job.servers)}
        self._view: dict[str, Any] = {}
        self._new_events = NewEvents(processes.folder.events)
        self._step = 0  # of the fastest worker
        self._whole = False

    def tick(self) -> None:
        now = time.monotonic()
        for event in self._new_events():
            if event["kind"] == "view":
                self._seen(event)
            elif event["kind"] == "step":
                self._step = max(self._step, event["step"])
        if self._undo is not None:
            if now >= self._undo[0]:
                self._undo[1]()
                self._undo = None
                self._recovers_since = now
            return
        self.over = self.over or (len(self.injected) == self._faults and self._is_whole)
        if self.over:
            return
        self._bring_back()
        late = now - self._recovers_since
        fault = self._schedule[len(self.injected) % len(self._schedule)]
        if self._next_at == float("inf"):
            if self._is_whole:  # and more are to come, or it would be over
                self._next_at = now + (self._random.uniform(*PAUSE_S) if fault.step < 0 else 0)
            elif self._early and 0 < len(self.injected) < self._faults and late > EARLY_S:
                self._next_at = now
            elif self.injected and late > RECOVERY_S:
                raise JoinTimeout(self._unrecovered())
        elif now >= self._next_at and self._step >= fault.step:
            self._next_at = float("inf")
            self._inject(fault)
            self._recovers_since = now

    @property
    def _is_whole(self) -> bool:
        """Whether all members and all replicas of all rows are there, and no process is missing."""
        running = self._processes.running
        return self._whole and all(running.values()) and self._servers <= running.keys()

    def _bring_back(self) -> None:
        """Restart servers that have left in order; the supervisor restarts those that died."""
        running = self._processes.running
        if any(name.startswith("worker") for name in running):  # else the job is over
            for name in sorted(self._servers - running.keys()):
                if not self._processes.restarts(name):
                    self._processes.start_again(name)

    def _unrecovered(self) -> str:
        last = self.injected[-1]
        there = {
            kind: f"{self._view.get(kind, 0)} of {n} {kind}" for kind, n in self._sizes.items()
        }
        rows = "all" if self._view.get("whole") else "not all"
        return (
            f"{RECOVERY_S:g} s after {last.fault} of {last.name}, fault {len(self.injected)} of "
            f"{self._faults}, the cluster is not whole: {', '.join(there.values())}, and {rows} "
            "rows have all their replicas"
        )

    def _inject(self, fault: Fault) -> None:
        """Inject a fault; without a rank, into another process than the last fault, if possible."""
        running = self._processes.running.items()
        names = sorted(name for name, pid in running if name.startswith(fault.role) and pid)
        last = self.injected[-1].name if self.injected else ""
        if fault.rank >= 0:
            names = [name for name in names if name == f"{fault.role}-{fault.rank}"]
        else:
            names = [name for name in names if name != last] or names
        if not names:
            return
        name = self._random.choice(names)
        self.injected.append(InjectedFault(fault, name, time.time(), time.monotonic(), self._step))
        try:
            undo = self._do(fault, name)
        except ProcessLookupError:  # it has ended by itself, as is seen in a moment
            self.injected.pop()
            return
        if undo is not None:
            self._undo = time.monotonic() + (fault.seconds or LASTS_S[fault.what]), undo

    def _do(self, fault: Fault, name: str) -> Callable[[], None] | None:
        """Inject a fault into a process; return the function that undoes it, if there is one."""
        pid, hosts = self._processes.running[name], self._hosts
        match fault.what:
            case "stop":
                os.kill(pid, signal.SIGSTOP)
                return lambda: self._go_on(name, pid)
            case "fill":  # no file of it can grow, as on a full disk
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
                return lambda: _give_room(pid)
            case "slow" | "partition" if hosts is not None:
                (hosts.slow if fault.what == "slow" else hosts.cut)(name)
                return lambda: hosts.mend(name)
            case "restart" if fault.role == "server":
                self._whole = False
                os.kill(pid, signal.SIGTERM)
            case _:
                self._whole = False
                self._processes.running[name] = 0  # until its successor has started
                os.kill(pid, SIGNALS[fault.what])
                if fault.what == "exit" and fault.role == "server":  # a second one ends it at once
                    time.sleep(HANDLED_S)
                    _interrupt(pid)
        return None

    def _go_on(self, name: str, pid: int) -> None:
        """Continue a stopped process, unless it was declared dead, and killed for that."""
        if self._processes.running.get(name) == pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _seen(self, view: dict[str, Any]) -> None:
        """Record a view; with all members and all replicas of all rows the cluster is whole."""
        self._view = view
        last = self.injected[-1] if self.injected else None
        self._whole = view["whole"] and all(view[k] == n for k, n in self._sizes.items())
        if last is not None and last.back_s < 0 and last.fault.role == "scheduler":
            last.back_s = time.time() - last.at


def _give_room(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        resource.prlimit(pid, resource.RLIMIT_FSIZE, NO_LIMIT)


def _interrupt(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
