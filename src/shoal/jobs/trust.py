"""What a job's file, or a run's folder, has imported, and whether that was asked for.

A job file that is named is its caller's choice, as a script is. The job that a run's folder records
is not: --resume names the folder only. So a run that another user has left, or could have changed,
is continued only if it is trusted, and a job file of another user's may name no code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import NotTrusted
from shoal.ownership import others_may_write, others_owner
from shoal.storage.run_folder import RunFolder

CODE = ("data", "model", "strategy")  # fields of a job that may be importable
WORDS = ("imports", "script")  # fields that are code, of a script's run
COMPARISON = "comparison.toml"  # in the folder of one, which is resumed as runs are
TRUST = "look at it, and add --trust (trust=True) if you trust whoever wrote it"


def code_of(values: Mapping[str, Any]) -> dict[str, str]:
    """The code that a job's values have imported or run, by field.

    >>> code_of({"model": "nets:small", "data": "csv:wine.csv", "workers": 2})
    {'model': 'nets:small'}
    >>> code_of({"script": ["train.py", "--lr", "0.1"], "imports": ["mine.py"]})
    {'imports': 'mine.py', 'script': 'train.py --lr 0.1'}
    """
    named = {name: str(values.get(name, "")) for name in CODE}
    found = {name: text for name, text in named.items() if names_code(text)}
    for name in WORDS:
        if words := values.get(name):
            found[name] = " ".join(map(str, words))
    return found


def names_code(text: str) -> bool:
    """Whether a model, data set or strategy is importable, not a name."""
    module, function, _ = text.partition(":")
    return bool(function) and module != "csv"


def told(code: Mapping[str, str]) -> str:
    """What is imported, in words."""
    return ", ".join(f"{text} ({name})" for name, text in code.items()) or "nothing"


def check_job_file(path: Path, values: Mapping[str, Any], trust: bool) -> None:
    """Refuse a job file of another user that names code, unless it is trusted.

    Raises:
        NotTrusted: it is not
    """
    code = code_of(values)
    if code and not trust and (whose := others_owner(path)):
        raise NotTrusted(f"{path} {whose}, and would import {told(code)}: {TRUST}")


def check_run(run: Path, trust: bool, code: Mapping[str, str] | None = None) -> None:
    """Refuse to continue a run that another user has left, or could have changed.

    code:  what its job has imported

    Raises:
        NotTrusted: it is not trusted
    """
    if trust or not run.exists():  # what is not there is said elsewhere
        return
    for path, wrong in _of_others(run):
        imports = f", which would import {told(code)}" if code else ""
        raise NotTrusted(f"{path} {wrong}: the run is not continued{imports}; {TRUST}")


def _of_others(run: Path) -> Iterator[tuple[Path, str]]:
    """The files that a resumed run reads and that another user has written, or could have."""
    folder = RunFolder(run)
    read = [folder.job, folder.events, folder.checkpoints, *folder.checkpoints.rglob("*")]
    read.append(run / COMPARISON)
    shut = not run.stat().st_mode & 0o077  # nobody else comes as far as the files in it
    for path in (run, *read):
        if path.exists():
            wrong = others_owner(path) or ("" if shut else others_may_write(path))
            if wrong:
                yield path, wrong
