"""The figures that users' code has recorded with `shoal.log`, from the event log of its run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite, nan
from typing import Any

Table = dict[str, list[Any]]  # column -> values
Record = tuple[int, float, int, dict[str, float]]  # rank, seconds, step, figures by name


def records(events: Iterable[Mapping[str, Any]]) -> Iterator[Record]:
    """Yield the calls of `shoal.log`.

    Numbers that are not finite are nan; names of a worker group are GROUP/NAME.
    """
    for event in events:
        if event["kind"] == "logged":
            group = event["node"].rpartition("/")[0]
            prefix = f"{group}/" if group else ""
            figures = {
                prefix + name: nan if value is None else value
                for name, value in event["figures"].items()
            }
            yield event["rank"], event["t"], event["step"], figures


def logged_tables(events: Iterable[Mapping[str, Any]]) -> dict[int, Table]:
    """Return by rank a table of t, step and each name: a row for each call, None if it has none."""
    calls: dict[int, list[tuple[float, int, dict[str, float]]]] = {}
    for rank, t, step, figures in records(events):
        calls.setdefault(rank, []).append((t, step, figures))
    tables: dict[int, Table] = {}
    for rank, rows in sorted(calls.items()):
        names = dict.fromkeys(name for _, _, figures in rows for name in figures)
        tables[rank] = {
            "t": [t for t, _, _ in rows],
            "step": [step for _, step, _ in rows],
            **{name: [figures.get(name) for _, _, figures in rows] for name in names},
        }
    return tables


def logged_summary(tables: Mapping[int, Table]) -> dict[str, dict[str, Any]]:
    """Return the count, first, last, least and greatest number of each name.

    The first and the last are those of the worker of the lowest rank that has the name, None where
    they are not finite. The others are of all workers, None where no number is finite.
    """
    found: dict[str, dict[str, Any]] = {}
    for table in tables.values():
        for name, column in table.items():
            values = [value for value in column if value is not None]
            if name in ("t", "step") or not values:
                continue
            finite = [value for value in values if isfinite(value)]
            first, last = (value if isfinite(value) else None for value in (values[0], values[-1]))
            new = {"count": 0, "first": first, "last": last, "least": None, "greatest": None}
            each = found.setdefault(name, new)
            each["count"] += len(values)
            for what, choose in (("least", min), ("greatest", max)):
                known = finite if each[what] is None else [*finite, each[what]]
                each[what] = choose(known, default=None)
    return found
