"""The zygote of tests imports torch once, and forks the Python processes that they start."""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pkgutil import resolve_name

from tests.zygote.sitecustomize import ZYGOTE, at_import, began_with, install

HERE = Path(__file__).parent
PRELOADED = (
    "torch._dynamo",  # torch imports it when the first optimizer is made
    "shoal.client.client",
    "shoal.tables.dense.shard",
    "shoal.tables.sparse.shard",
    "shoal.jit:warm",
    "shoal.protocol.server.machine",
    "shoal.apps.train.worker",
    "shoal.apps.train.command",
    "shoal.apps.script",
    "shoal.cli",
)


@contextmanager
def zygote(folder: Path) -> Iterator[None]:
    """Have the Python processes that this one and its children start forked from a zygote."""
    path = folder / "zygote"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(64)
    began_with(path).write_text(json.dumps(at_import(os.environ)))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.zygote", str(listener.fileno())],
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,  # its end is that of these tests
        start_new_session=True,
        cwd=HERE.parents[1],
    )
    listener.close()
    before = {name: os.environ.get(name) for name in (ZYGOTE, "PYTHONPATH")}
    os.environ[ZYGOTE] = str(path)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [before["PYTHONPATH"]])])
    install()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        path.unlink()
        process.kill()
        process.communicate()


def serve(listener: socket.socket) -> None:
    """Fork a process for each caller and tell it of its end, until the standard input ends."""
    from tests.zygote.child import become

    for name in PRELOADED:
        if ":" in name:
            resolve_name(name)()
        else:
            importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # children need not copy what a collection would touch
    callers: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> (pid, who asked for it)
    waiting = select.poll()
    for file in (listener, sys.stdin):
        waiting.register(file, select.POLLIN)
    while True:
        ready = [fd for fd, _ in waiting.poll()]
        if sys.stdin.fileno() in ready:
            return
        for pidfd in callers.keys() & set(ready):
            waiting.unregister(pidfd)
            os.close(pidfd)
            pid, caller = callers.pop(pidfd)
            _, status = os.waitpid(pid, 0)
            with caller, suppress(OSError):  # a caller may be killed at any moment
                caller.send(str(os.waitstatus_to_exitcode(status)).encode())
        if listener.fileno() not in ready:
            continue
        caller, _ = listener.accept()
        caller.settimeout(10.0)
        pid = -1
        try:
            asked, fds, _, _ = socket.recv_fds(caller, 1 << 20, 64)
            if asked:
                pid = os.fork()
            if pid == 0:
                become(asked, fds, [caller, listener, *(each for _, each in callers.values())])
            for fd in fds:
                os.close(fd)
            if asked:
                caller.send(str(pid).encode())
        except OSError:  # the caller was killed
            pass
        if pid < 0:
            caller.close()
            continue
        pidfd = os.pidfd_open(pid)
        callers[pidfd] = pid, caller
        waiting.register(pidfd, select.POLLIN)
