"""Hosts that another process answers for: `Keeper` there, `Desk` beside the run's supervisor.

`protocol.admin.hosts` says how they talk. A keeper starts only tasks that its own process agrees
to, and changes nothing but files of the run's folder that are for that.
"""

from __future__ import annotations

import errno
import logging
import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from signal import SIGKILL
from threading import Condition, Lock, Thread
from time import time
from typing import Any

import msgspec

from shoal.engines.base import Host, HostReport, Started, Task, Wants
from shoal.engines.host_files import INPUTS, FileState, HostFiles
from shoal.engines.local import LocalHost
from shoal.errors import JoinTimeout, ProcessDied, ShoalError, by_name
from shoal.node.node import Node
from shoal.protocol.admin.hosts import (
    DESK,
    HostCame,
    HostDesk,
    HostKeeper,
    HostLost,
    HostReported,
    HostRequest,
    Leave,
    Reported,
)
from shoal.protocol.machine import Note, Outcome
from shoal.protocol.messages.hosts import HostAnswered, HostAsked, HostHeld, What
from shoal.protocol.supervision.supervisor import Exit
from shoal.protocol.views import NodeId
from shoal.storage.run_folder import CHECKPOINTS, RunFolder
from shoal.transport import Identity

log = logging.getLogger("shoal.engine")

ANSWER_S = 60.0  # for a host to answer
STOP_S = 5.0  # the same for the end of all processes: it may have ended itself
OVER = "hosts are not asked any more: the run has ended"
MESSAGE_CHARACTERS, STORY_MOST, STORY_CHARACTERS = 12_000, 16, 250  # of an error in a report
CLOCKS = 5  # times that a clock is asked: the fastest answer counts


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A report of a host, as JSON: a `Started`, an `Exit` if it has a code, `Wants` if a file.

    error:  the type, the message and the story of a process's error
    """

    name: str
    launch: str
    pid: int = 0
    address: str = ""
    code: int | None = None
    error: tuple[str, str, list[str]] | None = None
    how: str = ""
    host_lost: bool = False
    file: str = ""

    @classmethod
    def of(cls, report: HostReport) -> Said:
        if isinstance(report, Wants):
            return cls(report.name, report.launch, file=report.file)
        if isinstance(report, Started):
            return cls(report.name, report.launch, report.pid, report.address)
        told, error = None, report.error
        if error is not None:
            story = [_cut(each, STORY_CHARACTERS) for each in error.trace[-STORY_MOST:]]
            told = type(error).__name__, _cut(error.message, MESSAGE_CHARACTERS), story
        how = _cut(report.how, MESSAGE_CHARACTERS), report.host_lost
        return cls(report.name, report.launch, 0, "", report.code, told, *how)

    def report(self) -> HostReport:
        if self.file:
            return Wants(self.name, self.launch, self.file)
        if self.code is None:
            return Started(self.name, self.launch, self.pid, self.address)
        error = None
        if self.error is not None:
            kind, message, story = self.error
            error = by_name(kind)(message, story)
        return Exit(self.name, self.code, self.launch, error, self.how, self.host_lost)


def _cut(text: str, most: int) -> str:
    """Return a text, or its beginning and its end, which say most."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} [...] {text[-half:]}"


# ---------------------------------------------------------------------------- beside the supervisor


class Desk:
    """Listens for the keepers of other hosts.

    Args:
        listen: the address to listen on.
        token: the secret that keepers have to have.

    Attributes:
        address: the address at which keepers find it.
    """

    def __init__(self, listen: str, token: str) -> None:
        self._numbers = count(1)
        self._waiting: dict[int, Future[Outcome]] = {}
        self._hosts: dict[NodeId, RemoteHost] = {}
        self._came = Condition()
        me = Identity(DESK, "worker", token=token)
        self._node = Node(HostDesk(), me, resolve=self._resolved, on_note=self._noted)
        self.address = self._node.listen(listen)
        self._over = False
        self._thread = Thread(target=self._serve, name="shoal-desk", daemon=True)
        self._thread.start()

    def host(self, name: str, timeout_s: float) -> RemoteHost:
        """Return the host of a keeper, once it has come.

        Raises:
            JoinTimeout: it has not come in time
            ConnectionError: it is gone again
        """
        with self._came:
            if not self._came.wait_for(lambda: name in self._hosts, timeout_s):
                raise JoinTimeout(f"host {name} has not connected to {self.address}")
        found = self._hosts[name]
        found.files.measure()
        return found

    def ask(
        self,
        host: NodeId,
        what: What,
        name: str = "",
        start: int = 0,
        size: int = 0,
        last: bool = False,
        data: bytes = b"",
        limit_s: float = ANSWER_S,
    ) -> bytes:
        """Ask a host, and return its answer.

        Raises:
            ConnectionError: the host is lost
            OSError: it cannot do what is asked
        """
        asked = HostAsked(next(self._numbers), what, name, start, size, last)
        future = self._waiting[asked.number] = Future()
        if self._over:  # else `_serve` resolves it at the latest
            self._give_up()
        else:
            self._node.ask(HostRequest(host, asked, data, limit_s))
        outcome = future.result()
        if outcome.error is not None:
            raise ConnectionError(outcome.error.message)
        answered, found = outcome.value
        if answered.errno:
            raise OSError(answered.errno, answered.error, name)
        return bytes(found)

    def close(self) -> None:
        """End all connections; may be called again."""
        if self._thread.is_alive():
            self._node.ask(Leave())
            self._thread.join()
        self._node.close()

    def _serve(self) -> None:
        try:
            _run(self._node)
        finally:
            self._over = True
            self._give_up()
            for host in [*self._hosts.values()]:
                host.lose(OVER)

    def _give_up(self) -> None:
        """Resolve all questions: nothing answers any more."""
        for number in [*self._waiting]:
            self._resolved(number, Outcome(error=ProcessDied(OVER)))

    def _resolved(self, number: int, outcome: Outcome) -> None:
        future = self._waiting.pop(number, None)
        if future is not None:
            future.set_result(outcome)

    def _noted(self, note: Note) -> None:
        match note:
            case HostCame(host, held):
                with self._came:
                    self._hosts[host] = RemoteHost(self, host, held)
                    self._came.notify_all()
            case HostReported(host, report):
                try:
                    self._hosts[host].heard(msgspec.json.decode(report, type=Said).report())
                except (msgspec.MsgspecError, ShoalError) as error:
                    self._hosts[host].lose(f"its report cannot be read: {error}")
            case HostLost(host, reason):
                self._hosts[host].lose(reason)


class RemoteHost(Host):
    """A host that a `Keeper` answers for."""

    def __init__(self, desk: Desk, name: NodeId, held: HostHeld) -> None:
        self.label = held.label
        self.folder = RunFolder(Path(held.path))
        self.files: RemoteFiles = RemoteFiles(desk, name, held)
        self.private = Path()  # nothing is put there from here
        self._desk = desk
        self._name = name
        self._address = held.address
        self._losing = Lock()
        self._lock = Lock()  # two threads write the next three
        self._running: dict[str, str] = {}  # launch by name
        self._ended: set[str] = set()  # launches
        self._lost = ""
        self._reports: deque[HostReport] = deque()
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def lost(self) -> bool:
        """Whether the host is lost."""
        return bool(self._lost)

    def address(self, name: str) -> str:
        return self._address

    def start(self, task: Task) -> str:
        data = msgspec.json.encode(asdict(replace(task, inputs=())))
        try:
            launch = self._desk.ask(self._name, "start", task.name, data=data).decode()
        except OSError as error:
            why = error.strerror or error
            raise ProcessDied(f"{task.name} cannot be started on {self.label}: {why}") from None
        with self._lock:
            if launch not in self._ended:
                self._running[task.name] = launch
        if self._lost:  # after it has answered
            self.lose(self._lost)
        return launch

    def signal(self, name: str, number: int) -> None:
        if name in self._running:
            self._try("signal", name, number)

    def fileno(self) -> int:
        return self._news

    def reports(self) -> Sequence[HostReport]:
        try:
            os.eventfd_read(self._news)
        except BlockingIOError:
            return []
        return [self._reports.popleft() for _ in range(len(self._reports))]

    def stop(self) -> None:
        if self._news >= 0:
            self._try("stop", limit_s=STOP_S)
            with self._lock:
                os.close(self._news)
                self._news = -1

    def heard(self, report: HostReport) -> None:
        """Take a report of the host, in the thread of the desk; each end counts once."""
        with self._lock:
            if report.launch in self._ended:
                return
            if isinstance(report, Exit):
                self._ended.add(report.launch)
                if self._running.get(report.name) == report.launch:
                    del self._running[report.name]
            self._reports.append(report)
            if self._news >= 0:
                os.eventfd_write(self._news, 1)

    def lose(self, reason: str) -> None:
        """Report that all processes have ended with their host."""
        with self._losing:
            self._lost = self._lost or reason
            how = f"was lost with its host: {reason}"
            for name, launch in [*self._running.items()]:
                self.heard(Exit(name, -SIGKILL, launch, how=how, host_lost=True))

    def replaced(self, by: RemoteHost) -> None:
        """Leave the last reports of this host, which is lost, to another in its place."""
        with self._losing:  # all ends are reported
            for each in self.reports():
                by.heard(each)
        self.stop()

    def _try(self, what: What, name: str = "", number: int = 0, limit_s: float = ANSWER_S) -> None:
        try:
            self._desk.ask(self._name, what, name, size=number, limit_s=limit_s)
        except OSError as error:  # its processes have ended with it, as `reports` says
            log.info("host %s: %s", self.label, error)


class RemoteFiles(HostFiles):
    """The folder of a run on such a host."""

    elsewhere = True

    def __init__(self, desk: Desk, host: NodeId, held: HostHeld) -> None:
        self.label = held.label
        self.path = Path(held.path)
        self._desk = desk
        self._host = host

    def measure(self) -> None:
        """Measure how far the host's clock is ahead."""
        best = float("inf")
        for _ in range(CLOCKS):
            asked = time()
            there = float(self._ask("clock"))
            took = time() - asked
            if took < best:
                best, self.ahead_s = took, there - (asked + took / 2)

    def follow(self, other: RemoteFiles) -> None:
        """Ask, from now on, the host that has taken the place of this one, with the same folder."""
        self._host = other._host

    def begin(self, started_at: float) -> None:
        """Make the folder, for a run that began at a time of the host's clock."""
        self._ask("begin", data=repr(started_at).encode())

    def sees(self, path: Path, size: int) -> bool:
        return self._ask("sees", str(path), start=size) == b"1"

    def listed(self) -> dict[str, FileState]:
        listed = self._decoded("list", dict[str, tuple[int, int]])
        return {name: FileState(*state) for name, state in listed.items()}

    def read(self, name: str, start: int, size: int) -> bytes:
        return self._ask("read", name, start=start, size=size)

    def state(self, name: str) -> FileState:
        return FileState(*self._decoded("state", tuple[int, int], name))

    def digest(self, name: str, start: int, size: int) -> str:
        return self._ask("digest", name, start=start, size=size).decode("ascii", "replace")

    def put(self, name: str, start: int, data: bytes, last: bool) -> None:
        self._ask("put", name, start=start, last=last, data=data)

    def remove(self, name: str) -> None:
        self._ask("remove", name)

    def _decoded(self, what: What, kind: Any, name: str = "") -> Any:
        try:
            return msgspec.json.decode(self._ask(what, name), type=kind)
        except msgspec.MsgspecError as error:
            raise OSError(errno.EIO, f"its answer cannot be read: {error}") from None

    def _ask(self, what: What, name: str = "", **more: Any) -> bytes:
        return self._desk.ask(self._host, what, name, **more)


# ---------------------------------------------------------------------------- on the other host


class ReachableHost(LocalHost):
    """This machine, whose processes listen for those of other hosts.

    listen:  the address on which they listen; "" for Unix sockets
    """

    def __init__(self, folder: RunFolder, listen: str, label: str = "") -> None:
        super().__init__(folder, label)
        self._listen = listen

    def address(self, name: str) -> str:
        return self._listen or super().address(name)


class Keeper:
    """Answers for this host.

    Args:
        name: the name by which the desk finds it.
        host: the host.
        desk: the address of the `Desk`.
        token: the secret that it asks for.
        agree: the function that raises an error for tasks that this process does not start.
    """

    def __init__(
        self, name: str, host: LocalHost, desk: str, token: str, agree: Callable[[Task], None]
    ) -> None:
        self._host = host
        self._agree = agree
        held = HostHeld(host.label, str(host.files.path), host.address("any"))
        machine = HostKeeper(held, desk, self._answer)
        self._node = Node(machine, Identity(name, "worker", token=token))
        self._ends, self._end = os.pipe()
        self._loop = Thread(target=_run, args=(self._node,), name="shoal-keeper", daemon=True)
        self._reporter = Thread(target=self._report, name="shoal-reports", daemon=True)
        self._loop.start()
        self._reporter.start()

    def close(self) -> None:
        """Stop the host, and hang up; may be called again."""
        if self._loop.is_alive():
            self._node.ask(Leave())
            self._loop.join()
        self._stop()
        self._node.close()

    def _stop(self) -> None:
        """Stop the host, whose reports end before; do nothing if that was done."""
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
            self._reporter.join()
            os.close(self._ends)
            self._host.stop()

    def _report(self) -> None:
        """Pass on what processes do, until the host is stopped."""
        poll = select.poll()
        poll.register(self._ends, select.POLLIN)
        fileno = -1
        while True:
            if self._host.fileno() != fileno:  # it has another one after the host is lost
                if fileno >= 0:
                    poll.unregister(fileno)
                fileno = self._host.fileno()
                poll.register(fileno, select.POLLIN)
            ready = [each for each, _ in poll.poll()]
            if self._ends in ready:
                return
            for report in self._host.reports():
                self._node.ask(Reported(msgspec.json.encode(Said.of(report)).decode()))

    def _answer(self, asked: HostAsked, data: bytes) -> tuple[HostAnswered, bytes]:
        try:
            return HostAnswered(asked.number), self._done(asked, data)
        except OSError as error:
            text = error.strerror or str(error)
            return HostAnswered(asked.number, error.errno or errno.EIO, text[:1000]), b""
        except ShoalError as error:
            return HostAnswered(asked.number, errno.EPERM, error.message[:1000]), b""
        except Exception as error:  # the other questions are answered
            log.exception("host %s cannot %s", self._host.label, asked.what)
            text = f"{type(error).__name__}: {error}"
            return HostAnswered(asked.number, errno.EIO, text[:1000]), b""

    def _done(self, asked: HostAsked, data: bytes) -> bytes:
        """Do what is asked, and return the answer."""
        files, name = self._host.files, asked.name
        match asked.what:
            case "start":
                task = Task(**msgspec.json.decode(data, type=dict[str, Any]))
                self._agree(task)
                return self._host.start(task).encode()
            case "signal":
                self._host.signal(name, asked.size)
            case "stop":
                self._stop()
            case "clock":
                return repr(time()).encode()
            case "sees":
                return b"1" if files.sees(Path(name), asked.start) else b"0"
            case "begin":
                if files.path.exists():
                    raise FileExistsError(errno.EEXIST, "the folder is of another run", name)
                RunFolder.begin_in(files.path, float(data))
            case "list":
                return msgspec.json.encode(files.listed())
            case "state":
                return msgspec.json.encode(files.state(name))
            case "read":
                return files.read(name, asked.start, asked.size)
            case "digest":
                return files.digest(name, asked.start, asked.size).encode()
            case "put" if name.startswith(f"{INPUTS}/"):
                files.put(name, asked.start, data, asked.last)
            case "remove" if name.startswith(f"{CHECKPOINTS}/"):
                files.remove(name)
            case _:
                raise PermissionError(errno.EPERM, f"{asked.what} is not allowed there")
        return b""


def _run(node: Node) -> None:
    try:
        node.run()
    except ShoalError as error:
        log.error("hosts cannot be reached any more: %s", error)
