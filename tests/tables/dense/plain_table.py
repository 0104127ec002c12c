"""The plain table: what a dense shard must equal, row by row, as numpy float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shoal.keys import KeyRange, split_evenly
from shoal.tables.spec import TableSpec
from tests.tables.dense.pushes import WIDTH, Push, table

Row = npt.NDArray[np.float64]
Operation = tuple[str, Push] | tuple[str, list[Push]]


class PlainTable:
    """The dumb shard: a dictionary of rows, a loop over keys, steps by fragment and span."""

    def __init__(self, spec: TableSpec, held: KeyRange) -> None:
        self.spec = spec
        self.rows: dict[int, Row] = {
            key: np.full(WIDTH, spec.init.a) for key in range(held.start, held.stop)
        }
        self.moments = {key: (np.zeros(WIDTH), np.zeros(WIDTH)) for key in self.rows}
        self.fragment_of = {key: key // spec.fragment_rows for key in self.rows}
        self.versions = dict.fromkeys(sorted(set(self.fragment_of.values())), 0)
        starts = [span.start for span in spec.spans]
        self.cell_of = {
            key: (key // spec.fragment_rows, sum(start <= key for start in starts))
            for key in self.rows
        }
        self.updates = dict.fromkeys(sorted(set(self.cell_of.values())), 0)

    def write(self, push: Push) -> None:
        self.rows.update(push.carried)
        self._count([push], self.fragment_of, self.versions)

    def apply(self, push: Push) -> None:
        for key, row in push.carried.items():
            self._update(key, row, push.lr)
        self._count_update([push])

    def merge(self, pushes: Sequence[Push]) -> None:
        zeros = np.zeros(WIDTH)
        for key in self.rows:
            named = [push for push in pushes if key in push.rows]
            carriers = [push for push in named if key in push.carried]
            if not carriers:
                continue
            rows = [push.carried.get(key, zeros) for push in named]
            if self.spec.merge == "median":
                update = np.median(rows, axis=0)
            elif self.spec.merge == "trimmed_mean":
                out = int(self.spec.trim * len(rows))
                update = np.sort(rows, axis=0)[out : len(rows) - out].mean(axis=0)
            elif self.spec.merge == "sum":
                update = sum((push.carried[key] for push in carriers), zeros)
            else:
                update = sum((push.weight * push.carried[key] for push in carriers), zeros)
                update = update / sum(push.weight for push in named)
            self._update(key, update, named[0].lr)
        self._count_update(pushes)

    def _update(self, key: int, update: Row, lr: float | None) -> None:
        name, options = self.spec.access.name, self.spec.access.options
        rate = float(options.get("lr", 0.0)) if lr is None else lr
        if name == "sum":
            self.rows[key] = self.rows[key] + update
        elif name == "assign":
            self.rows[key] = update
        elif name == "sgd":
            self.rows[key] = self.rows[key] - rate * update
        elif name == "adam":  # Kingma & Ba 2015, algorithm 1
            t = self.updates[self.cell_of[key]] + 1
            m, v = self.moments[key]
            m, v = 0.9 * m + 0.1 * update, 0.999 * v + 0.001 * update**2
            self.moments[key] = m, v
            mean, square = m / (1 - 0.9**t), v / (1 - 0.999**t)
            self.rows[key] = self.rows[key] - rate * mean / (np.sqrt(square) + 1e-8)
        else:
            raise AssertionError(f"the plain table has no access method {name!r}")

    def _count_update(self, pushes: Sequence[Push]) -> None:
        self._count(pushes, self.fragment_of, self.versions)
        self._count(pushes, self.cell_of, self.updates)

    def _count(self, pushes: Sequence[Push], of: dict[int, Any], counter: dict[Any, int]) -> None:
        for place in counter:
            if any(of[key] == place and key in push.rows for push in pushes for key in self.rows):
                counter[place] += 1


@st.composite
def pushes(draw: st.DrawFn, held: KeyRange) -> Push:
    start = draw(st.integers(held.start, held.stop - 1))
    rows = KeyRange(start, draw(st.integers(start + 1, held.stop)))
    keys = draw(st.none() | st.sets(st.integers(rows.start, rows.stop - 1)).map(sorted))
    count = len(rows) if keys is None else len(keys)
    row = st.lists(st.integers(0, 5), min_size=WIDTH, max_size=WIDTH)
    values = draw(st.lists(row, min_size=count, max_size=count))
    return Push(rows, keys, values, draw(st.sampled_from([1.0, 2.0, 0.5, 3.0])))


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, int, list[int], KeyRange, list[Operation]]:
    """A cut table, its spans, one server's part of it, and a few operations on that part."""
    rows, fragment_rows = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    servers = draw(st.integers(1, 3))
    fragments = table(rows, fragment_rows).fragments()
    spans = sorted({0, *draw(st.sets(st.integers(0, rows - 1)))}) if draw(st.booleans()) else []
    part = draw(st.sampled_from([p for p in split_evenly(len(fragments), servers) if len(p)]))
    held = KeyRange(fragments[part.start].start, fragments[part.stop - 1].stop)
    push = pushes(held)
    operation = st.one_of(
        st.tuples(st.sampled_from(["apply", "write"]), push),
        st.tuples(st.just("merge"), st.lists(push, min_size=1, max_size=4)),
    )
    return rows, fragment_rows, spans, held, draw(st.lists(operation, min_size=1, max_size=4))
