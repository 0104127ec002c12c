"""Logs of processes, shown in the terminal of the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

READ_BYTES = 1 << 20  # of each log at once


class Followed:
    """Logs whose new lines are shown, each after the name of its process.

    A process writes to its log whatever happens to the terminal, and never waits for it.

    Args:
        logs: the logs by the name of the process; a log may not exist yet.
        out: the file to which lines are written; standard output by default.
    """

    def __init__(self, logs: Mapping[str, Path], out: TextIO | None = None) -> None:
        self._logs = dict(logs)
        self._out = out or sys.stdout
        self._shown = dict.fromkeys(logs, 0)  # bytes

    def show(self) -> None:
        """Show the lines that have been completed since the last call, up to READ_BYTES of each.

        A process that writes without end does not hold up the caller.
        """
        for name, log in self._logs.items():
            self._show(name, log, whole=True)
        self._out.flush()

    def _show(self, name: str, log: Path, whole: bool) -> bool:
        """Show the next lines of a log; return whether there were any."""
        lines = self._next(name, log, whole)
        for line in lines:
            self._out.write(f"{name} | {line.decode(errors='replace')}\n")
        return bool(lines)

    def _next(self, name: str, log: Path, whole: bool) -> list[bytes]:
        """Return the next lines of a log; with `whole`, without the line that is being written.

        Of a line that was overwritten (a progress bar), only the last text is returned.
        """
        try:
            with log.open("rb") as file:
                file.seek(self._shown[name])
                new = file.read(READ_BYTES)
        except FileNotFoundError:
            return []
        last = new.rfind(b"\n") + 1
        if last or (whole and len(new) < READ_BYTES):
            new = new[:last]
        self._shown[name] += len(new)
        lines = new.removesuffix(b"\n").split(b"\n") if new else []
        return [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]

    def __enter__(self) -> Followed:
        return self

    def __exit__(self, *raised: object) -> None:
        for name, log in self._logs.items():
            while self._show(name, log, whole=False):
                pass
        self._out.flush()
