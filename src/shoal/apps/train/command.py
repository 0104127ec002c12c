"""`shoal train`: a job as processes on this machine, watched to its end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from shoal import factories as imports
from shoal.apps.result import RunResult
from shoal.apps.train.checks import check_inputs, check_job
from shoal.apps.train.resume import (
    begun_with,
    check_continued,
    join_run,
    resumed_at,
    words_of_change,
)
from shoal.engines.base import Task
from shoal.engines.cluster import run_tasks, threads_of, worker_tasks
from shoal.engines.local import LocalEngine
from shoal.errors import InvalidValue
from shoal.jobs.spec import JobSpec, continued, dump_job, from_mapping, load_run_job
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.reports.events import read_events, time_to, write_tables
from shoal.reports.live import Live, progress_console
from shoal.storage.lease_log import read_lease_log
from shoal.storage.run_folder import RunFolder
from shoal.strategies import strategies

if TYPE_CHECKING:
    from torch import nn


FIGURES = (  # of each worker, in the summary
    "accuracy",
    "loss",
    "best_accuracy",
    "staleness",
    "samples",
    "seconds",
    "steps",
    "bytes_pushed",
    "bytes_pulled",
    "bytes_sent",
    "bytes_received",
)


@dataclass(frozen=True)
class TrainResult(RunResult):
    """Result of `shoal.train`.

    Attributes:
        metrics: the figures averaged over the workers: accuracy, loss, samples_per_s and others.
        run_dir: the run's folder, which `shoal.load_run` reads.
        model: the trained module.

    Example:
        >>> result = shoal.train(data="digits", epochs=1)  # doctest: +SKIP
        >>> result.metrics["accuracy"]  # doctest: +SKIP
    """

    model: nn.Module


def run_job(
    job: JobSpec,
    data_dirs: Sequence[Path],
    console: Console | None = None,
    started_at: float | None = None,
    trust: bool = False,
    engine_of: Callable[[RunFolder], LocalEngine] = LocalEngine,
) -> dict[str, Any]:
    """Run a job here and return its summary.

    console:    the console that shows progress, if it is given
    started_at: the `time.time()` at which the command began, for honest wall times
    trust:      whether to continue from the files of another user, too
    engine_of:  the function that makes the engine for the run's folder

    Raises:
        NotTrusted: another user has left the run that it continues
        ProcessDied: a process was killed or ended early; the text names it
        ShoalError: the error of a process of the run
    """
    started_at = time.time() if started_at is None else started_at
    check_job(job)
    job = job.resolved
    start_clock = resumed_at(job.resume, job.resume_at, trust, job.keeps_states)
    if start_clock:
        check_continued(job, start_clock)
    notes = check_inputs(job, data_dirs)
    folder = RunFolder.create(
        Path(job.out), job.title or Path(job.data).name.partition(".")[0], started_at
    )
    folder.write_job(dump_job(job))
    with engine_of(folder) as engine:
        for task in tasks_of(job, engine, data_dirs, started_at, start_clock=start_clock):
            engine.start(task)
        live = Live(console, folder.events, job.workers, job.epochs) if console else None
        with live or nullcontext():
            tick = live.tick if live else lambda: None
            join_run(engine, job, "train", _words(job), tick, start_clock)
    write_tables(folder)
    summary = {**summarise(job, folder, started_at), "notes": notes}
    folder.write_summary(summary)
    return summary


def _words(job: JobSpec) -> str:
    """Return the words of a command that continues the same run again, from another checkpoint."""
    if not job.resume:
        return ""
    return shlex.join(words_of_change(job, from_mapping(load_run_job(Path(job.resume)))))


def _ledger(job: JobSpec, clock: int) -> LedgerRecord | None:
    """Return the lease ledger as of the checkpoint that a job continues from, if it needs one."""
    if job.on_worker_loss != "reassign" or not clock:
        return None
    leases = RunFolder(Path(job.resume)).leases
    record = read_lease_log(leases).as_of(clock, job.epochs) if leases.exists() else None
    if record is None or not record.batches:
        raise InvalidValue(
            f"{job.resume} was trained without leases ({leases} has none): resume it without "
            "--on-worker-loss reassign"
        )
    return record


def tasks_of(
    job: JobSpec,
    engine: LocalEngine,
    data_dirs: Sequence[Path],
    started_at: float,
    more_workers: int = 0,
    start_clock: int = 0,
) -> list[Task]:
    """Return the tasks of a job's run, except for `more_workers` that the caller starts.

    start_clock:  the clock of the checkpoint that the run continues from
    """
    counts: dict[str, Any] = {"workers": job.workers + more_workers}
    if not job.uses_servers:
        counts |= {"servers": 0, "replicas": 1}
    tasks = run_tasks(
        engine,
        job,
        started_at,
        init=begun_with(job.resume, start_clock) if job.uses_servers else "",
        start_clock=start_clock,
        ledger=_ledger(job, start_clock),
        **job.policy,
        **counts,
    )
    return tasks + worker_tasks(
        engine,
        job.workers,
        "shoal.apps.train.worker:run_worker",
        job=msgspec.to_builtins(job),
        started_at=started_at,
        data_dirs=[str(each) for each in data_dirs],
        rendezvous=f"file://{engine.sockets}/rendezvous",
        threads=threads_of(job.workers),
        start_clock=start_clock,
    )


def summarise(job: JobSpec, folder: RunFolder, started_at: float) -> dict[str, Any]:
    """Return the run's figures, averaged over the workers; bytes and samples are sums."""
    results = folder.results(job.workers, FIGURES)
    events = list(read_events(folder.events, torn=True))

    def names(kind: str) -> list[str]:
        return [event["name"] for event in events if event["kind"] == kind]

    returned = [each for each in events if each["kind"] == "returned" and not each.get("group")]
    mean = {
        key: sum(result[key] for result in results) / len(results)
        for key in ("accuracy", "loss", "best_accuracy", "staleness")
    }
    return {
        **mean,
        "samples_per_s": sum(r["samples"] / max(r["seconds"], 1e-9) for r in results),
        "samples": sum(r["samples"] for r in results),
        "steps": max(r["steps"] for r in results),
        "wall_s": time.time() - started_at,
        "time_to": time_to(events),
        "lost": [n for n in names("lost") if n not in names("dropped") and "/" not in n],
        "dropped": names("dropped"),
        "reassigned": sum(each["count"] for each in returned),
        "differs": sum(each["kind"] == "differs" for each in events),
        "may_repeat": 0 if closes(job) else len(returned),
        "bytes_pushed": sum(r["bytes_pushed"] for r in results),
        "bytes_pulled": sum(r["bytes_pulled"] for r in results),
        "bytes_sent": sum(r["bytes_sent"] for r in results),
        "bytes_received": sum(r["bytes_received"] for r in results),
        "run_dir": str(folder.path),
        "title": job.title,
        "strategy": job.strategy,
        "workers": job.workers,
        "servers": job.servers if job.uses_servers else 0,
        "by_worker": results,
    }


def closes(job: JobSpec) -> bool:
    """Return whether rounds close, so that a worker's push counts on all servers or on none."""
    return strategies[job.strategy].traits.in_step or job.apply_at == "round_end"


def train(
    *,
    model: Callable[..., nn.Module] | str = "",
    data: Callable[..., Any] | str = "",
    data_dirs: Sequence[str | Path] = (),
    trust: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> TrainResult:
    """Train a model on this machine, with workers and servers in processes of their own.

    Functions have to be importable by other processes: define them at the top level of a module or
    script. A script calls `shoal.train` under `if __name__ == "__main__":`.

    Args:
        model: a model's name ("mlp", "cnn"), or a function without arguments that returns a module.
        data: a data set's name ("digits", "mnist"; `shoal list data`), or a function without
            arguments that returns (train_x, train_y, test_x, test_y); "digits" if not given.
        data_dirs: the folders to search for named data sets.
        trust: whether to continue (`resume`) from the files of another user, too.
        progress: whether to show a bar of each worker; None: on a terminal and in a notebook.
        options: the fields of a job file, such as workers, servers, strategy, epochs, batch_size,
            lr. With `resume`, a run's folder, the other fields are those of that run.

    Returns:
        The metrics, the run's folder and the trained model.

    Raises:
        NotImportable: `model` or `data` is a lambda or a local function.
        UnknownName: an unknown option, model, data set or strategy.
        InvalidValue: a value out of its range, or options that contradict each other.
        DataMissing: the data set is in none of the folders.
        NotTrusted: another user has left the run that is resumed, or could have changed it.
        ProcessDied: a process was killed or ended early.

    Example:
        >>> import shoal  # doctest: +SKIP
        >>> result = shoal.train(data="digits", workers=2, epochs=5)  # doctest: +SKIP
        >>> result.metrics["accuracy"], result.run_dir  # doctest: +SKIP
    """
    from shoal.data.places import search_path

    imports.refuse_while_importing("shoal.train()")
    values = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in options.items()
        if value is not None
    }
    for name, each in (("model", model), ("data", data)):
        if each:
            values[name] = each if isinstance(each, str) else imports.name_of(each)
    if values.get("resume"):
        values = continued(Path(values["resume"]), values, trust)
    job = from_mapping(values)
    folders = [Path(each) for each in data_dirs]
    explicit = folders[0] if folders else (Path(job.data_dir) if job.data_dir else None)
    searched = [*folders[1:], *search_path(explicit, {})]
    summary = run_job(job, searched, progress_console(progress), trust=trust)
    return TrainResult(summary, Path(summary["run_dir"]), trained_model(job, summary, searched))


def trained_model(job: JobSpec, summary: dict[str, Any], data_dirs: Sequence[Path]) -> nn.Module:
    """Return the module with the parameters at the end of a run."""
    from shoal.apps.train.setup import load_dataset, load_weights, untrained_model

    module = untrained_model(job, load_dataset(job, list(data_dirs)))
    load_weights(module, RunFolder(Path(summary["run_dir"])).model)
    return module
