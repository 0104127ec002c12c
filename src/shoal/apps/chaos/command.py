"""`shoal chaos`: run a job twice, the second time with faults in its processes, one by one."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from shoal.apps.chaos.faults import LASTS_S, FaultInjector, InjectedFault
from shoal.apps.chaos.processes import OVER, PROBE, PROBES
from shoal.apps.chaos.write_log import TABLE, Verdict, judge
from shoal.apps.train.checks import check_job
from shoal.apps.train.command import TrainApplication, summarise
from shoal.engines.base import SPARSE, Task
from shoal.engines.hosts import Hosts, HostsEngine
from shoal.engines.named import engines
from shoal.engines.processes import Processes
from shoal.engines.roles import BROKEN_HERE_S
from shoal.errors import DataMissing, InvalidValue, RangeLost
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.reports.events import write_tables
from shoal.runs.job import JobSpec
from shoal.runs.job_file import dump_job
from shoal.runs.plan import tasks_of
from shoal.runs.resume import resumed_at
from shoal.runs.run import run_here
from shoal.simulation.faults.schedule import FAULT_NAMES, LASTING, Fault, fault_of
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import SavedShards
from shoal.strategies.base import StrategyOptions

SECONDS_A_FAULT = 2.0  # least duration of the job for each fault
CHECKPOINT_EVERY = 2  # in clocks, for a job that may lose rows
NEEDS_ROOT = ("slow", "partition")
DRAWN = [name for name in FAULT_NAMES if name.split("-")[0] not in NEEDS_ROOT]
UNLAWFUL = ("acknowledged_lost", "acknowledged_doubled", "strange")
BEYOND_S = (1, 2, 4)  # duration of a fault that lasts, beyond the failure timeout


def run_chaos(
    job: JobSpec,
    faults: int,
    schedule: Sequence[str],
    data_dirs: Sequence[Path],
    console: Console,
    early: bool = False,
) -> dict[str, Any]:
    """Run a job undisturbed, then with faults; return the figures.

    faults:    the number of faults; not used if each fault of the schedule names a step
    schedule:  the faults in turn, as `fault_of` reads them; or "random": drawn from the job's seed,
               a tenth of them longer than the time after which a member is declared dead
    early:     whether to inject the next fault before all rows have all their replicas again: the
               last replica of some rows may be killed. Then the job ends with RangeLost, and is
               resumed from its last checkpoint

    Raises:
        InvalidValue: a job whose rows have one replica, a strategy without servers, or links that
            cannot be disturbed here
        UnknownName: a fault of no known kind
        JoinTimeout: the cluster was not whole again after a fault
    """
    random = list(schedule) == ["random"]
    chosen = draw_faults(faults, Random(job.seed)) if random else [fault_of(n) for n in schedule]
    if all(each.step >= 0 for each in chosen):
        faults = len(chosen)
    if job.replicas < 2:
        raise InvalidValue("rows with one replica are lost with their server: add --replicas 2")
    if job.engine != "local" and any(each.what in NEEDS_ROOT for each in chosen):
        raise InvalidValue(
            f"--engine {job.engine}: links are disturbed on this machine alone; leave out --engine"
        )
    job = msgspec.structs.replace(job, on_worker_loss="replace")
    check_job(job)
    with console.status("the same job, undisturbed"):
        undisturbed = run_here(TrainApplication(job, data_dirs))
    folder = RunFolder.create(Path(job.out), job.title or "chaos")
    folder.write_job(dump_job(job.resolved))
    if early and not job.saves:
        job = msgspec.structs.replace(job, checkpoint_every=CHECKPOINT_EVERY)
    write_log = folder.path / "writes"
    write_log.mkdir()
    started_at = time.time()
    with ExitStack() as stack:
        links = any(each.what in NEEDS_ROOT for each in chosen)
        hosts = stack.enter_context(Hosts(_names(job))) if links else None
        engine = HostsEngine(hosts) if hosts is not None else engines[job.engine](job.room)
        processes = stack.enter_context(Processes(folder, engine, _names(job)))
        bar = stack.enter_context(Progress(console=console, transient=True))
        lasting = sum(chosen[number % len(chosen)].seconds for number in range(faults))
        seconds = faults * SECONDS_A_FAULT + lasting
        for task in _tasks(job, processes, data_dirs, started_at, write_log, seconds):
            processes.start(task)
        injector = FaultInjector(processes, job, chosen, faults, early, hosts)
        shown = bar.add_task("faults", total=faults)

        def tick() -> None:
            injector.tick()
            if injector.over:
                (write_log / OVER).touch()
            bar.update(shown, completed=len(injector.injected))

        try:
            processes.join(tick, tick_s=0.01, policy=job.loss_policy)
        except RangeLost as lost:
            if not early:
                raise
            processes.stop()
            return _resumed(job, folder, data_dirs, lost, injector.injected, undisturbed)
    write_tables(folder)
    summary = summarise(job, folder, started_at)
    verdict = judge(write_log, _times(SavedShards(folder.shards).merged(TABLE.name)))
    probes = list(PROBE.iter_unpack((write_log / PROBES).read_bytes()))
    report = _report(injector.injected, verdict, probes, summary, undisturbed)
    report["missing"] = faults - len(injector.injected)
    report["detection"] = _tuning(hosts is not None)
    folder.write_summary({**summary, "chaos": report})
    return report


def draw_faults(count: int, random: Random) -> list[Fault]:
    """Draw faults that need no root; a tenth of them last until their process is declared dead."""
    drawn = [fault_of(name) for name in random.choices(DRAWN, k=count)]
    lasting = [name for name in DRAWN if fault_of(name).what in LASTING]
    for number in random.sample(range(count), -(-count // 10)):
        seconds = SchedulerOptions(0, 1).failure_timeout_s + random.choice(BEYOND_S)
        drawn[number] = fault_of(f"{random.choice(lasting)}:{seconds:.0f}s")
    return drawn


def _times(shards: Mapping[str, torch.Tensor] | None) -> dict[int, float]:
    """Return how often each key was counted in the table of writes."""
    if shards is None:
        return {}
    held = zip(shards["keys"].tolist(), shards["rows"].view(-1).tolist(), strict=True)
    return {key % (1 << 64): times for key, times in held}


def _tuning(several_hosts: bool) -> dict[str, float]:
    """Return the seconds until a member that is silent, cut off or has exited counts as failed."""
    options = SchedulerOptions(0, 1)
    if several_hosts:
        return {"failure_timeout_s": options.failure_timeout_s, "broken_s": options.broken_s}
    return {
        "failure_timeout_s": options.failure_timeout_s,
        "broken_s": BROKEN_HERE_S,
        "exit_s": 0.0,
    }


def _resumed(
    job: JobSpec,
    folder: RunFolder,
    data_dirs: Sequence[Path],
    lost: RangeLost,
    injected: Sequence[InjectedFault],
    undisturbed: dict[str, Any],
) -> dict[str, Any]:
    """Resume from the last checkpoint after all replicas of some rows were killed at once."""
    goes_on = msgspec.structs.replace(job, resume=str(folder.path))
    try:
        start_clock = resumed_at(goes_on.resume, goes_on.resume_at)
    except DataMissing:  # the run had not reached its first checkpoint
        goes_on, start_clock = job, 0
    held = SavedShards(folder.checkpoint(start_clock)).merged(TABLE.name) if start_clock else None
    verdict = msgspec.structs.asdict(judge(folder.path / "writes", _times(held)))
    rolled_back = verdict.pop("acknowledged_lost")  # pushes after the checkpoint
    summary = run_here(TrainApplication(goes_on, data_dirs))
    return {
        "kills": sum(each.fault.what == "kill" for each in injected),
        "range_lost": lost.message,
        "ranges": list(lost.ranges),
        "resumed_at": start_clock,
        "rolled_back": rolled_back,
        **verdict,
        "accuracy": summary["accuracy"],
        "accuracy_undisturbed": undisturbed["accuracy"],
        "run_dir": summary["run_dir"],
    }


def _tasks(
    job: JobSpec,
    processes: Processes,
    data_dirs: Sequence[Path],
    started_at: float,
    write_log: Path,
    seconds: float,
) -> Iterable[Task]:
    """Yield the job's tasks, with workers that log their writes, and with a prober."""
    where, token = str(write_log.resolve()), {"token": secrets.token_hex(16)}
    for task in tasks_of(TrainApplication(job, data_dirs), processes, started_at, more_workers=1):
        task = replace(task, args={**task.args, **token})
        if task.name.startswith("server"):  # a restarted server must not wait for its imports
            task = replace(task, preload=SPARSE)
        elif task.name.startswith("worker"):
            arguments = {**task.args, "write_log": where, "seconds": seconds}
            task = Task(task.name, "shoal.apps.chaos.processes:run_worker", arguments)
        yield task
    yield Task(
        "prober",
        "shoal.apps.chaos.processes:run_prober",
        {
            "scheduler": processes.scheduler,
            "rank": job.workers,
            "write_log": where,
            "prefix": StrategyOptions().prefix,
            **token,
        },
    )


def _names(job: JobSpec) -> list[str]:
    """Return the names of all processes."""
    servers = [f"server-{rank}" for rank in range(job.servers)]
    return ["scheduler", *servers, *(f"worker-{rank}" for rank in range(job.workers)), "prober"]


def _report(
    injected: Sequence[InjectedFault],
    verdict: Verdict,
    probes: Sequence[tuple[float, ...]],
    summary: dict[str, Any],
    undisturbed: dict[str, Any],
) -> dict[str, Any]:
    counts = Counter(str(each.fault) for each in injected)
    failed_s = SchedulerOptions(0, 1).failure_timeout_s
    takeovers = [
        min(end for begin, end in probes if begin >= each.clock) - each.clock
        for each in injected
        if (each.fault.what, each.fault.role) == ("kill", "server")
        and any(begin >= each.clock for begin, _ in probes)
    ]
    back = [each.back_s for each in injected if each.back_s >= 0]
    return {
        "kills": sum(each.fault.what == "kill" for each in injected),
        "faults": dict(sorted(counts.items())),
        "longer_than_failure_timeout": sum(each.fault.seconds > failed_s for each in injected),
        "injected": [
            {
                "what": each.fault.what,
                "name": each.name,
                "step": each.step,
                "seconds": each.fault.seconds or LASTS_S.get(each.fault.what, 0.0),
            }
            for each in injected
        ],
        **msgspec.structs.asdict(verdict),
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
    """Print the figures as a table, and what they mean."""
    table = Table(show_header=False)
    for name, value in report.items():
        if name == "injected":
            continue
        shown = f"{value:.3f}" if isinstance(value, float) else str(value)
        if isinstance(value, dict):
            shown = "\n".join(f"{each} {what}" for what, each in value.items())
        table.add_row(name.replace("_", " "), shown)
    console.print(table)
    if "range_lost" in report:
        console.print("all replicas of some rows were killed at once, and the job resumed")
    else:
        safe = not any(report[each] for each in UNLAWFUL)
        console.print("no acknowledged update was lost" if safe else "[red]updates were lost[/]")
        if report["missing"]:
            console.print(f"[red]{report['missing']} faults were not injected: the job was over[/]")
