"""A fork of the zygote becomes the Python process that a caller would have started."""

from __future__ import annotations

import atexit
import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.zygote.sitecustomize import install


def become(asked: bytes, fds: list[int], others: Iterable[socket.socket]) -> None:
    """Run what a caller asks for, and exit as a Python process does.

    others:  the sockets of the zygote
    """
    code = 1
    try:
        for each in others:
            each.close()
        told = json.loads(asked)
        _take_over(told, fds)
        code = _run(told["words"])
    finally:
        os._exit(code)


def _take_over(told: dict[str, Any], fds: list[int]) -> None:
    """Take over the files, the environment, the folder and the path of imports."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # first beyond all numbers that are asked for, as one may be another's number
    least = max(told["numbers"]) + 1
    import fcntl

    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, least) for fd in fds]
    for fd in fds:
        os.close(fd)
    for number, fd in zip(told["numbers"], moved, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        errors = "backslashreplace" if fd == 2 else None
        stream = open(fd, mode, closefd=False, errors=errors)  # noqa: SIM115
        if fd and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=fd == 2 or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if told["env"].get("PYTHONUNBUFFERED"):
        _unbuffered()
    os.environ.clear()
    os.environ.update(told["env"])
    os.chdir(told["cwd"])
    before = [each for each in told["env"].get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [*before, *sys.path[1:]]
    importlib.invalidate_caches()
    install()
    from shoal.engines.fork_server import seed_anew

    seed_anew()


def _run(words: list[str]) -> int:
    """Run `-m MODULE`, `-c CODE` or a file with its arguments; return the exit status."""
    killed = False
    try:
        _run_main(words)
        code: Any = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if stop.code is not None and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        for _ in range(2):  # the frames of this module
            trace = trace.tb_next if trace is not None else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code, killed = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if killed:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return int(code) & 0xFF


def _unbuffered() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]


def _run_main(words: list[str]) -> None:
    while words[0] in ("-W", "-u"):
        if words[0] == "-W":
            sys.warnoptions.append(words[1])
            warnings._processoptions([words[1]])  # type: ignore[attr-defined]
            words = words[1:]
        else:
            _unbuffered()
        words = words[1:]
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        sys.path.insert(0, str(Path.cwd()))
        if words[1:2] == ["shoal.engines.fork_server"]:  # its parent is the zygote
            from shoal.engines.fork_server import ForkServer

            fileno, sockets, parent = words[2:]
            ForkServer(socket.socket(fileno=int(fileno)), sockets, int(parent)).run()
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), main.__dict__)
    elif words[0] == "-":
        sys.argv = list(words)
        sys.path.insert(0, "")
        exec(compile(sys.stdin.read(), "<stdin>", "exec", dont_inherit=True), main.__dict__)
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        path = str(Path(words[0]).absolute())
        main.__file__ = path
        exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)
