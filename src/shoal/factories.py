"""Users' modules and the factories in them: "package.module:function", "/path/script.py:function".

Another process has to find them again, so a lambda or a function within a function will not do.

A file is executed at most once a process, under a name other than `__main__`: what is under its
`if __name__ == "__main__":` does not run. Code at its top level does, and must not train: while a
file is executed for its definitions, `shoal.init`, `shoal.connect` and `shoal.train` raise
`NotImportable`. So an import never joins a run and never starts one.
"""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_path
from typing import Any
from zlib import crc32

from shoal.errors import NotImportable

Factory = Callable[..., Any]
AT_PROMPT = (
    "was defined at a prompt, in a notebook or on standard input, where servers cannot import it: "
    "put it into a file, and give shoal.init(imports=['THAT_FILE.py'])"
)
TRACEBACK_CHARACTERS = 20_000  # at most, the last ones
SHOAL = str(Path(__file__).parent)
LIBRARIES = tuple(get_path(each) for each in ("stdlib", "platlib", "purelib"))
_importing: list[str] = []  # files that are being executed for their definitions


def name_of(factory: Factory) -> str:
    """Return the name by which another process can import `factory`.

    Raises:
        NotImportable: it is a lambda or a local function, or was typed at a prompt
    """
    name = getattr(factory, "__qualname__", "")
    module = getattr(factory, "__module__", "")
    if not name or "<" in name:
        raise NotImportable(
            f"{name or factory!r} cannot be imported by another process: define the factory as a "
            "function at the top level of a module, and pass that"
        )
    if module == "__main__":
        script = _main_file()
        if script is None:
            raise NotImportable(f"{name} was typed at a prompt; put it into a file and import it")
        module = str(script.resolve())
    return f"{module}:{name}"


def at_prompt(factory: object) -> bool:
    """Return whether an object was defined where no other process can import it.

    That is at a prompt, in a notebook's cell or on standard input.
    """
    return getattr(factory, "__module__", "") == "__main__" and _main_file() is None


def _main_file() -> Path | None:
    """Return the file of this process's script; None at a prompt and for standard input."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(script) if script is not None and Path(script).is_file() else None


def refuse_while_importing(call: str) -> None:
    """Refuse to join or start a run while a file is being executed for its definitions.

    Raises:
        NotImportable: such a file makes this call at its top level
    """
    if _importing:
        raise NotImportable(
            f"{_importing[-1]} calls {call} at its top level, and is being imported for its "
            'definitions by another process: put the call under `if __name__ == "__main__":`'
        )


def load_module(name: str) -> Any:
    """Return the module of a name, or in a file.

    Raises:
        NotImportable: there is no such module, or its import fails
    """
    try:
        return _module(name)
    except NotImportable:
        raise
    except (Exception, SystemExit) as error:
        raise NotImportable(f"cannot import {name!r}: {type(error).__name__}: {error}") from None


def load_definitions(command: Sequence[str]) -> None:
    """Import a user's script for the methods and handlers that it registers.

    command:  the script, and the arguments with which it was called

    Raises:
        NotImportable: the script fails, or trains at its top level
    """
    before, sys.argv = sys.argv, list(command)
    try:
        load_module(command[0])
    finally:
        sys.argv = before


def main_script() -> tuple[str, ...]:
    """Return the .py file that this process runs, and its arguments; () if it runs none."""
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    return (str(Path(script).resolve()), *sys.argv[1:]) if script.endswith(".py") else ()


def importable(name: str) -> str:
    """Import a module or a file, and return the name by which other processes can import it."""
    load_module(name)
    return str(Path(name).resolve()) if name.endswith(".py") else name


def anywhere(name: str) -> str:
    """Return the name by which processes in any folder can import a factory in a file.

    >>> anywhere("package.module:function"), anywhere("sync")
    ('package.module:function', 'sync')
    """
    file, found, attribute = name.rpartition(":")
    return f"{Path(file).resolve()}:{attribute}" if found and file.endswith(".py") else name


def load(name: str) -> Factory:
    """Return the factory of a name.

    Raises:
        NotImportable: no such module, file or function
    """
    module_name, found, attribute = name.rpartition(":")
    if not found or not module_name or not attribute:
        raise NotImportable(f"{name!r} is no factory; use package.module:function")
    value = load_module(module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise NotImportable(f"{module_name!r} has no {attribute!r}")
        value = getattr(value, part)
    if not callable(value):
        raise NotImportable(f"{name!r} is a {type(value).__name__}, not a function")
    return value  # type: ignore[no-any-return]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until imports of torch, or of scikit-learn, are over.

    Such an import takes a second. Some of its lines swallow an exception that interrupts them;
    after others a second import fails, with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def call_user_code(function: Factory, *arguments: Any) -> Any:
    """Call a user's function within a node's loop.

    The function may take any time: while this call is on the loop's stack, the loop does not count
    as hung (`node.heartbeat`).
    """
    return function(*arguments)


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    alias = f"shoal_script_{path.stem}_{crc32(bytes(path)):08x}"
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ImportError(f"no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    _importing.append(str(path))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]  # the next attempt executes it again
        raise
    finally:
        _importing.pop()
    return module


def users_traceback(error: BaseException) -> str:
    """Return the traceback of an error from the first line of a user's code on; "" without any."""
    told = traceback.TracebackException.from_exception(error)
    for at, frame in enumerate(told.stack):
        if not frame.filename.startswith(("<", SHOAL, *LIBRARIES)):
            told.stack = traceback.StackSummary.from_list(told.stack[at:])
            return "".join(told.format())[-TRACEBACK_CHARACTERS:]
    return ""
