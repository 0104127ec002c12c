"""The code that a job's file or a run's folder imports, and whether its user has chosen it.

What the command line names is its caller's choice, and is not checked: a script, code, a job file
of the caller's own. The job that a run's folder records is no such choice: --resume names the
folder only. So a run that another user has left, or could have changed, is continued only if it is
trusted, and so is a job file of another user that names code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from shoal.data.catalogue import KINDS
from shoal.errors import NotTrusted
from shoal.ownership import others_may_write, others_owner
from shoal.storage.run_folder import RunFolder
from shoal.strategies.layer_codecs import code_in

CODE = ("data", "model", "strategy")  # fields of a job that may be importable
WORDS = ("imports", "script")  # fields of the job of a script's run that are code
COMPARISON = "comparison.toml"  # in a comparison's folder, which is resumed as runs are
TRUST = "look at it, and add --trust (trust=True) if you trust its author"


_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


@contextmanager
def trusting(others: bool = True) -> Iterator[None]:
    """Trust files of other users in a `with` block, if the caller of the command says so."""
    token = _trusted.set(others)
    try:
        yield
    finally:
        _trusted.reset(token)


def code_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the code that a job's values import or run, by field.

    >>> code_of({"model": "nets:small", "data": "csv:wine.csv", "workers": 2})
    {'model': 'nets:small'}
    >>> code_of({"script": ["train.py", "--lr", "0.1"], "imports": ["mine.py"]})
    {'imports': 'mine.py', 'script': 'train.py --lr 0.1'}
    >>> code_of({"codec": {"*": "mine.py:Mine:4", "0": "int:8"}})
    {'codec': 'mine.py'}
    """
    named = {name: str(values.get(name, "")) for name in CODE}
    found = {name: text for name, text in named.items() if names_code(text)}
    if files := code_in(values.get("codec", "")):
        found["codec"] = " ".join(files)
    for name in WORDS:
        if words := values.get(name):
            found[name] = " ".join(map(str, words))
    return found


def names_code(text: str) -> bool:
    """Return whether a model, data set or strategy is importable, not a name."""
    module, function, _ = text.partition(":")
    return bool(function) and module not in KINDS


def told(code: Mapping[str, str]) -> str:
    """Return a list of the code in words, for messages."""
    return ", ".join(f"{text} ({name})" for name, text in code.items()) or "nothing"


def check_job_file(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse a job file of another user that names code, unless it is trusted.

    Raises:
        NotTrusted: the file is not trusted
    """
    code = code_of(values)
    if code and not _trusted.get() and (whose := others_owner(path)):
        raise NotTrusted(f"{path} {whose}, and would import {told(code)}: {TRUST}")


def check_run(run: Path, code: Mapping[str, str] | None = None) -> None:
    """Refuse to continue a run that another user has left, or could have changed.

    code:  the code that the run's job has imported

    Raises:
        NotTrusted: the run is not trusted
    """
    if _trusted.get() or not run.exists():  # a missing folder is reported elsewhere
        return
    for path, wrong in _of_others(run):
        imports = f", which would import {told(code)}" if code else ""
        raise NotTrusted(f"{path} {wrong}: the run is not continued{imports}; {TRUST}")


def _of_others(run: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file of a run that another user has written, or could have, with the reason."""
    folder = RunFolder(run)
    read = [folder.job, folder.events, folder.checkpoints, *folder.checkpoints.rglob("*")]
    read.append(run / COMPARISON)
    shut = not run.stat().st_mode & 0o077  # nobody else comes as far as the files in it
    for path in (run, *read):
        if path.exists():
            wrong = others_owner(path) or ("" if shut else others_may_write(path))
            if wrong:
                yield path, wrong
