"""Python processes of tests are forked from a process that has imported torch.

A command and a fork server import torch for each run, two seconds that tests spend for nothing.
Python imports this module at its start in the processes that tests start, where `subprocess.Popen`
asks the zygote at `SHOAL_ZYGOTE` for a fork. Without that variable, after the tests, and for a
process whose start is unusual (options of Python, another interpreter, variables that libraries
read when they are imported) nothing changes.
"""

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ZYGOTE = "SHOAL_ZYGOTE"
AT_IMPORT = (  # beginnings of variables that are read when something is imported
    *("COVERAGE", "CUDA", "GOTO", "HOME", "KMP", "LANG", "LC_", "LD_", "MALLOC", "MKL", "NUMBA"),
    *("OMP", "OPENBLAS", "PYTHON", "TMPDIR", "TORCH", "TZ", "XDG"),
)
NO_MATTER = (  # a fork has the path of imports that it is told; the others are set by libraries
    *("PYTHONPATH", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),
    *("PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR"),
)
_Popen: Any = subprocess.Popen  # whose private methods are overridden


def at_import(env: Any) -> dict[str, str]:
    """Return the variables of an environment that are read when something is imported."""
    return {k: v for k, v in env.items() if k.startswith(AT_IMPORT) and k not in NO_MATTER}


def began_with(zygote: Path) -> Path:
    """Return the file with those variables of the zygote."""
    return zygote.with_name("environment.json")


class Popen(_Popen):  # type: ignore[misc]
    """A process that the zygote has forked, where it can."""

    returncode: Any
    _zygote: Any = None  # the connection to the zygote that tells of the end

    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        preexec_fn, _, pass_fds, cwd, env, _, _, shell, *files = rest[:14]
        env = os.environ if env is None else env
        _, gid, gids, uid, umask, _, group = rest[14:]
        other = (shell, executable, preexec_fn, *(each is not None for each in (gid, gids, uid)))
        usual = not any(other) and umask == -1 == group and isinstance(args, list | tuple)
        words = [os.fsdecode(each) for each in args] if usual else []
        path = env.get(ZYGOTE, "off")
        if path == "off" or not words or not _forks(words, env, Path(path)):
            super()._execute_child(args, executable, *rest)
            return
        p2cread, _, _, c2pwrite, _, errwrite = files
        asked = {
            "words": words[1:],
            "env": {os.fsdecode(k): os.fsdecode(v) for k, v in env.items()},
            "cwd": str(Path(os.fsdecode(cwd)).absolute()) if cwd is not None else str(Path.cwd()),
            "numbers": [0, 1, 2, *pass_fds],
        }
        std = [fd if fd >= 0 else at for at, fd in enumerate((p2cread, c2pwrite, errwrite))]
        zygote = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            zygote.connect(path)
            socket.send_fds(zygote, [json.dumps(asked).encode()], [*std, *pass_fds])
            answer = zygote.recv(64)
        except OSError:
            zygote.close()
            raise
        finally:
            self._close_pipe_fds(*files)
        if not answer:
            raise RuntimeError("the zygote of these tests has died")
        self.pid = int(answer)
        self._child_created = True
        self._zygote = zygote

    def _internal_poll(self, *args: Any, **settings: Any) -> Any:
        if self._zygote is None:
            return super()._internal_poll(*args, **settings)
        if self.returncode is None and _readable(self._zygote, 0):
            self._ended()
        return self.returncode

    def _wait(self, timeout: float | None) -> Any:
        if self._zygote is None:
            return super()._wait(timeout)
        if self.returncode is None:
            if not _readable(self._zygote, timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._ended()
        return self.returncode

    def _ended(self) -> None:
        with self._waitpid_lock:
            if self.returncode is None:
                self.returncode = int(self._zygote.recv(64) or 255)
                self._zygote.close()


def _readable(connection: socket.socket, timeout: float | None) -> bool:
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(None if timeout is None else max(0.0, 1000 * timeout)))


def _forks(words: list[str], env: Any, zygote: Path) -> bool:
    """Return whether a fork of the zygote can become this process."""
    if not zygote.exists():  # else the tests have ended
        return False
    words = list(words)
    while words[1:2] in (["-W"], ["-u"]):
        del words[1 : 3 if words[1] == "-W" else 2]
    begins = words[1] if words[0] == sys.executable and len(words) > 1 else "-I"
    if begins in ("-m", "-c"):
        usual = len(words) > 2
    else:
        usual = begins == "-" or (not begins.startswith("-") and Path(begins).is_file())
    return usual and at_import(env) == json.loads(began_with(zygote).read_text())


def install() -> None:
    subprocess.Popen = Popen  # type: ignore


if os.environ.get(ZYGOTE, "off") != "off":
    install()
