"""LocalEngine: a run's processes on this machine.

    with LocalEngine(folder) as engine:
        engine.start(Task("server-0", "shoal.engines.roles:run_server", {...}))
        engine.join(progress)

`join` names the process that died and why; leaving the `with` ends all the others.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from threading import Thread
from time import monotonic

import msgspec

from shoal.engines.base import Task
from shoal.engines.gathering import Gathering
from shoal.errors import ProcessDied, ShoalError, by_name
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
from shoal.storage.files import read_object, write_private, write_whole
from shoal.storage.held_file import HeldFile
from shoal.storage.run_folder import RunFolder
from shoal.storage.scratch import ScratchFolder
from shoal.transport import Identity

log = logging.getLogger("shoal.engine")

TELL_S = 5.0  # limit for a death report: the scheduler may be restarting


class ErrorFile(msgspec.Struct):
    """An error of a process, in a file.

    story:      the last events of the state machine that raised the error
    traceback:  the traceback of the user's code, if the error is from there
    """

    type: str
    message: str
    story: list[str]
    traceback: str = ""


class LocalEngine:
    """Starts processes through a launcher; `sockets` is their private directory.

    token:  the shared secret of the processes, if other users can reach them
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._scratch = ScratchFolder(str(os.getpid()))
        self.sockets = self._scratch.path
        self.token = ""
        self._address: HeldFile | None = None  # the file with the scheduler's address
        self.running: dict[str, int] = {}  # pids by name, 0 until known
        self._tasks: dict[str, Task] = {}
        self._supervisor = Supervisor()
        self._gathering = Gathering(folder.log)
        self._news = NewEvents(folder.events, ("joined", "lost", "view"))
        self._unfinished: deque[int] = deque()  # pids, appended by other threads
        ours, theirs = socket.socketpair()
        self._commands = ours
        self._pending = b""
        self.at_stop = ExitStack()  # the functions to call when all processes have ended
        arguments = [str(theirs.fileno()), str(self.sockets), str(os.getpid())]
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", "shoal.engines.launcher", *arguments],
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C reaches us alone; we end the others
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def address(self, name: str) -> str:
        """Return the address on which a process of this run listens."""
        return f"unix://{self.sockets / name}.sock"

    def start(self, task: Task) -> None:
        self.running[task.name] = 0
        self._tasks[task.name] = task
        self._supervisor.starts(task.name, monotonic())
        self.folder.error(task.name).unlink(missing_ok=True)  # the error of an earlier process
        if task.name == "scheduler":
            if self._address is None:  # a restarted scheduler keeps the file
                self._address = HeldFile(self.folder.scheduler, task.args["listen"])
            if task.args.get("token"):
                write_private(self.folder.token, task.args["token"])
        log, error = str(self.folder.log(task.name)), str(self.folder.error(task.name))
        command = asdict(task) | {"log": log, "error": error}
        self._commands.sendall(json.dumps(command).encode() + b"\n")

    def pid(self, name: str) -> int:
        """Return the id of a running process; wait until it is known."""
        while not self.running[name]:
            self.exits(0.1)
        return self.running[name]

    def exits(self, timeout_s: float) -> list[Exit]:
        """Return the processes that have ended; wait for one for `timeout_s` at most."""
        if not select.select([self._commands], [], [], timeout_s)[0]:
            return []
        data = self._commands.recv(1 << 16)
        if not data:
            raise ProcessDied(
                "the launcher died, and with it every process of the run; "
                f"see {self.folder.path / 'logs'}"
            )
        *lines, self._pending = (self._pending + data).split(b"\n")
        ended = []
        for line in lines:
            report = json.loads(line)
            name, pid = report.get("started") or report["exited"], report["pid"]
            if "started" in report:
                self.running[name] = pid
                self._supervisor.started(name, pid)
                write_whole(self.folder.pids, json.dumps(self.running))
            else:
                self.running.pop(name, None)
                self._read_events()  # the events about the process before its end
                ended.append(Exit(name, report["code"], pid, self._error(name, report["code"])))
                self._do(self._supervisor.ended(ended[-1], monotonic()))
        return ended

    def check(self) -> None:
        """Raise the error of a process that has failed; for a caller that does not `join`."""
        self.exits(0.0)
        if self._supervisor.failed:
            raise self._supervisor.cause(self.folder.log)

    def _do(self, decisions: Iterable[Decision]) -> None:
        for text in self._supervisor.warnings():
            log.warning("%s", text)
        for each in decisions:
            match each:
                case Start(name):
                    self.start(self._tasks[name])
                case Kill(name):
                    with suppress(ProcessLookupError):
                        os.kill(self.pid(name), signal.SIGKILL)
                case Report(pid, orderly):
                    Thread(target=self.report_death, args=(pid, orderly), daemon=True).start()

    def report_death(self, pid: int, orderly: bool = False) -> None:
        """Report a death to the scheduler, which then need not wait for its failure timeout."""
        task = self._tasks["scheduler"]
        report = DeathReport(socket.gethostname(), pid, orderly)
        reporter = Question(report, (DeathReportSeen,), TELL_S)
        me = Identity(
            f"engine-{pid}-{os.urandom(4).hex()}", "worker", token=task.args.get("token", "")
        )
        node = Node(reporter, me, scheduler=task.args["listen"])
        try:
            node.run()
        except ShoalError as error:  # the scheduler may have ended with the run
            log.info("cannot report the death of process %d to the scheduler: %s", pid, error)
        finally:
            node.close()
        if isinstance(reporter.answer, DeathReportSeen) and not reporter.answer.finished:
            self._unfinished.append(pid)

    def _read_events(self) -> None:
        """Read the scheduler's events about processes."""
        now = monotonic()
        for event in self._news():
            name, pid = event.get("name", ""), event.get("process", 0)
            if event["kind"] == "joined":
                self._gathering.joined(pid)
            elif event["kind"] == "view":
                self._supervisor.begun()
            else:
                self._supervisor.declared_dead(name, pid, event.get("how", ""), now)

    def _look(self) -> None:
        """Read the events, and carry out the decisions that are due."""
        self._read_events()
        now = monotonic()
        self._gathering.look(self.running, now)
        while self._unfinished:
            self._supervisor.unfinished(self._unfinished.popleft(), now)
        self._do(self._supervisor.tick(now))

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

    def _error(self, name: str, code: int) -> ShoalError | None:
        """Return the error in a process's error file, if it has one; a killed process has none."""
        path = self.folder.error(name)
        return reported(path) if code > 0 and path.exists() else None

    def finish(self, grace_s: float = 5.0) -> None:
        """Wait until the processes have ended, for `grace_s` at most, then stop."""
        until = monotonic() + grace_s
        while self.running and monotonic() < until:
            self.exits(0.1)
        self.stop()

    def stop(self) -> None:
        """End the processes that still run, and remove the sockets."""
        self._commands.close()  # the launcher then ends all processes
        try:
            self._launcher.wait(timeout=3)
        except subprocess.TimeoutExpired:
            os.killpg(self._launcher.pid, signal.SIGKILL)
            self._launcher.wait()
        self._scratch.remove()
        if self._address is not None:
            self._address.remove()
            self._address = None
        self.folder.token.unlink(missing_ok=True)
        self.at_stop.close()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def reported(path: Path) -> ShoalError:
    """Return the error that a process has left in a file, or one that says the file is damaged."""
    try:
        report = msgspec.convert(read_object(path), ErrorFile)
    except (ValueError, ShoalError) as error:
        return ProcessDied(f"a process ended; {path}, which says why, is damaged: {error}")
    message = report.message
    if report.traceback:
        log_of_it = path.with_suffix(".log")
        message += f"\n{indent(report.traceback.rstrip(), '  ')}\n  its log: {log_of_it}"
    return by_name(report.type)(message, report.story)
