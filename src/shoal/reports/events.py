"""A run as tables, from its event log alone.

>>> run = load_run("shoal-runs/demo-20260101-120000")    # doctest: +SKIP
>>> run.evals[0]["accuracy"], len(run.steps[0]["loss"])  # doctest: +SKIP
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.data.streams import lines
from shoal.errors import DataMissing
from shoal.reports.logged import Table, logged_tables
from shoal.storage.event_log import event_of, object_of
from shoal.storage.files import FORMAT_KEY, check_format, damaged, open_file, unreadable
from shoal.storage.run_folder import RunFolder

STEP_COLUMNS = (
    *("t", "epoch", "step", "loss", "samples", "staleness"),
    *("idle_s", "bytes_sent", "bytes_received"),
)
EVAL_COLUMNS = ("t", "epoch", "step", "accuracy", "loss", "seconds")
THRESHOLDS = (0.5, 0.8, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)


@dataclass(frozen=True)
class Run:
    """The records of a run, as `load_run` reads them.

    Attributes:
        path: the run's folder.
        summary: the figures of `summary.json`; empty for a run that has not ended.
        steps: the steps by rank: a table of columns t (seconds), epoch, step, loss, samples,
            staleness, and, so far, idle_s (seconds that the worker has waited), bytes_sent,
            bytes_received.
        evals: the evaluations by rank: a table of columns t (seconds), epoch, step, accuracy, loss,
            seconds (that the evaluation took).
        events: every event, in the order of writing.
        logged: the figures that a script has recorded with `shoal.log`, by rank: a table of columns
            t, step and each name, with a row for each call, None where it has no such name and nan
            where the number was not finite. Names of a worker group are GROUP/NAME.

    Example:
        >>> Run(Path("shoal-runs/demo"), {"accuracy": 0.98}, {0: {}}, {}, [])
        Run('shoal-runs/demo', 1 workers, {'accuracy': 0.98})
    """

    path: Path
    summary: dict[str, Any]
    steps: dict[int, Table]
    evals: dict[int, Table]
    events: list[dict[str, Any]]
    logged: dict[int, Table] = field(default_factory=dict)

    def __repr__(self) -> str:
        figures = {k: self.summary[k] for k in ("accuracy", "loss", "wall_s") if k in self.summary}
        workers = len(self.steps.keys() | self.logged.keys())
        return f"Run({str(self.path)!r}, {workers} workers, {figures})"


def load_run(path: str | Path) -> Run:
    """Read the records that a run has left in its folder.

    Args:
        path: the run's folder, such as shoal-runs/demo-20260101-120000.

    Returns:
        The run's summary, steps, evaluations, events and logged figures.

    Raises:
        DataMissing: there is no run in that folder.
        DataCorrupt: a line of the event log is no event.
        UnknownFormat: another version of Shoal has written it.

    Example:
        >>> run = shoal.load_run("shoal-runs/demo-20260101-120000")  # doctest: +SKIP
        >>> run.evals[0]["accuracy"], len(run.steps[0]["loss"])  # doctest: +SKIP
    """
    folder = RunFolder(Path(path))
    if not folder.events.exists():
        raise DataMissing(f"there is no run at {path}: {folder.events} does not exist")
    events = list(read_events(folder.events))
    return Run(
        folder.path,
        folder.read_summary(),
        _tables(events, "step", STEP_COLUMNS),
        _tables(events, "eval", EVAL_COLUMNS),
        events,
        logged_tables(events),
    )


def read_events(path: Path, torn: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the events in a log.

    A last line without its end is still being written, and is left out.

    Args:
        path: the log.
        torn: whether lines that are no events, as a full disk makes them, are left out.

    Raises:
        UnknownFormat: another version of Shoal has written the log
        DataMissing: there is no log
        DataCorrupt: a line is no event, or too long for one (`streams.LINE_BYTES_MAX`), or the file
            cannot be read
    """
    number = 0
    for number, line in _lines(path):
        if not line.endswith(b"\n") and number > 1:
            return
        try:
            event = event_of(line) if number > 1 else object_of(line)
        except ValueError as error:
            if torn and number > 1:
                continue
            raise damaged(path, f"line {number} is no event ({error})") from None
        if number == 1:
            check_format(path, event.get(FORMAT_KEY))
        else:
            yield event
    if not number:
        raise damaged(path, "it is empty")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with open_file(path) as file:
            yield from lines(path, file)
    except FileNotFoundError:
        raise DataMissing(f"{path} does not exist") from None
    except OSError as error:
        raise unreadable(path, error) from None


def write_tables(folder: RunFolder, events: list[dict[str, Any]] | None = None) -> None:
    """Write each worker's train.csv, eval.csv and logged.csv, where it has such events.

    events:  the events of the run, if they are read already
    """
    events = list(read_events(folder.events, torn=True)) if events is None else events
    tables = {
        "train.csv": _tables(events, "step", STEP_COLUMNS),
        "eval.csv": _tables(events, "eval", EVAL_COLUMNS),
        "logged.csv": logged_tables(events),
    }
    for name, by_rank in tables.items():
        for rank, table in by_rank.items():
            with (folder.worker(rank) / name).open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(table)
                writer.writerows(zip(*table.values(), strict=True))


def time_to(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds from the start to the first evaluation at each threshold of accuracy.

    Thresholds that were not reached are left out.
    """
    reached: dict[str, float] = {}
    for event in events:
        if event["kind"] == "eval":
            for threshold in THRESHOLDS:
                if event["accuracy"] >= threshold:
                    reached.setdefault(str(threshold), event["t"])
    return reached


def lost_members(events: Sequence[Mapping[str, Any]], once: bool) -> dict[str, Any]:
    """Return the figures of a run's summary about members of the first group that it lost.

    lost, dropped:  their names, and the names of those that were too slow
    reassigned:     the batches that others did in their place
    may_repeat:     the deaths at which a batch may have counted twice

    once:  whether the run counts each batch once, because its workers push in rounds

    >>> lost_members([{"kind": "lost", "name": "worker-1"}], once=True)
    {'lost': ['worker-1'], 'dropped': [], 'reassigned': 0, 'may_repeat': 0}
    """
    names: dict[str, list[str]] = {"lost": [], "dropped": []}
    returned = [each for each in events if each["kind"] == "returned" and not each.get("group")]
    for event in events:
        if event["kind"] in names:
            names[event["kind"]].append(event["name"])
    gone = names["dropped"]
    return {
        "lost": [name for name in names["lost"] if name not in gone and "/" not in name],
        "dropped": gone,
        "reassigned": sum(each["count"] for each in returned),
        "may_repeat": 0 if once else len(returned),
    }


def _tables(events: list[dict[str, Any]], kind: str, columns: tuple[str, ...]) -> dict[int, Table]:
    tables: dict[int, Table] = {}
    for event in events:
        if event["kind"] == kind:
            rank = int(event["node"].rpartition("-")[2])
            table = tables.setdefault(rank, {column: [] for column in columns})
            for column in columns:
                table[column].append(event.get(column))
    return dict(sorted(tables.items()))
