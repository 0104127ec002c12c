"""RunResult: what a run that was started from Python returns; `runs.run` writes the summary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.jupyter import JupyterMixin
from rich.table import Table

from shoal.reports.numbers import significant


@dataclass(frozen=True)
class RunResult(JupyterMixin):
    """Result of a run. A notebook and `rich.print` show it as a table.

    Attributes:
        metrics: the figures of the run's summary, by name.
        run_dir: the run's folder.
    """

    metrics: dict[str, Any]
    run_dir: Path

    def __rich__(self) -> Table:
        """Return a table of the figures that are numbers, and of the run's folder."""
        table = Table(show_header=False, box=None)
        for name, value in self.metrics.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                table.add_row(
                    name, significant(value) if isinstance(value, float) else f"{value:,}"
                )
        table.add_row("run", str(self.run_dir))
        return table
