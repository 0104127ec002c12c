"""LocalEngine: this machine as the one host of a run; a fork server forks its processes."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import indent

import msgspec

from shoal.engines.base import Engine, Host, HostReport, Reservation, Started, Task, Wants
from shoal.engines.host_files import LocalFiles
from shoal.errors import ProcessDied, ShoalError, by_name
from shoal.protocol.supervision.supervisor import Exit
from shoal.storage.files import read_object
from shoal.storage.run_folder import RunFolder
from shoal.storage.scratch import ScratchFolder

LAUNCH_BYTES = 8
STOP_S = 3.0  # for the fork server to end its processes, before it is killed with them


class ErrorFile(msgspec.Struct):
    """An error of a process, in a file.

    story:      the last events of the state machine that raised the error
    traceback:  the traceback of the user's code, if the error is from there
    """

    type: str
    message: str
    story: list[str]
    traceback: str = ""


class LocalHost(Host):
    """A fork server on this machine, and the processes that it has forked.

    folder:  the folder in which the processes write
    label:   the host's name; that of this machine, if not given
    root:    what the host sees of this machine's file system
    """

    def __init__(self, folder: RunFolder, label: str = "", root: Path = Path("/")) -> None:
        self.label = label or socket.gethostname()
        self.folder = folder
        self.files = LocalFiles(folder.path, self.label, root)
        self._scratch = ScratchFolder(str(os.getpid()))
        self.private = self._scratch.path
        self._running: dict[str, str] = {}  # launch by name
        self._lost = False
        self._pending = b""
        ours, theirs = socket.socketpair()
        self._commands = ours
        arguments = [str(theirs.fileno()), str(self.private), str(os.getpid())]
        self._fork_server = subprocess.Popen(
            [sys.executable, "-m", "shoal.engines.fork_server", *arguments],
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C reaches us alone; we end the others
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def address(self, name: str) -> str:
        return f"unix://{self.private / name}.sock"

    def network(self, name: str) -> str:
        """Return the file of a process's network namespace; "" for the one of this process."""
        return ""

    def start(self, task: Task) -> str:
        if self._lost:
            how = "the fork server of its host has died"
            raise ProcessDied(f"{task.name} cannot be started: {how}")
        launch = secrets.token_hex(LAUNCH_BYTES)
        error = self.folder.error(task.name)
        error.unlink(missing_ok=True)  # of an earlier process
        self._running[task.name] = launch
        where = {
            "launch": launch,
            "label": self.label,
            "log": str(self.folder.log(task.name)),
            "error": str(error),
            "network": self.network(task.name),
        }
        self._tell(asdict(replace(task, inputs=())) | where)
        return launch

    def signal(self, name: str, number: int) -> None:
        self._tell({"signal": number, "name": name})

    def fileno(self) -> int:
        return self._commands.fileno()

    def reports(self) -> Sequence[HostReport]:
        if self._lost:
            return []
        try:
            data = self._commands.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return self._lose()
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [self._report(**json.loads(line)) for line in lines]

    def _tell(self, command: dict[str, object]) -> None:
        with suppress(OSError):  # the fork server has died, as `reports` says next
            self._commands.sendall(json.dumps(command).encode() + b"\n")

    def _report(
        self,
        name: str,
        launch: str,
        pid: int,
        address: str = "",
        wants: str = "",
        code: int | None = None,
    ) -> HostReport:
        if wants:
            return Wants(name, launch, wants)
        if code is None:
            return Started(name, launch, pid, address)
        self._running.pop(name, None)
        return Exit(name, code, launch, self._error(name, code))

    def _error(self, name: str, code: int) -> ShoalError | None:
        """Return the error in a process's error file, if it has one; a killed process has none."""
        path = self.folder.error(name)
        return reported(path) if code > 0 and path.exists() else None

    def _lose(self) -> list[HostReport]:
        """Report that all processes have ended, with the fork server: they die with it."""
        self._lost = True
        self._commands.close()
        self._commands, self._quiet = socket.socketpair()  # of which nothing comes any more
        running, self._running = self._running, {}
        how = "was lost with its host, whose fork server has died"
        return [
            Exit(name, -signal.SIGKILL, launch, how=how, host_lost=True)
            for name, launch in running.items()
        ]

    def stop(self) -> None:
        self._commands.close()  # the fork server then ends all processes
        if self._lost:
            self._quiet.close()
        try:
            self._fork_server.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._fork_server.pid, signal.SIGKILL)
            self._fork_server.wait()
        self._scratch.remove()


class OneHost(Reservation):
    """One host for all processes."""

    def __init__(self, host: Host) -> None:
        self.hosts = [host]

    def host(self, name: str) -> Host:
        return self.hosts[0]


class LocalEngine(Engine):
    """This machine."""

    def reserve(self, folder: RunFolder, names: Sequence[str] = ()) -> Reservation:
        return OneHost(LocalHost(folder))


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
