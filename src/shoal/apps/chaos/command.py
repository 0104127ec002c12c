"""`shoal chaos`: run a job twice, and the second time kill its processes one after the other."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from shoal.apps.chaos.marks import TABLE, Verdict, judge
from shoal.apps.chaos.processes import PROBE, PROBES
from shoal.apps.train import check_job, resumed_at, run_job, summarise, tasks_of
from shoal.engines.base import SPARSE, Task
from shoal.engines.local import LocalEngine, spare_processes
from shoal.errors import DataMissing, InvalidValue, RangeLost
from shoal.jobs.spec import JobSpec, dump_job
from shoal.registry import Registry
from shoal.reports.events import write_tables
from shoal.runtime.folder import RunFolder
from shoal.runtime.shards import SavedShards
from shoal.strategies.base import StrategyOptions

What = Literal["kill", "stop"]
SECONDS_A_FAULT = 2.0  # the job is to last so long for each
STOPPED_S = 1.0
SETTLE_S = 60.0  # a cluster that is not whole again after this never will be
EARLY_S = 0.1  # ... and it is not waited for, where what must not be lost may be
CHECKPOINT_EVERY = 2  # clocks, of a job that may lose rows
PAUSE_S = (0.1, 0.8)  # between being whole and the next fault


class Fault(msgspec.Struct, frozen=True):
    """What is done to a process of a role: killed, or stopped for a second."""

    what: What
    role: str


MENU: Registry[Fault] = Registry("fault")
for each in ("kill", "stop"):
    for role in ("server", "worker", "scheduler"):
        MENU.add(f"{each}-{role}", Fault(each, role))
UNLAWFUL = ("acknowledged_lost", "acknowledged_doubled", "strange")


class Struck(msgspec.Struct):
    """A fault, and when it was: by both clocks."""

    fault: Fault
    name: str
    at: float
    clock: float
    back_s: float = -1.0


def run_chaos(
    job: JobSpec,
    faults: int,
    menu: Sequence[str],
    data_dirs: Sequence[Path],
    console: Console,
    early: bool = False,
) -> dict[str, Any]:
    """Run a job undisturbed, then with faults; return the figures.

    menu:   names of `MENU`, by turns
    early:  do not wait until all rows have all their replicas again: the last one of some may be
            killed. Then the job ends with RangeLost, and is resumed from its last checkpoint

    Raises:
        InvalidValue: a job whose rows have one replica, or a strategy without servers
    """
    chosen = [MENU[name] for name in menu]
    if job.replicas < 2:
        raise InvalidValue("rows with one replica die with their server: add --replicas 2")
    job = msgspec.structs.replace(job, on_worker_loss="replace")
    check_job(job)
    with console.status("the same job, undisturbed"):
        undisturbed = run_job(job, data_dirs)
    folder = RunFolder.create(Path(job.out), job.title or "chaos")
    folder.job.write_text(dump_job(job))
    if early and not job.checkpoint_every:
        job = msgspec.structs.replace(job, checkpoint_every=CHECKPOINT_EVERY)
    marks = folder.path / "marks"
    marks.mkdir()
    started_at = time.time()
    with LocalEngine(folder) as engine, Progress(console=console, transient=True) as bar:
        for task in _tasks(job, engine, data_dirs, started_at, marks, faults * SECONDS_A_FAULT):
            engine.start(task)
        striker = Striker(engine, job, chosen, faults, early)
        shown = bar.add_task("faults", total=faults)

        def tick() -> None:
            striker.tick()
            bar.update(shown, completed=len(striker.struck))

        workers = [f"worker-{rank}" for rank in range(job.workers)]
        try:
            spare = spare_processes(job.servers, job.replicas) + workers
            engine.join(tick, tick_s=0.01, spare=spare)
        except RangeLost as lost:
            if not early:
                raise
            engine.stop()
            return _resumed(job, folder, data_dirs, lost, len(striker.struck), undisturbed)
    write_tables(folder)
    summary = summarise(job, folder, started_at)
    shards = SavedShards(folder.shards).merged(TABLE.name)
    held = dict(zip(shards["keys"].tolist(), shards["rows"].view(-1).tolist(), strict=True))
    verdict = judge(marks, {key % (1 << 64): times for key, times in held.items()})
    probes = list(PROBE.iter_unpack((marks / PROBES).read_bytes()))
    report = _report(striker.struck, verdict, probes, summary, undisturbed)
    folder.summary.write_text(json.dumps({**summary, "chaos": report}, indent=2) + "\n")
    return report


def _resumed(
    job: JobSpec,
    folder: RunFolder,
    data_dirs: Sequence[Path],
    lost: RangeLost,
    kills: int,
    undisturbed: dict[str, Any],
) -> dict[str, Any]:
    """All replicas of some rows were killed at once: go on from the last checkpoint."""
    goes_on = msgspec.structs.replace(job, resume=str(folder.path))
    try:
        passed = resumed_at(goes_on.resume, goes_on.resume_at)
    except DataMissing:  # it had not come to its first one
        goes_on, passed = job, 0
    summary = run_job(goes_on, data_dirs)
    return {
        "kills": kills,
        "range_lost": lost.message,
        "resumed_at": passed,
        "accuracy": summary["accuracy"],
        "accuracy_undisturbed": undisturbed["accuracy"],
        "run_dir": summary["run_dir"],
    }


def _tasks(
    job: JobSpec,
    engine: LocalEngine,
    data_dirs: Sequence[Path],
    started_at: float,
    marks: Path,
    seconds: float,
) -> Iterable[Task]:
    """The job's, but that workers leave marks, and with a prober."""
    where = str(marks.resolve())
    for task in tasks_of(job, engine, data_dirs, started_at, more_workers=1):
        if task.name.startswith("server"):  # they have a sparse table: a new one is not to wait
            task = replace(task, preload=SPARSE)
        elif task.name.startswith("worker"):
            arguments = {**task.args, "marks": where, "seconds": seconds}
            task = Task(task.name, "shoal.apps.chaos.processes:run_worker", arguments)
        yield task
    yield Task(
        "prober",
        "shoal.apps.chaos.processes:run_prober",
        {
            "scheduler": engine.address("scheduler"),
            "rank": job.workers,
            "marks": where,
            "prefix": StrategyOptions().prefix,
        },
    )


class Striker:
    """Strikes when the cluster is whole. `tick` is called all the time."""

    def __init__(
        self, engine: LocalEngine, job: JobSpec, menu: Sequence[Fault], faults: int, early: bool
    ) -> None:
        self.struck: list[Struck] = []
        self._engine = engine
        self._sizes = {"servers": job.servers, "workers": job.workers + 1}
        self._menu = menu
        self._faults = faults
        self._patience_s = EARLY_S if early else SETTLE_S
        self._random = Random(job.seed)
        self._next_at = float("inf")
        self._go_on_at: tuple[float, int] | None = None  # when, and whom that was stopped
        self._offset = 0
        self._views = 0
        self._whole = False

    def tick(self) -> None:
        now = time.monotonic()
        self._read()
        if self._go_on_at is not None:
            if now >= self._go_on_at[0]:
                os.kill(self._go_on_at[1], signal.SIGCONT)
                self._go_on_at = None
            return
        last = self.struck[-1] if self.struck else None
        if self._next_at == float("inf"):
            if self._whole and all(self._engine.running.values()):
                self._next_at = now + self._random.uniform(*PAUSE_S)
            elif last is not None and now > last.clock + self._patience_s:
                self._next_at = now
        elif now >= self._next_at and len(self.struck) < self._faults:
            self._next_at = float("inf")
            self._strike(self._menu[len(self.struck) % len(self._menu)])

    def _strike(self, fault: Fault) -> None:
        """One of that role; not the same as last, where there is another."""
        running = self._engine.running.items()
        names = sorted(name for name, pid in running if name.startswith(fault.role) and pid)
        last = self.struck[-1].name if self.struck else ""
        names = [name for name in names if name != last] or names
        if not names:
            return
        name = self._random.choice(names)
        pid = self._engine.running[name]
        self.struck.append(Struck(fault, name, time.time(), time.monotonic()))
        if fault.what == "kill":
            self._whole = False
            self._engine.running[name] = 0  # until the one that takes its place is there
            os.kill(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGSTOP)
            self._go_on_at = time.monotonic() + STOPPED_S, pid

    def _read(self) -> None:
        """What the scheduler has noted since."""
        path = self._engine.folder.events
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        *lines, rest = data.split(b"\n")
        self._offset += len(data) - len(rest)
        for line in lines:
            event = json.loads(line)
            if event["kind"] == "view":
                self._seen(event)

    def _seen(self, view: dict[str, Any]) -> None:
        """A view: the cluster is whole when all are in it again, and all rows on all replicas."""
        last = self.struck[-1] if self.struck else None
        self._whole = view["whole"] and all(view[k] == n for k, n in self._sizes.items())
        if last is not None and last.back_s < 0 and last.fault.role == "scheduler":
            last.back_s = time.time() - last.at


def _report(
    struck: Sequence[Struck],
    verdict: Verdict,
    probes: Sequence[tuple[float, ...]],
    summary: dict[str, Any],
    undisturbed: dict[str, Any],
) -> dict[str, Any]:
    counts = Counter(f"{each.fault.what}-{each.fault.role}" for each in struck)
    takeovers = [
        min(end for begin, end in probes if begin >= each.clock) - each.clock
        for each in struck
        if each.fault == MENU["kill-server"] and any(begin >= each.clock for begin, _ in probes)
    ]
    back = [each.back_s for each in struck if each.back_s >= 0]
    return {
        "kills": sum(each.fault.what == "kill" for each in struck),
        "faults": dict(counts),
        "intended": verdict.intended,
        "acknowledged": verdict.acknowledged,
        "acknowledged_lost": verdict.lost,
        "acknowledged_doubled": verdict.doubled,
        "strange": verdict.strange,
        "takeover_s_median": median(takeovers) if takeovers else None,
        "takeover_s_max": max(takeovers, default=None),
        "scheduler_back_s_median": median(back) if back else None,
        "scheduler_back_s_max": max(back, default=None),
        "accuracy": summary["accuracy"],
        "accuracy_undisturbed": undisturbed["accuracy"],
        "wall_s": summary["wall_s"],
        "run_dir": summary["run_dir"],
    }


def show_report(console: Console, report: dict[str, Any]) -> None:
    """The figures as a table, and what they mean."""
    table = Table(show_header=False)
    for name, value in report.items():
        shown = f"{value:.3f}" if isinstance(value, float) else str(value)
        table.add_row(name.replace("_", " "), shown)
    console.print(table)
    if "range_lost" in report:
        console.print("all replicas of some rows were killed at once, and the job resumed")
    else:
        safe = not any(report[each] for each in UNLAWFUL)
        console.print(
            "nothing that was acknowledged is lost" if safe else "[red]updates were lost[/]"
        )
