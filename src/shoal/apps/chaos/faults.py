"""Faults: what is done to which process of a run, and when."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from shoal.engines.hosts import Hosts
from shoal.engines.local import LocalEngine
from shoal.jobs.spec import JobSpec
from shoal.reports.events import NewEvents
from shoal.simulation.faults.schedule import Fault

LASTS_S = {"stop": 1.0, "slow": 2.0, "partition": 2.0}  # then it is taken back
SETTLE_S = 60.0  # a cluster that is not whole again after this never will be
EARLY_S = 0.1  # ... and it is not waited for, where what must not be lost may be
PAUSE_S = (0.1, 0.8)  # between being whole and the next fault


class Struck(msgspec.Struct):
    """A fault, and when it was: by both clocks, and by the step of the worker furthest on."""

    fault: Fault
    name: str
    at: float
    clock: float
    step: int
    back_s: float = -1.0


class FaultInjector:
    """Strikes when the cluster is whole, and has come to the step. `tick` is called all the time.

    hosts: whose links may be disturbed
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
        self.injected: list[Struck] = []
        self._engine = engine
        self._hosts = hosts
        self._sizes = {"servers": job.servers, "workers": job.workers + 1}
        self._schedule = schedule
        self._faults = faults
        self._patience_s = EARLY_S if early else SETTLE_S
        self._random = Random(job.seed)
        self._next_at = float("inf")
        self._taken_back: tuple[float, Callable[[], None]] | None = None  # when, and how
        self._leaving: set[str] = set()
        self._new_events = NewEvents(engine.folder.events)
        self._step = 0  # of the worker that is furthest
        self._whole = False

    @property
    def over(self) -> bool:
        """Whether all have struck, and the cluster is whole again."""
        undone = self._taken_back is not None or self._leaving or not self._whole
        return len(self.injected) == self._faults and not undone

    def tick(self) -> None:
        now = time.monotonic()
        self._read()
        for name in self._leaving - self._engine.running.keys():
            self._leaving.remove(name)
            self._engine.start_again(name)
        if self._taken_back is not None:
            if now >= self._taken_back[0]:
                self._taken_back[1]()
                self._taken_back = None
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
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        """That one; or one of that role, and not the same as last where there is another."""
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
        self.injected.append(Struck(fault, name, time.time(), time.monotonic(), self._step))
        undo = self._do(fault, name)
        if undo is not None:
            self._taken_back = time.monotonic() + LASTS_S[fault.what], undo

    def _do(self, fault: Fault, name: str) -> Callable[[], None] | None:
        """Do it; returns how it is taken back, if it is."""
        pid, hosts = self._engine.running[name], self._hosts
        match fault.what:
            case "stop":
                os.kill(pid, signal.SIGSTOP)
                return lambda: os.kill(pid, signal.SIGCONT)
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
                os.kill(pid, signal.SIGKILL if fault.what == "kill" else signal.SIGTERM)
        return None

    def _read(self) -> None:
        """What has been noted since."""
        for event in self._new_events():
            if event["kind"] == "view":
                self._seen(event)
            elif event["kind"] == "step":
                self._step = max(self._step, event["step"])

    def _seen(self, view: dict[str, Any]) -> None:
        """A view: the cluster is whole when all are in it again, and all rows on all replicas."""
        last = self.injected[-1] if self.injected else None
        self._whole = view["whole"] and all(view[k] == n for k, n in self._sizes.items())
        if last is not None and last.back_s < 0 and last.fault.role == "scheduler":
            last.back_s = time.time() - last.at
