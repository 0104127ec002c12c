"""Reading the event log: tables, live progress, summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.lazy import public

if TYPE_CHECKING:
    from shoal.reports.comparison import CellRuns, ComparedRuns, load_comparison
    from shoal.reports.curves import Curves, Point
    from shoal.reports.events import Run, load_run

__all__ = [
    "CellRuns",
    "ComparedRuns",
    "Curves",
    "Point",
    "Run",
    "load_comparison",
    "load_run",
]

__getattr__, __dir__ = public(
    __name__,
    {
        "shoal.reports.comparison": "CellRuns ComparedRuns load_comparison",
        "shoal.reports.curves": "Curves Point",
        "shoal.reports.events": "Run load_run",
    },
)
