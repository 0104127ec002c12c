"""Processes: those of a run, on the hosts of any engine.

    with Processes(folder) as processes:  # on this machine
        processes.start(Task("server-0", "shoal.engines.roles:run_server", {...}))
        processes.join(progress)

`join` names the process that died and why; leaving the `with` ends all the others. What is done
about a process that ends is decided by `protocol.supervision`.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import signal
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import monotonic

import msgspec

from shoal.engines.base import Engine, Started, Task, Wants
from shoal.engines.collecting import Collector
from shoal.engines.gathering import Gathering
from shoal.engines.host_files import HostFiles
from shoal.engines.local import LocalEngine
from shoal.engines.placing import collected, placed, shares
from shoal.engines.supplying import Supplies
from shoal.errors import ShoalError
from shoal.node.node import Node
from shoal.protocol.admin.question import Question
from shoal.protocol.messages.admin import DeathReport, DeathReportSeen
from shoal.protocol.supervision.supervisor import (
    LATE_S,
    Decision,
    Exit,
    Kill,
    LossPolicy,
    Report,
    Start,
    Supervisor,
)
from shoal.storage.event_log import NewEvents
from shoal.storage.files import write_private, write_whole
from shoal.storage.held_file import HeldFile
from shoal.storage.run_folder import RunFolder
from shoal.transport import Identity

log = logging.getLogger("shoal.engine")

TELL_S = 5.0  # limit for a death report: the scheduler may be restarting
SCHEDULER = "scheduler"


class Processes:
    """The processes of a run.

    Args:
        folder: the run's folder.
        engine: the engine that has hosts for them; this machine, if not given.
        names: the names of the processes, for engines whose hosts have limited room.

    Attributes:
        folder: the run's folder.
        private: a private folder for small files, as long as the processes run.
        token: the shared secret of the processes, if others can reach them; "" for none.
        running: their process ids by name, 0 until known.
        at_stop: the functions to call when all processes have ended.
        collector: makes what they leave on their hosts the run's one folder.

    Raises:
        InvalidValue: the engine has no room for them
    """

    def __init__(
        self, folder: RunFolder, engine: Engine | None = None, names: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self._engine = engine or LocalEngine()
        self._reservation = self._engine.reserve(folder, names)
        self.private: Path = self._reservation.host(SCHEDULER).private
        here = self.address(SCHEDULER).startswith("unix://")
        self.token = "" if here else secrets.token_urlsafe(24)
        self.running: dict[str, int] = {}
        self.at_stop = ExitStack()
        self._address: HeldFile | None = None  # the file with the scheduler's address
        self._addresses: dict[str, str] = {}  # at which processes listen, by name
        self._tasks: dict[str, Task] = {}
        self._supervisor = Supervisor()
        self._gathering = Gathering(folder.log)
        self._news = NewEvents(folder.events, ("joined", "lost", "view"))
        folders = [each.files for each in self._reservation.hosts]
        apart = [each for each in folders if not shares(each, folder)]
        self.collector = Collector(folder, apart)
        self._supplies = Supplies()
        self._unfinished: deque[str] = deque()  # launches, appended by other threads

    def address(self, name: str) -> str:
        """Return the address at which a process of this run is to listen."""
        return self._reservation.host(name).address(name)

    def by_host(self, role: str, count: int) -> list[tuple[int, ...]]:
        """Return, for each process of a role, the numbers of those on its host, with its own.

        count:  the number of such processes
        """
        hosts = [self._reservation.host(f"{role}-{number}") for number in range(count)]
        found: defaultdict[int, list[int]] = defaultdict(list)
        for number, host in enumerate(hosts):
            found[id(host)].append(number)
        groups = {key: tuple(numbers) for key, numbers in found.items()}
        return [groups[id(host)] for host in hosts]

    def listening(self, name: str) -> str:
        """Return the address at which a process listens, once it has been started.

        Raises:
            ShoalError: the process has ended before
        """
        while name not in self._addresses:
            self.exits(0.1)
            self.check()
        return self._addresses[name]

    @property
    def scheduler(self) -> str:
        """The scheduler's address; where it takes any port, this waits until it has one.

        Raises:
            ShoalError: the scheduler has ended before
        """
        started = self._tasks.get(SCHEDULER)
        address: str = started.args["listen"] if started else self.address(SCHEDULER)
        return self.listening(SCHEDULER) if address.endswith(":0") else address

    def start(self, task: Task) -> None:
        """Start a process; one of its name has ended, or was never started."""
        self.running[task.name] = 0
        self._tasks[task.name] = task
        self._addresses.pop(task.name, None)
        if task.name == SCHEDULER:
            self._publish(task.args["listen"])
            if task.args.get("token"):
                write_private(self.folder.token, task.args["token"])
        host = self._reservation.host(task.name)
        launch = host.start(placed(task, host.files, self.folder))
        self._supervisor.starts(task.name, launch, monotonic())

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process; do nothing if it has ended."""
        self._reservation.host(name).signal(name, number)

    def pid(self, name: str) -> int:
        """Return the id of a running process; wait until it is known."""
        while not self.running[name]:
            self.exits(0.1)
        return self.running[name]

    def exits(self, timeout_s: float) -> list[Exit]:
        """Return the processes that have ended; wait for one for `timeout_s` at most."""
        ended = []
        hosts = {host.fileno(): host for host in self._reservation.hosts}
        poll = select.poll()
        for fileno in hosts:
            poll.register(fileno, select.POLLIN)
        for fileno, _ in poll.poll(timeout_s * 1000):
            for report in hosts[fileno].reports():
                if isinstance(report, Started):
                    self._started(report)
                elif isinstance(report, Wants):
                    self._wanted(report, hosts[fileno].files)
                else:
                    self._ended(report)
                    ended.append(report)
        return ended

    def check(self) -> None:
        """Raise the error of a process that has failed; for a caller that does not `join`."""
        self.exits(0.0)
        self._supplies.check()
        if self._supervisor.failed:
            raise self._supervisor.cause(self.folder.log)

    def report_death(self, launch: str, orderly: bool = False) -> None:
        """Report a death to the scheduler, which then need not wait for its failure timeout."""
        scheduler = self._tasks[SCHEDULER].args
        reporter = Question(DeathReport(launch, orderly), (DeathReportSeen,), TELL_S)
        me = Identity(
            f"engine-{launch}-{os.urandom(4).hex()}", "worker", token=scheduler.get("token", "")
        )
        node = Node(reporter, me, scheduler=scheduler["listen"])
        try:
            node.run()
        except ShoalError as error:  # the scheduler may have ended with the run
            log.info("cannot report the death of launch %s to the scheduler: %s", launch, error)
        finally:
            node.close()
        if isinstance(reporter.answer, DeathReportSeen) and not reporter.answer.finished:
            self._unfinished.append(launch)

    def join(
        self,
        tick: Callable[[], None] = lambda: None,
        tick_s: float = 0.1,
        policy: LossPolicy = LossPolicy(),  # noqa: B008 - frozen
    ) -> None:
        """Wait for every process; after a failure, end all processes and raise its cause.

        tick:    the function to call every `tick_s`, for progress displays
        policy:  the reaction to lost processes
        """
        supervisor = self._supervisor
        supervisor.policy = policy
        while not supervisor.over(monotonic()):
            self.exits(tick_s)
            self._supplies.check()
            self._look()
            tick()
        if supervisor.failed:
            self.stop()  # their files are read next, and must not change
            raise supervisor.cause(self.folder.log)
        for name in supervisor.late():
            log.warning("%s has not ended %g s after all others, and is killed", name, LATE_S)

    def restarts(self, name: str) -> bool:
        """Return whether a process that has ended will be started again."""
        return self._supervisor.restarts(name)

    def start_again(self, name: str) -> None:
        """Restart, at once, a process that has left the run in order."""
        self._supervisor.starts_again(name)
        self.start(self._tasks[name])

    def finish(self, grace_s: float = 5.0) -> None:
        """Wait until the processes have ended, for `grace_s` at most, then stop."""
        until = monotonic() + grace_s
        while self.running and monotonic() < until:
            self.exits(0.1)
        self.stop()

    def stop(self) -> None:
        """End the processes that still run, and remove the sockets."""
        for host in self._reservation.hosts:
            host.stop()
        self.collector.finish()
        if self._address is not None:
            self._address.remove()
            self._address = None
        if SCHEDULER in self._tasks:
            self.folder.token.unlink(missing_ok=True)
        self.at_stop.close()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    # ------------------------------------------------------------------ reports and decisions

    def _started(self, report: Started) -> None:
        name = report.name
        self.running[name] = report.pid
        if SCHEDULER in self._tasks:  # else the folder belongs to processes on another host
            write_whole(self.folder.pids, msgspec.json.encode(self.running).decode())
        if report.address:
            self._addresses[name] = report.address
        if report.address and name == SCHEDULER:
            self._publish(report.address)
            task = self._tasks[name]  # members know this address: a later start listens there too
            self._tasks[name] = replace(task, args={**task.args, "listen": report.address})

    def _wanted(self, report: Wants, files: HostFiles) -> None:
        if (task := self._tasks.get(report.name)) is not None:
            self._supplies.asked(task, files, report.file)

    def _publish(self, address: str) -> None:
        """Write the scheduler's address to the run's folder; a restarted one keeps the file."""
        if self._address is None and not address.endswith(":0"):
            self._address = HeldFile(self.folder.scheduler, address)

    def _ended(self, report: Exit) -> None:
        self.running.pop(report.name, None)
        self._read_events()  # the events about the process before its end
        files = self._reservation.host(report.name).files
        self._do(self._supervisor.ended(collected(report, files, self.folder), monotonic()))

    def _do(self, decisions: Iterable[Decision]) -> None:
        for text in self._supervisor.warnings():
            log.warning("%s", text)
        for each in decisions:
            match each:
                case Start(name):
                    self.start(self._tasks[name])
                case Kill(name):
                    self.signal(name, signal.SIGKILL)
                case Report(launch, orderly):
                    if self._engine.reports_ends:
                        told = (launch, orderly)
                        Thread(target=self.report_death, args=told, daemon=True).start()

    def _read_events(self) -> None:
        """Read the scheduler's events about processes."""
        self.collector.events(self._reservation.host(SCHEDULER).files)
        now = monotonic()
        for event in self._news():
            name, launch = event.get("name", ""), event.get("launch", "")
            if event["kind"] == "joined":
                self._gathering.joined(launch)
            elif event["kind"] == "view":
                self._supervisor.begun()
            else:
                self._supervisor.declared_dead(name, launch, event.get("how", ""), now)

    def _look(self) -> None:
        """Read the events, and carry out the decisions that are due."""
        self._read_events()
        now = monotonic()
        self._gathering.look(self._supervisor.living, now, self.signal)
        while self._unfinished:
            self._supervisor.unfinished(self._unfinished.popleft(), now)
        self._do(self._supervisor.tick(now))
