"""Application: what distinguishes one kind of run from another. `run_here` has what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from rich.console import Console

from shoal.engines.base import DENSE, Input, Task
from shoal.engines.placing import all_of
from shoal.engines.processes import Processes
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.registry import unknown
from shoal.runs.job_file import dump_job
from shoal.runs.options import RunOptions
from shoal.runs.resume import begun_with, ledger_of, state_before
from shoal.runs.worker import WorkerTask, threads_for
from shoal.storage.run_folder import RunFolder

Spec = TypeVar("Spec", bound=RunOptions)
Display = AbstractContextManager[Callable[[], None]]


@dataclass(frozen=True)
class Compared:
    """An application whose runs `shoal compare` compares, by names that are imported when needed.

    Attributes:
        options: the class of its options.
        application: its `Application`, which imports more.
        data: the option that names the training data.
    """

    options: str
    application: str
    data: str

    @property
    def schema(self) -> type[RunOptions]:
        """The class of its options."""
        found: type[RunOptions] = resolve_name(self.options)
        return found


COMPARED = {  # by name, beside training jobs
    "ctr": Compared(
        "shoal.apps.ctr.spec:CtrSpec", "shoal.apps.ctr.command:CtrApplication", "train"
    ),
    "word2vec": Compared(
        "shoal.apps.word2vec.spec:WordsSpec",
        "shoal.apps.word2vec.command:WordsApplication",
        "texts",
    ),
}


@dataclass(frozen=True)
class Start:
    """Where a run begins.

    Attributes:
        clock: the clock of the checkpoint that it continues from; 0 for a new run.
        shards: the folder of the shards that its tables begin with; "" for none.
        ledger: the lease ledger as of the checkpoint; None for a run without leases.
    """

    clock: int = 0
    shards: str = ""
    ledger: LedgerRecord | None = None


class Application(ABC, Generic[Spec]):
    """One run of an application: its options, and what is done before, during and after it.

    Attributes:
        name: the name in the job of a run; "" for a training job.
        command: the `shoal` command that begins such runs, and resumes them.
        entry: the function of its workers, as "module:function"; it gets the fields of
            `WorkerTask`.
        preload: the modules that servers and workers share.
        saves_shards: whether servers save their shards at the end of the run.
        imports, script: the user's code that servers import, as in `ServerRole`.
        spec: the options of the run, which `prepare` and `set_up` complete.
        start: where it begins, as `begin_at` finds it.
    """

    name: ClassVar[str] = ""
    command: ClassVar[str]
    entry: ClassVar[str]
    saves_shards: ClassVar[bool] = True
    preload: tuple[str, ...] = DENSE
    imports: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    start: Start = Start()

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    @property
    @abstractmethod
    def title(self) -> str:
        """The first part of the name of the run's folder, where --title does not give one."""

    def check(self) -> None:
        """Refuse options that contradict each other, before files of another run are read."""

    def begin_at(self, clock: int) -> None:
        """Find what the run takes from the checkpoint at a clock; at 0 it is a new run."""
        self.start = Start(clock, self.shards_before(clock), self.ledger_before(clock))

    def prepare(self, console: Console) -> None:
        """Read and check the inputs, and complete `spec`; nothing has been written yet.

        console:  the console that shows what takes long
        """

    def set_up(self, folder: RunFolder) -> None:
        """Write the files of the run that its workers need, and complete `spec`."""

    def job(self) -> str:
        """Return the text of the run's job, from which it can be resumed."""
        return dump_job(self.spec, self.name)

    def shards_before(self, clock: int) -> str:
        """Return the folder of the shards that tables begin with; "" for none."""
        return begun_with(self.spec.resume, clock) if self.spec.uses_servers else ""

    def ledger_before(self, clock: int) -> LedgerRecord | None:
        """Return the lease ledger as of the checkpoint; None for a run without leases."""
        if self.spec.on_worker_loss != "reassign" or not clock:
            return None
        epochs: int = getattr(self.spec, "epochs", 0)
        return ledger_of(self.spec.resume, clock, epochs, needed=True)

    def worker_tasks(self, processes: Processes, started_at: float) -> list[Task]:
        """Return the tasks of the run's workers."""
        inputs = self.worker_inputs(processes)
        files = [*self.worker_files]
        for name, value in inputs.items():
            if isinstance(value, Path):
                inputs[name] = str(value)
                files.append(all_of(("inputs", name), value))
        before = str(Path(self.spec.resume).resolve()) if self.start.clock else ""
        task = WorkerTask(
            spec=msgspec.to_builtins(self.spec),
            scheduler=processes.scheduler,
            token=processes.token,
            folder=str(processes.folder.path.resolve()),
            started_at=started_at,
            start_clock=self.start.clock,
            threads=threads_for(self.spec),
            before=before,
            inputs=inputs,
        )
        args, workers = msgspec.to_builtins(task), self.spec.workers
        beside = processes.by_host("worker", workers)
        several = len({*beside}) > 1
        return [
            Task(
                f"worker-{rank}",
                self.entry,
                {**args, "rank": rank, "beside": beside[rank] if several else ()},
                inputs=(*files, *state_before(before, self.start.clock, rank)),
            )
            for rank in range(workers)
        ]

    def worker_inputs(self, processes: Processes) -> dict[str, Any]:
        """Return what workers need beside the options of the run.

        A value that is a `Path` names a file or a folder, which they have on their hosts as well.
        """
        return {}

    @property
    def worker_files(self) -> tuple[Input, ...]:
        """The files that the run's options name and that workers have on their hosts as well."""
        return ()

    def resume_words(self) -> str:
        """Return the words of a command that continues the earlier run again."""
        return ""

    @abstractmethod
    def display(self, console: Console, folder: RunFolder) -> Display:
        """Return the context that shows the progress; its function is called again and again."""

    @abstractmethod
    def summarise(self, folder: RunFolder, started_at: float) -> dict[str, Any]:
        """Return the figures of a run that has ended, for its summary."""


def compared(name: str) -> Compared:
    """Return an application whose runs can be compared, beside training jobs.

    Raises:
        UnknownName: there is no such application
    """
    if name not in COMPARED:
        raise unknown("application", name, COMPARED)
    return COMPARED[name]
