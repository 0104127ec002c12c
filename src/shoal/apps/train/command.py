"""`shoal train`: a job as processes on this machine, watched to its end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from shoal import factories as imports
from shoal.apps.result import RunResult
from shoal.apps.train.checks import check_continued, check_inputs, check_job
from shoal.engines.base import ENCODED, Input
from shoal.engines.placing import all_of
from shoal.engines.processes import Processes
from shoal.reports.events import lost_members, read_events, time_to, write_tables
from shoal.reports.live import live, progress_console
from shoal.runs.application import Application, Display
from shoal.runs.job import JobSpec, continued, from_mapping
from shoal.runs.job_file import load_run_job
from shoal.runs.ranks import telling_ranks, world_here
from shoal.runs.resume import words_of_change
from shoal.runs.run import run_here
from shoal.runs.trust import trusting
from shoal.storage.run_folder import RunFolder
from shoal.strategies import strategies
from shoal.strategies.layer_codecs import code_in

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
        model: the trained module, loaded when it is first asked for. Of several ranks, those on
            hosts that do not see the run's folder have none: `DataMissing`.

    Example:
        >>> result = shoal.train(data="digits", epochs=1)  # doctest: +SKIP
        >>> result.metrics["accuracy"]  # doctest: +SKIP
    """

    _load: Callable[[], nn.Module]

    @cached_property
    def model(self) -> nn.Module:
        return self._load()


class TrainApplication(Application[JobSpec]):
    """A training job.

    data_dirs:  the folders that are searched for named data sets
    """

    command = "train"
    entry = "shoal.apps.train.worker:run_worker"

    def __init__(self, spec: JobSpec, data_dirs: Sequence[Path]) -> None:
        super().__init__(spec)
        self._data_dirs = data_dirs
        self._notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return Path(self.spec.data).name.partition(".")[0]

    def check(self) -> None:
        check_job(self.spec)

    def prepare(self, console: Console) -> None:
        self.spec = self.spec.resolved
        if self.spec.strategy_options(updates=1).codec_name:
            self.preload = ENCODED
        self.imports = tuple(str(Path(each).resolve()) for each in code_in(self.spec.codec))
        if self.start.clock:
            check_continued(self.spec, self.start.clock)
        self._notes = check_inputs(self.spec, self._data_dirs)

    @property
    def worker_files(self) -> tuple[Input, ...]:
        return (all_of(("spec", "init"), Path(self.spec.init)),) if self.spec.init else ()

    def worker_inputs(self, processes: Processes) -> dict[str, Any]:
        return {"data_dirs": [str(each) for each in self._data_dirs]}

    def resume_words(self) -> str:
        if not self.spec.resume:
            return ""
        before = from_mapping(load_run_job(Path(self.spec.resume)))
        return shlex.join(words_of_change(self.spec, before))

    def display(self, console: Console, folder: RunFolder) -> Display:
        return live(console, folder, self.spec.workers, self.spec.epochs)

    def summarise(self, folder: RunFolder, started_at: float) -> dict[str, Any]:
        write_tables(folder)
        return {**summarise(self.spec, folder, started_at), "notes": self._notes}


def summarise(job: JobSpec, folder: RunFolder, started_at: float) -> dict[str, Any]:
    """Return the run's figures, averaged over the workers; bytes and samples are sums."""
    results = folder.results(job.workers, FIGURES)
    events = list(read_events(folder.events, torn=True))
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
        **lost_members(events, once=closes(job)),
        "differs": sum(each["kind"] == "differs" for each in events),
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

    Under torchrun, mpirun and srun each rank that calls this is a worker, and gets the result.

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
    with trusting(trust), telling_ranks(world := world_here()):
        if values.get("resume"):
            values = continued(Path(values["resume"]), values)
        if world is not None:
            values.setdefault("workers", world.size)
        job = from_mapping(values)
        folders = [Path(each) for each in data_dirs]
        explicit = folders[0] if folders else (Path(job.data_dir) if job.data_dir else None)
        searched = [*folders[1:], *search_path(explicit, {})]
        application = TrainApplication(job, searched)
        summary = run_here(application, progress_console(progress), world=world)
    load = partial(trained_model, job, summary, searched)
    return TrainResult(summary, Path(summary["run_dir"]), load)


def trained_model(job: JobSpec, summary: dict[str, Any], data_dirs: Sequence[Path]) -> nn.Module:
    """Return the module with the parameters at the end of a run."""
    from shoal.apps.train.setup import load_dataset, load_weights, untrained_model

    module = untrained_model(job, load_dataset(job, list(data_dirs)))
    load_weights(module, RunFolder(Path(summary["run_dir"])).model)
    return module
