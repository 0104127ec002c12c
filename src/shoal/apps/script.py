"""`shoal run`: a user's own script as the workers of a run."""

from __future__ import annotations

import runpy
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from shoal.apps.script_job import ScriptRun, check_script, check_settings, job_of
from shoal.engines.addresses import worker_address
from shoal.engines.base import Task
from shoal.engines.environment import OF_OPTIMIZERS, ScriptEnvironment
from shoal.engines.gathering import UNLIMITED_S
from shoal.engines.options import WorkerRole
from shoal.engines.output import Followed
from shoal.engines.processes import Processes
from shoal.errors import InvalidValue, UsageError
from shoal.factories import anywhere, importable
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.reports.events import lost_members, read_events, write_tables
from shoal.reports.logged import logged_summary, logged_tables
from shoal.runs.application import Application
from shoal.runs.job_file import SCRIPT, dump_job
from shoal.runs.resume import ledger_of, resumed_at, resumed_from, words_of_change
from shoal.runs.worker import threads_for
from shoal.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from shoal.client.context import Context

NOT_INHERITED = ("SHOAL_ON_WORKER_LOSS", "SHOAL_RESUMED")  # by `shoal worker`, of its own caller
SHOWN = 8  # number of names at the end of a run


class ScriptApplication(Application[ScriptRun]):
    """A user's script as the workers of a run.

    The output of workers goes to their logs, and to this terminal according to `spec.output`.

    path, args:  the script, and its arguments
    """

    name = SCRIPT
    command = "run"
    entry = "shoal.apps.script:worker_main"
    saves_shards = False

    def __init__(self, path: Path, args: Sequence[str], spec: ScriptRun) -> None:
        super().__init__(spec)
        self._path = path
        self.script = (str(path.resolve()), *args)
        self._steps: tuple[tuple[int, int], ...] = ()  # as `ScriptJob.steps_before`

    @property
    def title(self) -> str:
        return self._path.stem

    def check(self) -> None:
        _check_syntax(self._path)
        check_script(self.spec)
        self.imports = tuple(map(importable, self.spec.imports))
        self.spec = msgspec.structs.replace(
            self.spec, imports=self.imports, strategy=anywhere(self.spec.strategy)
        )

    def prepare(self, console: Console) -> None:
        before = job_of(Path(self.spec.resume)) if self.start.clock else None
        self._steps = before.steps_until(self.start.clock) if before is not None else ()

    def job(self) -> str:
        return dump_job(
            self.spec,
            SCRIPT,
            script=[*self.script],
            command=f"shoal run {self.resume_words()}",
            steps_before=[*map(list, self._steps)],
        )

    def ledger_before(self, clock: int) -> LedgerRecord | None:
        return ledger_of(self.spec.resume, clock)

    def worker_tasks(self, processes: Processes, started_at: float) -> list[Task]:
        how, threads = self.spec, threads_for(self.spec)
        shared = how.shared_with(ScriptEnvironment)
        del shared["servers"]  # those that a script without a cluster starts
        told = ScriptEnvironment(
            scheduler=processes.scheduler,
            token=processes.token,  # not another cluster's
            run_dir=str(processes.folder.path.resolve()),
            world_size=how.workers,
            init_timeout_s=UNLIMITED_S,
            resumed=resumed_from(how.resume, self.start.clock, self._steps),
            **shared,
            **{name: getattr(how, name) for name in OF_OPTIMIZERS},
        )
        env = {**told.variables, "OMP_NUM_THREADS": str(threads)}
        script, *args = self.script
        return [
            Task(
                f"worker-{rank}",
                self.entry,
                {"script": script, "args": args, "threads": threads},
                env={**env, "SHOAL_RANK": str(rank)},
                inherit_output=rank == 0 and how.output == "rank0",
            )
            for rank in range(how.workers)
        ]

    def resume_words(self) -> str:
        """Return the words of a command that runs the same script again."""
        before = job_of(Path(self.spec.resume)) if self.spec.resume else None
        options = words_of_change(self.spec, ScriptRun(), *filter(None, [before]))
        return shlex.join([*options, *self.script])

    @contextmanager
    def display(self, console: Console, folder: RunFolder) -> Iterator[Callable[[], None]]:
        # one process writes what all have printed, so that no line is within another
        workers = [f"worker-{rank}" for rank in range(self.spec.workers)]
        shown = workers if self.spec.output == "all" else []
        with Followed({name: folder.log(name) for name in shown}) as logs:
            yield logs.show

    def summarise(self, folder: RunFolder, started_at: float) -> dict[str, Any]:
        return _summarise(self.spec, self._path, folder, started_at)


def _summarise(
    how: ScriptRun, script: Path, folder: RunFolder, started_at: float
) -> dict[str, Any]:
    """Return the run's figures, with `logged_summary` of those that its workers have logged."""
    events = list(read_events(folder.events, torn=True))
    write_tables(folder, events)
    gone = lost_members(events, once=False)
    return {
        "script": script.name,
        "logged": logged_summary(logged_tables(events)),
        "lost": gone["lost"],
        "dropped": gone["dropped"],
        "wall_s": time.time() - started_at,
        "workers": how.workers,
        "servers": how.servers,
        "title": how.title,
        "run_dir": str(folder.path),
    }


def show_summary(console: Console, summary: dict[str, Any]) -> None:
    """Print the figures that the workers of a script have logged, and the run's folder."""
    from shoal.reports.live import show_course

    logged = summary["logged"]
    events = read_events(RunFolder(Path(summary["run_dir"])).events, torn=True)
    tables = logged_tables(events) if logged else {}
    for name in list(logged)[:SHOWN]:
        columns = (table[name] for table in tables.values() if name in table)
        show_course(console, name, [value for value in next(columns) if value is not None])
    if len(logged) > SHOWN:
        console.print(f"and {len(logged) - SHOWN} more names")
    console.print(f"run: {summary['run_dir']}", soft_wrap=True, highlight=False)
    if logged:
        console.print(
            f"figures: shoal report {summary['run_dir']}", soft_wrap=True, highlight=False
        )


def _check_syntax(script: Path) -> None:
    try:
        compile(script.read_bytes(), script, "exec")
    except (SyntaxError, ValueError, OSError) as error:
        raise InvalidValue(f"{script} is not a Python script: {error}") from None


def worker_main(script: str, args: list[str], threads: int = 0) -> None:
    """Run a script as `python script args` would, in the run that the environment names."""
    from shoal.client.context import joined, joined_once
    from shoal.node.memory import keep_memory

    keep_memory()
    if threads:
        import torch

        torch.set_num_threads(threads)
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        context = joined()
        if context is not None and not (isinstance(error, SystemExit) and not error.code):
            context.client.fail(error)
            raise
        if not isinstance(error, SystemExit):
            raise
    if not joined_once():
        raise UsageError(f"{script} ended without calling shoal.init(), so it never joined the run")
    context = joined()
    if context is not None:  # else the script has left the run itself
        context.close()


def become_worker(
    script: str,
    args: list[str],
    role: WorkerRole,
    joins: Callable[[Context], None] = lambda context: None,
) -> None:
    """Join a cluster with this process, and run the script (`shoal worker`).

    joins:  a function that is called between the two

    Raises:
        UnknownName: no such strategy, or no such setting
        InvalidValue: a setting out of its range, or options that contradict each other
        NotTrusted, DataMissing, DataCorrupt: as `resumed_at`
        JoinRefused, JoinTimeout: as `shoal.init`
    """
    from shoal.engines.joining import init, set_variables

    if role.group and role.resume:
        raise InvalidValue("--resume belongs to the first worker group, not to --group")
    check_settings(role)
    start_clock = resumed_at(role.resume, role.resume_at)
    given = msgspec.structs.asdict(role)
    del given["resume"], given["resume_at"]
    del given["interface"]
    given["listen"] = worker_address(role) or None
    given["drop_messages"] = role.drop_messages or None
    told = ScriptEnvironment(
        on_worker_loss=given.pop("on_worker_loss"),
        resumed=resumed_from(role.resume, start_clock),
        **{name: given.pop(name) for name in OF_OPTIMIZERS},
    )
    asked = {name: text for name, text in told.variables.items() if text or name in NOT_INHERITED}
    set_variables(asked)
    joins(init(**given))
    try:
        worker_main(str(Path(script).resolve()), args)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("this worker has left the run; the others go on") from None
