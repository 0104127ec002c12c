"""ComparisonFolder: every path of a comparison.

comparison.toml              the job, the axes along which it varies, and the seeds
cells.json                   the cells of the grid
cells/NAME-seed0/RUN/        the run of a cell and a seed, a folder as `shoal train` leaves it
report.html                  the figures
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import DataCorrupt, UnknownFormat
from shoal.storage.files import (
    FORMAT,
    FORMAT_KEY,
    check_format,
    damaged,
    read_object,
    write_whole,
)
from shoal.storage.run_folder import RunFolder, stamped_folder

CellRecord = tuple[str, str, dict[str, Any]]  # name, folder's name, values by axis


class ComparisonFolder:
    """The directory that a comparison leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.comparison = path / "comparison.toml"
        self.report = path / "report.html"
        self.cells = path / "cells"
        self._listed = path / "cells.json"

    @classmethod
    def create(cls, parent: Path, title: str) -> ComparisonFolder:
        """Create a fresh folder named by title and time, which only its owner may enter."""
        return cls(stamped_folder(parent, title))

    def write_comparison(self, toml: str) -> None:
        write_whole(self.comparison, toml)

    def write_cells(self, cells: Sequence[CellRecord]) -> None:
        """Write (name, folder's name, values by axis) of each cell."""
        write_whole(self._listed, json.dumps({FORMAT_KEY: FORMAT, "cells": cells}, indent=2))

    def read_cells(self) -> list[CellRecord]:
        """Read the cells, without importing the code that they name.

        Raises:
            DataMissing: there are none
            DataCorrupt: the file is damaged
            UnknownFormat: another version of Shoal has written it
        """
        found = read_object(self._listed)
        check_format(self._listed, found.get(FORMAT_KEY))
        try:
            return msgspec.convert(found.get("cells"), list[CellRecord])
        except msgspec.ValidationError as error:
            raise damaged(self._listed, str(error)) from None

    def runs(self, cell: str, seed: int) -> Path:
        """Return the folder with the runs of a cell and a seed, of which at most one has ended."""
        return self.cells / f"{cell}-seed{seed}"

    def ended(self, cell: str, seed: int) -> RunFolder | None:
        """Return the run of a cell and a seed that has ended with whole files; None without one."""
        for summary in sorted(self.runs(cell, seed).glob("*/summary.json")):
            run = RunFolder(summary.parent)
            with suppress(DataCorrupt, UnknownFormat):
                if run.read_summary() and run.events.is_file():
                    return run
        return None
