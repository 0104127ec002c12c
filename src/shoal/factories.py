"""Factories by name: "package.module:function" or "/path/script.py:function".

Another process has to find them again, so a lambda or a function within a function will not do.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.errors import NotImportable

Factory = Callable[..., Any]


def name_of(factory: Factory) -> str:
    """The name by which another process can import `factory`.

    Raises:
        NotImportable: for lambdas, local functions and what was typed at a prompt
    """
    name = getattr(factory, "__qualname__", "")
    module = getattr(factory, "__module__", "")
    if not name or "<" in name:
        raise NotImportable(
            f"{name or factory!r} cannot be imported by another process: define the factory as a "
            "function at the top level of a module, and pass that"
        )
    if module == "__main__":
        script = getattr(sys.modules["__main__"], "__file__", None)
        if script is None:
            raise NotImportable(f"{name} was typed at a prompt; put it into a file and import it")
        module = str(Path(script).resolve())
    return f"{module}:{name}"


def load_module(name: str) -> Any:
    """The module of that name, or in that file.

    Raises:
        NotImportable: there is none, or it fails
    """
    try:
        return _module(name)
    except Exception as error:
        raise NotImportable(f"cannot import {name!r}: {type(error).__name__}: {error}") from None


def importable(name: str) -> str:
    """Import a module, or a file; returns what other processes can import it by."""
    load_module(name)
    return str(Path(name).resolve()) if name.endswith(".py") else name


def load(name: str) -> Factory:
    """The factory of that name.

    Raises:
        NotImportable: no such module, file or function
    """
    module_name, found, attribute = name.rpartition(":")
    if not found or not module_name or not attribute:
        raise NotImportable(f"{name!r} is no factory; use package.module:function")
    try:
        value: Any = _module(module_name)
    except ImportError as error:
        raise NotImportable(f"cannot import {module_name!r} for {name!r}: {error}") from None
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise NotImportable(f"{module_name!r} has no {attribute!r}")
        value = getattr(value, part)
    if not callable(value):
        raise NotImportable(f"{name!r} is a {type(value).__name__}, not a function")
    return value  # type: ignore[no-any-return]


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    alias = f"shoal_script_{path.stem}"
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ImportError(f"no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module
