"""A run as ranks of a launcher: this process is one of its workers.

Rank 0 prepares the run and supervises its processes: the scheduler on its own host, the servers on
all hosts, for which their first ranks answer. Each rank does the work of the worker of its number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from signal import SIGINT, pthread_kill
from threading import Event, Thread, main_thread
from typing import Any

import msgspec
from rich.console import Console

from shoal.collective.mpi import communicator, failed
from shoal.engines.base import Task
from shoal.engines.host_files import INPUTS
from shoal.engines.launchers.hosts import RanksEngine, folder_here, keeping
from shoal.engines.launchers.meeting import Meeting, Ranks, check_server
from shoal.engines.launchers.ps_lite import Part, part_of
from shoal.engines.launchers.rendezvous import Said
from shoal.engines.launchers.world import World, world_of
from shoal.engines.processes import Processes
from shoal.errors import InvalidValue, NotTrusted, ShoalError
from shoal.runs.application import Application, Spec
from shoal.runs.ending import join_run
from shoal.runs.options import RunOptions
from shoal.runs.plan import cluster_of
from shoal.runs.trust import code_of
from shoal.runs.worker import threads_of
from shoal.storage.event_log import NewEvents
from shoal.storage.run_folder import RunFolder
from shoal.transport.credentials import requires_tls

COME_S = 600.0  # for all ranks to come, as rank 0 has it
PREPARED_S = 3600.0  # for rank 0 to read and check the inputs, as the others have it
TELL_S = 10.0  # for all ranks to come, where one has failed
VERDICT_S = 10.0  # after a worker has failed, for the scheduler's reason


def world_here(launcher: str = "") -> World | None:
    """Return the world of this process; None if it is no rank of several.

    launcher:  as for `world_of`; SHOAL_LAUNCHER, or "auto", if empty

    Raises:
        InvalidValue: the variables of the launcher contradict each other
    """
    return world_of(os.environ, launcher or os.environ.get("SHOAL_LAUNCHER") or "auto")


def part_here(launcher: str = "") -> Part | None:
    """Return the part that ps-lite's variables give this process; None if a launcher is chosen.

    launcher:  as for `world_here`

    Raises:
        InvalidValue: as `part_of`
    """
    chosen = launcher or os.environ.get("SHOAL_LAUNCHER") or "auto"
    return part_of(os.environ) if chosen == "auto" else None


@contextmanager
def telling_ranks(world: World | None, rendezvous: str = "") -> Iterator[None]:
    """Tell the other ranks of an error in a `with` block that comes before they have met."""
    Meeting.begun = False
    try:
        yield
    except ShoalError as error:
        if world is not None and not Meeting.begun:
            failed()
            place = rendezvous or os.environ.get("SHOAL_RENDEZVOUS", "")
            with suppress(ShoalError, OSError):  # they cannot meet
                Meeting(world, os.environ, place, TELL_S).refuse(error)
        raise


class RankedRun:
    """One rank's part in a run.

    Args:
        world: the world of this process.
        application: what is run; the others take its tasks from rank 0.
        rendezvous: HOST:PORT, where launchers do not say where ranks meet; SHOAL_RENDEZVOUS, if
            empty.
    """

    def __init__(self, world: World, application: Application[Spec], rendezvous: str = "") -> None:
        check_ranked(world, application.spec)
        self._application = application
        place = rendezvous or os.environ.get("SHOAL_RENDEZVOUS", "")
        timeout_s = PREPARED_S if world.rank else COME_S
        self._meeting = Meeting(world, os.environ, place, timeout_s)
        self._asked = msgspec.json.encode(application.spec)
        self._rank = world.rank
        self._leads_host = world.local_rank == 0
        self._threads = threads_of(world.local_size)
        self._folder = RunFolder(Path())

    def lead(
        self, begin: Callable[[], RunFolder], console: Console, started_at: float
    ) -> tuple[RunFolder, dict[str, list[str]]]:
        """Be rank 0: prepare the run, start the cluster, work and wait for the end.

        begin:  the function that prepares the run and makes its folder

        Returns:
            The run's folder, and what was left on other hosts.
        """
        application = self._application
        with ExitStack() as stack:
            stack.push(_note_failure)
            engines: list[RanksEngine] = []
            started: list[Processes] = []

            def prepare(ranks: Ranks) -> Said:
                engines.append(RanksEngine(ranks, begin()))
                stack.callback(engines[0].close)
                return engines[0].told

            def start(_: Ranks) -> Said:
                [engine] = engines
                processes = stack.enter_context(Processes(engine.folder, engine))
                started.append(processes)
                processes.token = engine.token
                for task in cluster_of(application, processes, started_at):
                    processes.start(task)
                tasks = application.worker_tasks(processes, started_at)
                return {"workers": engine.placed(tasks)}

            self._meeting.meet(prepare, self._asked)
            reply = self._meeting.meet(start, self._asked)
            [processes] = started
            self._folder = processes.folder
            tick = stack.enter_context(application.display(console, processes.folder))
            how = application.command, application.resume_words()
            joined = partial(join_run, processes, application.spec, *how)
            supervision = _Supervision(
                lambda tick, written: joined(tick, application.start.clock, written), tick, stack
            )
            with supervision.reasons():
                self._work(reply)
                supervision.await_end()
                self._meeting.told({}, lost_ranks(processes.folder))
                supervision.verdict()
            return processes.folder, processes.collector.left

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self._rank == 0

    def summarised(self, summary: dict[str, Any]) -> None:
        """Tell the other ranks the summary of the run."""
        self._meeting.told({"summary": summary}, lost_ranks(self._folder))

    def follow(self) -> dict[str, Any]:
        """Be another rank: work, and return the summary.

        The first rank of a host answers for its host, until the run has a summary.
        """
        with ExitStack() as stack:
            stack.push(_note_failure)
            self._application.check()
            told = self._meeting.meet(lambda ranks: {}, self._asked)
            self._folder = folder_here(told, Path(self._application.spec.out))
            if self._leads_host and told["desk"]:
                stack.enter_context(self._host(told))
            self._work(self._meeting.meet(lambda ranks: {}, self._asked))
            self._meeting.told({})
            summary: dict[str, Any] = self._meeting.told({})["summary"]
            return summary

    def _host(self, told: Said) -> AbstractContextManager[object]:
        """Answer for this host in a `with` block, whose processes run the code of this command."""
        application = self._application
        code = {"imports": [*application.imports], "script": [*application.script]}

        def agree(task: Task) -> None:
            check_server(task, code)
            check_folders(task, application.spec, self._folder.path)

        return keeping(self._rank, told, self._folder, agree)

    def _work(self, reply: Said) -> None:
        """Do this rank's work as a worker."""
        task = Task(**reply["workers"][self._rank])
        if self._rank:
            check_worker(task, self._application, self._folder.path)
        work(task, self._threads)


class _Supervision(Thread):
    """Waits for the processes of this host beside the worker.

    wait:   the function that waits: it calls its first argument again and again, and its second one
            when they have ended, to wait for the results of all ranks
    tick:   the function for progress displays
    stack:  what ends the thread, before the processes that it waits for are stopped
    """

    def __init__(
        self,
        wait: Callable[[Callable[[], None], Callable[[], None]], None],
        tick: Callable[[], None],
        stack: ExitStack,
    ) -> None:
        super().__init__(name="shoal-supervision", daemon=True)
        self._wait = wait
        self._tick = tick
        self._left = Event()
        self._ended = Event()
        self._written = Event()
        self._error: BaseException | None = None
        stack.callback(self._leave)
        self.start()

    def run(self) -> None:
        try:
            self._wait(self._ticked, self._await_results)
        except _Left:
            pass
        except BaseException as error:
            if not self._left.is_set():
                self._error = error
                pthread_kill(main_thread().ident or 0, SIGINT)  # the worker may wait for ever
        finally:
            self._ended.set()

    def _ticked(self) -> None:
        if self._left.is_set():
            raise _Left
        self._tick()

    def _await_results(self) -> None:
        self._ended.set()
        self._written.wait()
        if self._left.is_set():
            raise _Left

    def await_end(self) -> None:
        """Wait until the processes have ended, and raise the reason if they have failed."""
        self._ended.wait()
        self.check()

    def check(self) -> None:
        """Raise the reason if the processes have failed."""
        if self._error is not None:
            raise self._error

    @contextmanager
    def reasons(self) -> Iterator[None]:
        """Raise the reason in place of errors that it causes in a `with` block."""
        try:
            yield
        except ShoalError:
            self.verdict(VERDICT_S)
            raise
        except KeyboardInterrupt:  # perhaps by `run`
            self.check()
            raise

    def verdict(self, timeout_s: float | None = None) -> None:
        """Wait for the end, all results being written; raise the reason if processes have failed.

        timeout_s:  the time to wait before this worker's own error is the reason
        """
        if timeout_s is None:
            self._written.set()
        self.join(timeout_s)
        self.check()

    def _leave(self) -> None:
        self._left.set()
        self._written.set()
        self.join()


def _note_failure(kind: type[BaseException] | None, *_: object) -> None:
    """Note at the end of a `with` block that this rank ends with an error."""
    if kind is not None:
        failed()


class _Left(Exception):
    """The processes are not waited for any more."""


def lost_ranks(folder: RunFolder) -> set[int]:
    """Return the ranks that the run has gone on without."""
    lost = NewEvents(folder.events, ("lost", "dropped"))()
    names = [str(each.get("name", "")).partition("-") for each in lost]
    return {int(number) for role, _, number in names if role == "worker" and number.isdigit()}


def work(task: Task, threads: int) -> None:
    """Do a worker's task in this process."""
    os.environ.update({**task.env, "OMP_NUM_THREADS": str(threads)})
    resolve_name(task.entry)(**{**task.args, "threads": threads})


def check_worker(task: Task, application: Application[Spec], folder: Path) -> None:
    """Refuse a worker's task that names other code, or other folders, than this rank has.

    It has come from a store of torch, which has no password.

    folder:  the run's folder on this host

    Raises:
        NotTrusted: it does
    """
    spec, args = application.spec, task.args
    if application.script:
        named = [args.get("script"), *args.get("args", ())]
        same = named == [*application.script]
        strategy = getattr(spec, "strategy", "")
        same &= task.env.get("SHOAL_STRATEGY", "") == strategy
        same &= all(name.startswith(("SHOAL_", "OMP_NUM_")) for name in task.env)
        same &= task.env.get("SHOAL_RUN_DIR", "") == str(folder)
    else:
        given, own = args.get("spec", {}), [spec, getattr(spec, "resolved", spec)]
        codes = [code_of(msgspec.to_builtins(each)) for each in own]
        same = code_of(given) in codes and given.get("resume", "") == spec.resume and not task.env
        resumed = {str(Path(spec.resume).resolve()), str(folder / INPUTS / "before")}
        before = {"", *(resumed if spec.resume else ())}
        same &= args.get("folder") == str(folder) and args.get("before", "") in before
    if task.entry != application.entry or not same:
        raise NotTrusted(
            "the answer at the ranks' rendezvous has a worker that runs other code, or in another "
            f"folder, than this rank was asked to: {task.entry} in {folder}"
        )


def check_folders(task: Task, spec: RunOptions, folder: Path) -> None:
    """Refuse a server's task with other folders than this rank has.

    folder:  the run's folder on this host

    Raises:
        NotTrusted: it has some
    """
    args = task.args
    begins = [each for each in (spec.resume, getattr(spec, "init", "")) if each]
    roots = [folder / INPUTS, *(Path(each).resolve() for each in begins)]
    init = Path(args.get("init", "") or folder / INPUTS).resolve()
    if (
        args.get("folder") != str(folder)
        or args.get("out")
        or args.get("rows", "") not in ("", str(folder / INPUTS / "rows"))
        or not any(init.is_relative_to(root) for root in roots)
    ):
        raise NotTrusted(f"{task.name} is to use other folders than {folder}, as this rank has it")


def check_ranked(world: World, run: RunOptions) -> None:
    """Refuse options that the ranks of a launcher cannot have.

    Raises:
        InvalidValue: the number of workers is not that of ranks, or nobody starts workers again
    """
    world.check_workers(run.workers)
    if run.engine != "local":
        raise InvalidValue(
            f"--engine {run.engine} in a world of ranks: {world.launcher} has started the workers; "
            "leave out --engine, or give --launcher none"
        )
    for flag, value, wrong in (
        ("--on-worker-loss", run.on_worker_loss, "replace"),
        ("--slow-workers", run.slow_workers, "backup"),
    ):
        if value == wrong:
            raise InvalidValue(
                f"{flag} {value}: {world.launcher} starts no worker again; `shoal train` and "
                "`shoal run` without a launcher do, on one host"
            )
    if run.on_worker_loss in ("drop", "reassign") and world.launcher != "srun":
        raise InvalidValue(
            f"--on-worker-loss {run.on_worker_loss}: {world.launcher} ends all ranks when one "
            "fails; srun does not, and neither do `shoal train` and `shoal run` without a launcher"
        )
    if run.collective == "mpi" and requires_tls() and not world.one_host:
        raise InvalidValue(
            "--collective mpi: MPI's sums are not encrypted, which --require-tls refuses"
        )
    if run.collective == "mpi":
        started = world.launcher, world.rank, world.size
        communicator("--collective mpi", "or use --collective ring", started)
