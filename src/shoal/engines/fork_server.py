"""The fork server: a small process that forks the run's others.

It imports their modules once (torch), then forks servers and workers, so that four start in the
time of one. The scheduler needs no torch and is forked before. Commands and reports are JSON
lines on a socket pair; nothing is unpickled. When the process that started it ends, it kills
all of its children and removes the run's sockets.

`PR_SET_PDEATHSIG` follows the thread that forked, not its process. The fork server has one thread,
so its children ask for that signal. It itself may be started by any thread of a user, so it watches
a pidfd.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import traceback
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from shoal.engines.gathering import STACK_SIGNAL, show_stack_on_signal, shows_stack
from shoal.engines.launchers.world import without_world
from shoal.node.launch import launched_as

PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
PIPE_BYTES = 1 << 16  # of what a process tells, at once
TOLD = ("address", "wants")  # what it may tell


def die_with_parent() -> None:
    """Ask Linux for SIGKILL when the thread that forked this process ends, however it ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def move_to(network: str) -> None:
    """Enter a network namespace."""
    file = os.open(network, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(file, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the network namespace", network)
    finally:
        os.close(file)


class Child(NamedTuple):
    """A process that was forked.

    pipe:  the end of the pipe from which comes what it tells
    """

    name: str
    launch: str
    pid: int
    pidfd: int
    pipe: int


class ForkServer:
    """Forks and signals on command, reports starts, addresses and exits."""

    def __init__(self, commands: socket.socket, sockets: str, parent: int) -> None:
        self._commands = commands
        self._sockets = sockets
        self._pending = b""
        self._preloaded: set[str] = set()
        self._children: set[Child] = set()
        self._heard: dict[Child, bytes] = {}  # of those that may tell more, the last line so far
        self._selector = selectors.DefaultSelector()
        self._selector.register(commands, selectors.EVENT_READ, self._read)
        self._parent = os.pidfd_open(parent)
        self._selector.register(self._parent, selectors.EVENT_READ, self._end)

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _read(self) -> None:
        try:
            data = self._commands.recv(1 << 16)
        except ConnectionResetError:  # the engine's process was killed with reports unread
            data = b""
        if not data:
            self._end()
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if "signal" in command:
                self._signal(command["name"], command["signal"])
                continue
            for each in command.get("preload", ()):
                self._preload(each)
            self._fork(command)

    def _preload(self, name: str) -> None:
        if name not in self._preloaded:
            self._preloaded.add(name)
            if ":" in name:
                resolve_name(name)()
            else:
                importlib.import_module(name)

    def _fork(self, command: dict[str, Any]) -> None:
        hears, tells = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(hears)
                launched_as(command["launch"], tells, command["label"])
                self._become(command)
                code = run_entry(command)
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(OSError):  # the disk with its log is full
                    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed
                        stream.flush()
                os._exit(code)
        os.close(tells)
        os.set_blocking(hears, False)  # forks of the process may keep the other end open
        child = Child(command["name"], command["launch"], pid, os.pidfd_open(pid), hears)
        self._children.add(child)
        self._heard[child] = b""
        self._selector.register(child.pidfd, selectors.EVENT_READ, partial(self._reap, child))
        self._selector.register(child.pipe, selectors.EVENT_READ, partial(self._hear, child))
        self._report(child)

    def _become(self, command: dict[str, Any]) -> None:
        """Set up the signals, files and environment of the child process."""
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self._selector.close()
        self._commands.close()
        for child in self._children:
            os.close(child.pidfd)
        for child in self._heard:
            os.close(child.pipe)
        os.close(self._parent)
        log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if not command.get("inherit_output"):
            os.dup2(log, 1)
        os.dup2(log, 2)
        if isinstance(sys.stdout, TextIOWrapper):  # not None: it was closed
            sys.stdout.reconfigure(line_buffering=True)  # logs have each line at once
        os.close(log)
        show_stack_on_signal()
        os.environ.update(command.get("env", {}))
        if command.get("network"):
            move_to(command["network"])
        seed_anew()

    def _signal(self, name: str, number: int) -> None:
        for child in self._children:
            if child.name == name and (number != STACK_SIGNAL or shows_stack(child.pid)):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child.pidfd, number)

    def _hear(self, child: Child) -> None:
        """Report what a process tells."""
        if child not in self._heard:  # it has ended meanwhile
            return
        try:
            data = os.read(child.pipe, PIPE_BYTES)
        except BlockingIOError:
            return
        *lines, self._heard[child] = (self._heard[child] + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self._report(child, **{name: said[name] for name in TOLD if name in said})
        if not data:
            self._hear_no_more(child)

    def _hear_no_more(self, child: Child) -> None:
        if self._heard.pop(child, None) is not None:
            self._selector.unregister(child.pipe)
            os.close(child.pipe)

    def _reap(self, child: Child) -> None:
        self._hear(child)
        self._hear_no_more(child)
        self._children.remove(child)
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        _, status = os.waitpid(child.pid, 0)
        self._report(child, code=os.waitstatus_to_exitcode(status))

    def _report(self, child: Child, **more: str | int) -> None:
        report = {"name": child.name, "launch": child.launch, "pid": child.pid, **more}
        with contextlib.suppress(OSError):
            self._commands.sendall(json.dumps(report).encode() + b"\n")

    def _end(self) -> None:
        """Kill all children, remove the sockets and exit."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        for child in self._children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
        shutil.rmtree(self._sockets, ignore_errors=True)
        os._exit(0)


def seed_anew() -> None:
    """Seed the generators of libraries that were imported before the fork, from system entropy.

    Otherwise all processes would draw the same numbers. The generators of Python and numba are
    seeded anew without this.
    """
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()


def run_entry(command: dict[str, Any]) -> int:
    """Call the command's function, and return the exit status.

    An error is written to the error file, in one line of JSON. There is no file, and only the exit
    status shows the error, on a full disk, and if a fork of this process has raised the error.
    """
    from shoal.errors import ProcessDied, ShoalError
    from shoal.factories import users_traceback
    from shoal.storage.files import write_whole

    process = os.getpid()
    try:
        resolve_name(command["entry"])(**command["args"])
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        with contextlib.suppress(OSError):
            traceback.print_exc()
            if os.getpid() != process:
                return 1
            told = users_traceback(error)
            if not isinstance(error, ShoalError):
                error = ProcessDied(f"{type(error).__name__}: {error}")
            report = {"type": type(error).__name__, "message": error.message, "story": error.trace}
            report["traceback"] = told
            write_whole(Path(command["error"]), json.dumps(report))
        return 1
    return 0


def main() -> None:
    """Serve the process `parent`, the last argument."""
    fileno, sockets, parent = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for name in os.environ.keys() - without_world(os.environ).keys():
        del os.environ[name]  # a rank of a launcher has started this: its processes are no ranks
    if os.getppid() == parent:
        ForkServer(socket.socket(fileno=fileno), sockets, parent).run()


if __name__ == "__main__":
    main()
