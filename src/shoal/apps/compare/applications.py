"""The applications whose runs can be compared, and the run of a cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec

from shoal.apps.train.command import TrainApplication
from shoal.registry import unknown
from shoal.runs.application import Application, compared
from shoal.runs.grid import Cell, Comparison
from shoal.runs.job_file import converted

TITLE = "run"  # of a cell's run, whose folder is named after the cell
NO_AXES = ("seed", "out", "title", "resume", "resume_at")


def check_fields(comparison: Comparison) -> None:
    """Refuse options that an application does not have, and axes that are of the whole comparison.

    Raises:
        UnknownName: there is no such option, or it cannot be an axis
    """
    fields = comparison.schema.__struct_fields__
    axes = [name for name in fields if name not in NO_AXES]
    for name in comparison.job:
        if name not in fields:
            raise unknown(f"option of {comparison.application}", name, fields)
    for name in comparison.grid:
        if name not in axes:
            raise unknown("axis of a comparison", name, axes)


def application_of(
    name: str, cell: Cell, seed: int, out: Path, data_dirs: Sequence[Path]
) -> Application[Any]:
    """Return what a cell of a comparison runs with one of the seeds.

    name:  the application; "" for a training job

    Raises:
        InvalidValue, UnknownName: a field has a wrong value, or there is no such field
    """
    if not name:
        job = msgspec.structs.replace(cell.job(seed, str(out)), title=TITLE)
        return TrainApplication(job, data_dirs)
    fields = {**cell.fields, "seed": seed, "out": str(out), "title": TITLE}
    kind = compared(name)
    application: type[Application[Any]] = resolve_name(kind.application)
    return application(converted(fields, kind.schema))
