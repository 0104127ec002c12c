"""The zygote of a process of tests imports torch once, and forks the launchers of their runs."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

HERE = Path(__file__).parent
PRELOADED = (
    "torch._dynamo",  # torch imports it when the first optimizer is made
    "shoal.client.client",
    "shoal.tables.dense.shard",
    "shoal.tables.sparse.shard",
    "shoal.tables.sparse.jit:warm",
    "shoal.protocol.server.machine",
    "shoal.apps.train.worker",
    "shoal.apps.script",
)


@contextmanager
def zygote(folder: Path) -> Iterator[None]:
    """Have the launchers of this process, and of those that it starts, forked from a zygote."""
    from tests.zygote import sitecustomize

    path = folder / "zygote"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(16)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.zygote", str(listener.fileno())],
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,  # its end is that of these tests
        start_new_session=True,
        cwd=HERE.parents[1],
    )
    listener.close()
    before = {name: os.environ.get(name) for name in (sitecustomize.ZYGOTE, "PYTHONPATH")}
    os.environ[sitecustomize.ZYGOTE] = str(path)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [before["PYTHONPATH"]])])
    sitecustomize.install()
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
    """Fork a launcher for each caller, until the standard input ends."""
    for name in PRELOADED:
        if ":" in name:
            resolve_name(name)()
        else:
            importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the launchers
    import select

    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        caller, _ = listener.accept()
        with caller, suppress(OSError):  # a caller may be killed at any moment
            caller.settimeout(10.0)
            asked, fds, _, _ = socket.recv_fds(caller, 1 << 20, 3)
            if not asked:
                continue
            pid = os.fork()
            if pid == 0:
                caller.close()
                listener.close()
                become(json.loads(asked), fds)
            for fd in fds:
                os.close(fd)
            caller.send(str(pid).encode())


def become(asked: dict[str, Any], fds: list[int]) -> None:
    """Become the launcher that a caller would have started."""
    try:
        from shoal.engines.launcher import Launcher

        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        for number, fd in enumerate(fds[1:], 1):
            os.dup2(fd, number)
            os.close(fd)
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["cwd"])
        before = [each for each in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if each]
        sys.path[:] = [asked["cwd"], *before, *sys.path[1:]]  # as of a new process
        importlib.invalidate_caches()
        sockets, parent = asked["arguments"]
        Launcher(socket.socket(fileno=fds[0]), sockets, int(parent)).run()
    finally:
        os._exit(1)
