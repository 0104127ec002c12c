"""Files of jobs: reading, writing, and what a run takes over from the job of the run before it."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shoal.errors import DataMissing, InvalidValue
from shoal.storage.files import FORMAT, FORMAT_KEY, check_format, open_file, read_whole
from shoal.storage.run_folder import RunFolder
from shoal.strategies import USUAL

T = TypeVar("T")
JOB_BYTES_MAX = 1 << 20  # limit for a job's file
SCRIPT = "script"  # the application in the job of a run of `shoal run`
OPTIONS_OF = {  # fields that belong to the value of another one
    "strategy": ("set", "staleness", "apply_at"),
    "optimizer": ("optimizer_options",),
}


def converted(values: dict[str, Any], schema: type[T]) -> T:
    """Convert plain values to a schema.

    Raises:
        InvalidValue: a value is of a wrong type or out of its range; the text names the field
    """
    try:
        return msgspec.convert(values, schema)
    except msgspec.ValidationError as error:
        raise InvalidValue(_readable(str(error))) from None


def load_job(path: Path, what: str = "job file") -> dict[str, Any]:
    """Return the values in a job file that a person wrote or a run has left.

    what: the kind of the file for errors, since other files are read in the same way

    Raises:
        InvalidValue: the file does not exist, is too long, or is not TOML
        UnknownFormat: another version of Shoal has written it
    """
    try:
        if path.stat().st_size > JOB_BYTES_MAX:
            raise InvalidValue(f"{path} is no {what}: it has more than {JOB_BYTES_MAX} bytes")
        with open_file(path) as file:
            values = tomllib.load(file)
    except OSError as error:
        raise InvalidValue(f"no {what} at {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{path} is not TOML: {error}") from None
    check_format(path, values.pop(FORMAT_KEY, FORMAT))
    return values


def load_run_job(run: Path) -> dict[str, Any]:
    """Return the values of a run's job, from the run's folder.

    Raises:
        DataMissing: it is not the folder of a run
        DataCorrupt: its job cannot be read
        InvalidValue: its job is too long, or is not TOML
        UnknownFormat: another version of Shoal has written it
    """
    path = RunFolder(run).job
    if not path.is_file():
        raise DataMissing(f"{run} is not the folder of a run: there is no file {path}")
    if read_whole(path, len(FORMAT_KEY)) != FORMAT_KEY.encode():
        check_format(path, None)
    return load_job(path)


def dump_job(job: msgspec.Struct, application: str = "", **more: Any) -> str:
    """Return a job as TOML, with the name of its application, if it has one, and more keys."""
    import tomli_w

    whose = {"application": application} if application else {}
    return tomli_w.dumps({**whose, **more, **msgspec.to_builtins(job)})


def another_application(run: Path, job: Mapping[str, Any]) -> InvalidValue:
    """Return the error for a run that another command has to continue, from its job's values."""
    whose = job.get("application", "")
    command = "shoal run" if whose == SCRIPT else f"shoal train {whose}".rstrip()
    how = f"{command} --resume {shlex.quote(str(run))}"
    return InvalidValue(f"{run} is a run of `{command}`, which resumes it: {how}")


def inherited(before: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's values: those asked for, else those of the run that it continues.

    Settings and options of the optimizer are asked for one by one. Another strategy or optimizer
    begins with its own defaults.
    """
    kept = {**before, "resume_at": -1}
    for name, its in OPTIONS_OF.items():
        was = before.get(name, asked.get(name))
        if (asked.get(name, was) or USUAL) != (was or USUAL):
            kept = {each: value for each, value in kept.items() if each not in its}
    values = {**kept, **asked}
    for name in ("set", "optimizer_options"):
        if isinstance(asked.get(name), Mapping):
            values[name] = {**kept.get(name, {}), **asked[name]}
    return values


def _readable(text: str) -> str:
    """Move the field in an error such as "Expected `int` >= 1 - at `$.workers`" to the front."""
    what, found, where = text.partition(" - at `$.")
    return f"{where.rstrip('`')}: {what[0].lower()}{what[1:]}" if found else text
