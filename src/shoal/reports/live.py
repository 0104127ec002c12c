"""A run as it goes, and its summary, on a terminal or in a notebook."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from shoal.reports.columns import Column
from shoal.reports.numbers import decimal_bytes, seconds, significant
from shoal.storage.event_log import NewEvents
from shoal.storage.run_folder import RunFolder

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """Return the course of `values` in one line of text, as means of equal pieces.

    >>> sparkline([1, 2, 3, 4])
    '▁▃▆█'
    """
    if not values:
        return ""
    width = min(width, len(values))
    edges = [len(values) * i // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BLOCKS[round((mean - low) / span * (len(BLOCKS) - 1))] for mean in means)


FINISHED = "the first group finished"  # in the reason of a view
NOTEBOOK_S = 0.5  # between two updates of a cell


def progress_console(wanted: bool | None) -> Console:
    """Return the console on which a run that was started from Python shows its progress.

    wanted: whether it shows it; None for only on a terminal or in a notebook
    """
    console = Console(stderr=True)
    shown = console.is_terminal or console.is_jupyter if wanted is None else wanted
    return console if shown else Console(quiet=True)


@contextmanager
def live(
    console: Console, folder: RunFolder, workers: int, epochs: int
) -> Iterator[Callable[[], None]]:
    """Show a bar for each worker of a run; yield the function that brings them up to date.

    A quiet console shows nothing, and its events are not read.
    """
    if console.quiet:
        yield lambda: None
        return
    with Live(console, folder.events, workers, epochs) as bars:
        yield bars.tick


class Live:
    """Follows an event log and shows a bar for each worker.

    `tick` reads the new events. In a notebook the bars are the output of the cell, which stays when
    the notebook is saved.
    """

    def __init__(self, console: Console, events: Path, workers: int, epochs: int) -> None:
        self._cell: Any = None  # the notebook's
        self._cell_due = 0.0
        self._notebook = console.is_jupyter and not console.quiet
        self._new_events = NewEvents(events)
        self._epochs = epochs
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("epoch {task.fields[epoch]:>3}  step {task.completed:>6}"),
            TextColumn("loss {task.fields[loss]:>7}{task.fields[accuracy]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {
            f"worker-{rank}": self._progress.add_task(
                f"worker-{rank}", total=None, epoch="-", loss="-", accuracy=""
            )
            for rank in range(workers)
        }

    def __enter__(self) -> Live:
        if self._notebook:
            from IPython.display import display

            self._cell = display(self._progress, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cell_due = 0.0
        for task in self._progress.tasks:
            if task.total is None:  # nobody knew how much there was to do
                self._progress.update(task.id, total=task.completed)
        self.tick()
        if not self._notebook:
            self._progress.stop()

    def tick(self) -> None:
        latest: dict[str, dict[str, Any]] = {}
        for event in self._new_events():
            if event["node"] in self._tasks:
                latest.setdefault(event["node"], {})[event["kind"]] = event
            elif event["kind"] == "view" and FINISHED in event["reason"] and event["workers"]:
                count = event["workers"]
                others = (
                    "worker of another group has" if count == 1 else "workers of other groups have"
                )
                self._progress.console.print(
                    f"trained; the run goes on until {count} {others} left"
                )
        for node, events in latest.items():
            self._show(self._tasks[node], events)
        if self._cell is not None and time.monotonic() >= self._cell_due:
            self._cell.update(self._progress)
            self._cell_due = time.monotonic() + NOTEBOOK_S

    def _show(self, task: TaskID, events: dict[str, Any]) -> None:
        if "begin" in events:
            self._progress.update(task, total=events["begin"]["batches"] * self._epochs)
        if "step" in events:
            step = events["step"]
            self._progress.update(
                task,
                completed=step["step"],
                epoch=step["epoch"] + 1,
                loss="nan" if step["loss"] is None else f"{step['loss']:.4f}",
            )
        if "eval" in events:
            self._progress.update(task, accuracy=f"  accuracy {events['eval']['accuracy']:.4f}")


def show_course(console: Console, name: str, values: Sequence[float]) -> None:
    """Print the course of a figure in one line, without values that are not finite."""
    if finite := [value for value in values if isfinite(value)]:
        first, last = significant(finite[0]), significant(finite[-1])
        console.print(f"{name}  {sparkline(finite)}  {first} -> {last}", markup=False)


def show_summary(console: Console, summary: dict[str, Any], losses: Sequence[float]) -> None:
    """Print the figures of a run in one table, below the course of the loss."""
    show_course(console, "loss", losses)
    table = Table(show_header=False, box=None, padding=(0, 2))
    rows = {
        "test accuracy": significant(summary["accuracy"]),
        "test loss": significant(summary["loss"]),
        "samples/s": significant(summary["samples_per_s"]),
        "wall time": seconds(summary["wall_s"]),
        "sent": decimal_bytes(summary["bytes_sent"]),
        "received": decimal_bytes(summary["bytes_received"]),
        "staleness": f"{significant(summary['staleness'])} clocks on average",
        "run": summary["run_dir"],
        "figures": f"shoal report {summary['run_dir']}",
    }
    if summary.get("differs"):
        rows["replicas differed"] = f"{summary['differs']} times; events.jsonl has where"
    if summary.get("notes"):
        rows["data"] = "; ".join(summary["notes"])
    for name, value in rows.items():
        table.add_row(name, value, style="bold" if name == "test accuracy" else None)
    show_losses(table, summary)
    console.print(table)


def show_losses(table: Table, summary: Mapping[str, Any]) -> None:
    """Add the workers that a run has lost, or left behind, to the table of its figures."""
    if dropped := summary.get("dropped"):
        table.add_row("left behind", f"{', '.join(dropped)} (too slow)")
    if lost := summary["lost"]:
        table.add_row("went on without", ", ".join(lost))


def show_comparison(
    console: Console, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Print the table of a comparison, without columns in which no row has a value."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("cell", overflow="fold")
    shown = [each for each in columns if each.short]
    known = [each for each in shown if any(row[each.name] is not None for row in rows)]
    for column in known:
        title = column.short.format(threshold=rows[0]["threshold"])
        table.add_column(title, justify="right", no_wrap=True, min_width=len(title))
    for row in rows:
        table.add_row(row["cell"], *(_shown(column, row, column is known[0]) for column in known))
    console.print(table)


def _shown(column: Column, row: Mapping[str, Any], with_spread: bool) -> str:
    value, spread = row[column.name], row[f"{column.name}_sd"]
    if value is None:
        return ""
    if spread is None or not with_spread:
        return column.shown(value)
    return f"{column.shown(value)} ± {column.shown(spread)}"
