"""Launchers of tests are forked from a process that has imported torch, in place of a new one.

A launcher imports torch for each run, two seconds that most tests spend for nothing. Python imports
this module at its start in the processes that tests start: `subprocess.Popen` of a launcher asks
the zygote at `SHOAL_ZYGOTE` for a fork. Without that variable, and where the zygote is gone,
nothing changes. tests/engines/test_launcher.py is about launchers that are started as users' are.
"""

import json
import os
import select
import socket
import subprocess
from pathlib import Path
from typing import Any

ZYGOTE = "SHOAL_ZYGOTE"
LAUNCHER = ["-m", "shoal.engines.launcher"]
_Popen = subprocess.Popen


class Forked:
    """A launcher that the zygote has forked: what an engine needs of a `Popen`."""

    def __init__(self, path: str, arguments: list[str]) -> None:
        asked = {"arguments": arguments[1:], "cwd": str(Path.cwd()), "env": dict(os.environ)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as zygote:
            zygote.connect(path)
            socket.send_fds(zygote, [json.dumps(asked).encode()], [int(arguments[0]), 1, 2])
            answer = zygote.recv(64)
        if not answer:
            raise RuntimeError("the zygote of these tests has died")
        self.pid = int(answer)
        self._pidfd = os.pidfd_open(self.pid)
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._pidfd], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("launcher", timeout or 0.0)
            os.close(self._pidfd)
            self.returncode = 0
        return self.returncode


class Popen(_Popen):  # type: ignore[type-arg]
    def __new__(cls, args: Any, *more: Any, **settings: Any) -> Any:
        path = os.environ.get(ZYGOTE)
        launches = isinstance(args, list) and args[1:3] == LAUNCHER
        if launches and path and Path(path).exists():  # else the tests have ended
            return Forked(path, args[3:])
        return super().__new__(cls)


def install() -> None:
    subprocess.Popen = Popen  # type: ignore[misc]


if os.environ.get(ZYGOTE, "off") != "off":
    install()
