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
from shoal.engines.local import LocalEngine
from shoal.jobs.spec import JobSpec
from shoal.simulation.faults.schedule import Fault
from shoal.storage.event_log import NewEvents

HANDLED_S = 0.003  # between two signals: while both are pending they count as one, and no event
# says that the first was handled
SIGNALS = {"kill": signal.SIGKILL, "exit": signal.SIGINT, "restart": signal.SIGTERM}
LASTS_S = {
    "stop": 1.0,
    "fill": 2.0,
    "slow": 2.0,
    "partition": 2.0,
}  # after that it is undone
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
RECOVERY_S = 60.0  # a cluster that is not whole after this will not recover
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

    hosts:  the namespaces whose links may be disturbed
    """

    def __init__(
        self,
        engine: LocalEngine,
        job: JobSpec,
        schedule: Sequence[Fault],
        faults: int,
        early: bool,
        hosts: Hosts | None = None,
    ) -> None:
        self.injected: list[InjectedFault] = []
        self._engine = engine
        self._hosts = hosts
        self._sizes = {"servers": job.servers, "workers": job.workers + 1}
        self._schedule = schedule
        self._faults = faults
        self._patience_s = EARLY_S if early else RECOVERY_S
        self._random = Random(job.seed)
        self._next_at = float("inf")
        self._undo: tuple[float, Callable[[], None]] | None = None  # when, and how
        self._leaving: set[str] = set()
        self._new_events = NewEvents(engine.folder.events)
        self._step = 0  # of the fastest worker
        self._whole = False

    @property
    def over(self) -> bool:
        """Whether all faults are injected, and the cluster is whole again."""
        undone = self._undo is not None or self._leaving or not self._whole
        return len(self.injected) == self._faults and not undone

    def tick(self) -> None:
        now = time.monotonic()
        for event in self._new_events():
            if event["kind"] == "view":
                self._seen(event)
            elif event["kind"] == "step":
                self._step = max(self._step, event["step"])
        for name in self._leaving - self._engine.running.keys():
            self._leaving.remove(name)
            self._engine.start_again(name)
        if self._undo is not None:
            if now >= self._undo[0]:
                self._undo[1]()
                self._undo = None
            return
        if len(self.injected) == self._faults:
            return
        last = self.injected[-1] if self.injected else None
        fault = self._schedule[len(self.injected) % len(self._schedule)]
        if self._next_at == float("inf"):
            if self._whole and not self._leaving and all(self._engine.running.values()):
                self._next_at = now + (self._random.uniform(*PAUSE_S) if fault.step < 0 else 0)
            elif last is not None and now > last.clock + self._patience_s:
                self._next_at = now
        elif now >= self._next_at and self._step >= fault.step:
            self._next_at = float("inf")
            self._inject(fault)

    def _inject(self, fault: Fault) -> None:
        """Inject a fault; without a rank, into another process than the last one."""
        running = self._engine.running.items()
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
        undo = self._do(fault, name)
        if undo is not None:
            self._undo = time.monotonic() + LASTS_S[fault.what], undo

    def _do(self, fault: Fault, name: str) -> Callable[[], None] | None:
        """Do it; returns how it is taken back, if it is."""
        pid, hosts = self._engine.running[name], self._hosts
        match fault.what:
            case "stop":
                os.kill(pid, signal.SIGSTOP)
                return lambda: os.kill(pid, signal.SIGCONT)
            case "fill":  # no file of it can grow, as on a full disk
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
                return lambda: _give_room(pid)
            case "slow" | "partition" if hosts is not None:
                (hosts.slow if fault.what == "slow" else hosts.cut)(name)
                return lambda: hosts.mend(name)
            case "restart" if fault.role == "server":
                self._leaving.add(name)
                self._whole = False
                os.kill(pid, signal.SIGTERM)
            case _:
                self._whole = False
                self._engine.running[name] = 0  # until the one that takes its place is there
                os.kill(pid, SIGNALS[fault.what])
                if fault.what == "exit" and fault.role == "server":  # at the second it ends at once
                    time.sleep(HANDLED_S)
                    _interrupt(pid)
        return None

    def _seen(self, view: dict[str, Any]) -> None:
        """The cluster is whole when a view has all members and all replicas of all rows."""
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
