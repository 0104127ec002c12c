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
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from threading import Thread
from time import monotonic

import msgspec

from shoal.engines.base import Exit, Task
from shoal.engines.restarts import Restarts
from shoal.errors import (
    ClusterFull,
    Dropped,
    InvariantBroken,
    JoinRefused,
    JoinTimeout,
    ProcessDied,
    RangeLost,
    RunAborted,
    ShoalError,
    by_name,
)
from shoal.node.node import Node
from shoal.protocol.admin.question import Question
from shoal.protocol.messages import DeathReport, DeathReportSeen
from shoal.storage.files import read_object, write_private, write_whole
from shoal.storage.held_file import HeldFile
from shoal.storage.run_folder import RunFolder
from shoal.storage.scratch import ScratchFolder
from shoal.transport import Identity

log = logging.getLogger("shoal.engine")

RETURNS = 3  # restarts of a worker that was dropped because it was slow
LATE_S = 20.0  # after all others, for processes that may not know that the run has ended
TELL_S = 5.0  # for the scheduler to take a death report; it may be restarting
GRACE_S = 1.0  # after the first failure, and after the end, for the others to end
KILLED_S = 4.0  # after a server was killed, for the scheduler to report the lost rows


def spare_processes(servers: int, replicas: int) -> list[str]:
    """The processes that are restarted after a kill, because others have their state."""
    return ["scheduler", *(f"server-{rank}" for rank in range(servers))] if replicas > 1 else []


class Report(msgspec.Struct):
    """An error of a process, in a file.

    traceback:  of the user's code in it, if it has any
    """

    type: str
    message: str
    story: list[str]
    traceback: str = ""


class LocalEngine:
    """Starts processes through a launcher; `sockets` is their private directory.

    token:  the secret of the processes, if other users can reach them
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._scratch = ScratchFolder(str(os.getpid()))
        self.sockets = self._scratch.path
        self.token = ""
        self._address: HeldFile | None = None  # the scheduler's
        self.running: dict[str, int] = {}  # pids by name, 0 until known
        self._tasks: dict[str, Task] = {}
        self._restarts = Restarts()
        self._returned: Counter[str] = Counter()
        self._lost: list[Exit] = []  # of workers without which the run has gone on
        ours, theirs = socket.socketpair()
        self._commands = ours
        self._pending = b""
        self.at_stop = ExitStack()  # what is to be done when all processes have ended
        arguments = [str(theirs.fileno()), str(self.sockets), str(os.getpid())]
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", "shoal.engines.launcher", *arguments],
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C reaches us alone; we end the others
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def address(self, name: str) -> str:
        """The address that a process of this run listens on."""
        return f"unix://{self.sockets / name}.sock"

    def start(self, task: Task) -> None:
        self.running[task.name] = 0
        self._tasks[task.name] = task
        self._restarts.began(task.name, monotonic())
        self.folder.error(task.name).unlink(missing_ok=True)  # of an earlier one
        if task.name == "scheduler":
            if self._address is None:  # of a restarted one it is there
                self._address = HeldFile(self.folder.scheduler, task.args["listen"])
            if task.args.get("token"):
                write_private(self.folder.token, task.args["token"])
        log, error = str(self.folder.log(task.name)), str(self.folder.error(task.name))
        command = asdict(task) | {"log": log, "error": error}
        self._commands.sendall(json.dumps(command).encode() + b"\n")

    def pid(self, name: str) -> int:
        """The id of a running process, as soon as it is known."""
        while not self.running[name]:
            self.exits(0.1)
        return self.running[name]

    def exits(self, timeout_s: float) -> list[Exit]:
        """Processes that ended, waiting for one for `timeout_s` at most."""
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
            if "started" in report:
                self.running[report["started"]] = report["pid"]
                write_whole(self.folder.pids, json.dumps(self.running))
            else:
                self.running.pop(report["exited"], None)
                ended.append(Exit(report["exited"], report["code"]))
                if report["code"] and "scheduler" in self.running:
                    Thread(target=self.report_death, args=(report["pid"],), daemon=True).start()
        return ended

    def check(self) -> None:
        """Raise the error of a process that has failed; for one who does not `join`."""
        failed = [each for each in self.exits(0.0) if each.code]
        if failed:
            raise self._cause(failed)

    def report_death(self, pid: int) -> None:
        """Report a death to the scheduler, which need not wait for its failure timeout then."""
        task = self._tasks["scheduler"]
        report = DeathReport(socket.gethostname(), pid)
        reporter = Question(report, (DeathReportSeen,), TELL_S)
        me = Identity(
            f"engine-{pid}-{os.urandom(4).hex()}", "worker", token=task.args.get("token", "")
        )
        node = Node(reporter, me, scheduler=task.args["listen"])
        try:
            node.run()
        except ShoalError as error:
            log.warning("cannot report the death of process %d to the scheduler: %s", pid, error)
        finally:
            node.close()

    def join(
        self,
        tick: Callable[[], None] = lambda: None,
        tick_s: float = 0.1,
        spare: Collection[str] = (),
        given_up: Collection[str] = (),
        returning: Collection[str] = (),
        lost: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Wait for every process; raises for the first that did not end well.

        tick:       called every `tick_s`, for progress displays
        spare:      processes that are started again when they die, unless that happens too often
        given_up:   processes that the run continues without when they die
        returning:  workers that are restarted after they were dropped because they were slow
        lost:       at the run's end, the workers that it has gone on without: the code of one may
                    never return, and it is killed then
        """
        late: Collection[str] = ()
        ask_at = float("inf")  # for those that are lost
        failed: list[Exit] = []
        give_up_at = float("inf")
        while (self.running or self._restarts.waiting) and monotonic() < give_up_at:
            for name in self._restarts.due(monotonic()):
                self.start(self._tasks[name])
            for each in self.exits(tick_s):
                if each.name == "scheduler" and not each.code:
                    ask_at = monotonic() + GRACE_S
                if self._may_go(each, spare, given_up, returning):
                    continue
                if each.code:
                    failed.append(each)
                    server = each.name.startswith("server")
                    patience = (KILLED_S if server else 0.0) if each.code < 0 else GRACE_S
                    give_up_at = min(give_up_at, monotonic() + patience)
                    if isinstance(self._report(each), RangeLost):
                        give_up_at = monotonic()  # no other report says more
            tick()
            if given_up and {each.name for each in self._lost} >= {*given_up}:
                failed = failed or [*self._lost]
                give_up_at = min(give_up_at, monotonic() + GRACE_S)
            if monotonic() >= ask_at:
                late, ask_at = lost(), float("inf")
            if self._only_late_ones(late):
                give_up_at = min(give_up_at, monotonic() + LATE_S)
        if failed:
            raise self._cause(failed)
        for name in sorted(self.running):
            log.warning("%s has not ended %g s after all others, and is killed", name, LATE_S)

    def _only_late_ones(self, lost: Collection[str]) -> bool:
        """Whether the work is done and only processes are left that may not know it.

        They were restarted, or the run has gone on without them.
        """
        names = self.running.keys()
        at_work = any(name.startswith("worker") for name in names) and "scheduler" in names
        may_not_know = {*self._restarts.names, *lost}
        return not at_work and not self._restarts.waiting and names <= may_not_know

    def _may_go(
        self,
        each: Exit,
        spare: Collection[str],
        given_up: Collection[str],
        returning: Collection[str],
    ) -> bool:
        """Whether the run continues without this process, or with another in its place."""
        if not each.code:
            return True
        name, killed, report = each.name, each.code < 0, self._report(each)
        if name in given_up and not isinstance(report, RunAborted):
            self._lose(each, report)
            return True
        if report is None or isinstance(report, ProcessDied | InvariantBroken):
            return name in spare and (self._plan_restart(name, killed) or self._can_be_spared(name))
        if name in self._restarts.names:
            if isinstance(report, ClusterFull):  # its predecessor does not count as dead yet
                return self._plan_restart(name)
            if isinstance(report, JoinRefused | JoinTimeout):  # the run was over
                return True
        if isinstance(report, Dropped) and name in returning:
            self._returned[name] += 1
            if self._returned[name] <= RETURNS:
                self._plan_restart(name)
        return isinstance(report, Dropped)

    def _lose(self, each: Exit, report: ShoalError | None) -> None:
        """Note that the run goes on without a worker."""
        self._lost.append(each)
        why = report.message if report is not None else _how_it_ended(each)
        log.warning("%s is lost, and the run goes on without it: %s", each.name, why)

    def start_again(self, name: str) -> None:
        """Start a process that has ended again, at once."""
        self._restarts.names.add(name)
        self.start(self._tasks[name])

    def _plan_restart(self, name: str, killed: bool = True) -> bool:
        """Have a process started again, unless it died too often lately."""
        if not killed:
            path = self.folder.error(name)
            why = reported(path).message if path.exists() else f"its log: {self.folder.log(name)}"
            log.warning("%s has failed, and is started again: %s", name, why)
        return self._restarts.plan(name, killed, monotonic())

    def _can_be_spared(self, name: str) -> bool:
        """Whether the run continues without a process that dies again and again.

        The scheduler ends it if a server had the last replica of some rows.
        """
        return name.startswith("server") and self._restarts.started_well(name)

    def _cause(self, failed: list[Exit]) -> ShoalError:
        """The most telling error: a killed process first, then the first typed report."""
        ended = [*failed, *self._lost]  # with all its workers a run is lost as well
        told = [(each, report) for each in ended if (report := self._report(each)) is not None]
        killed = next((each for each in failed if each.code < 0), None)
        if killed is not None:
            how = f"{killed.name} {_how_it_ended(killed)}"
            where = f"(its log: {self.folder.log(killed.name)})"
            for _, report in told:
                if isinstance(report, RangeLost):
                    return RangeLost(f"{how} {where}: {report.message}")
            return ProcessDied(f"{how}; the run cannot go on without it {where}")
        # A process that was told of the end knows less than the one that caused it.
        told.sort(key=lambda pair: type(pair[1]) is RunAborted)
        if told:
            each, report = told[0]
            return type(report)(f"{each.name}: {report.message}", report.trace)
        each = failed[0]
        return ProcessDied(
            f"{each.name} {_how_it_ended(each)}; its log: {self.folder.log(each.name)}"
        )

    def _report(self, each: Exit) -> ShoalError | None:
        path = self.folder.error(each.name)
        if each.code < 0 or not path.exists():  # a killed process writes no report
            return None
        return reported(path)

    def finish(self, grace_s: float = 5.0) -> None:
        """Let the processes end by themselves, then stop."""
        until = monotonic() + grace_s
        while self.running and monotonic() < until:
            self.exits(0.1)
        self.stop()

    def stop(self) -> None:
        """End whatever still runs, and remove the sockets."""
        self._commands.close()  # on which the launcher ends all processes
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
    """The error that a process has left in a file; or that the file is damaged."""
    try:
        report = msgspec.convert(read_object(path), Report)
    except (ValueError, ShoalError) as error:
        return ProcessDied(f"a process ended; {path}, which says why, is damaged: {error}")
    message = report.message
    if report.traceback:
        log_of_it = path.with_suffix(".log")
        message += f"\n{indent(report.traceback.rstrip(), '  ')}\n  its log: {log_of_it}"
    return by_name(report.type)(message, report.story)


def _how_it_ended(each: Exit) -> str:
    if each.code < 0:
        return f"was killed by {signal.Signals(-each.code).name}"
    return f"ended with status {each.code}"
