"""The workload of a table with a codec: each push counts once, as it was decoded, or not at all.

Values are small integers and scales are powers of two, so that all arithmetic is exact. What a push
has left out is in its worker's residual; what did not count is there as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from random import Random

import msgspec
import numpy as np

from shoal.errors import ProcessDied, RoundClosed
from shoal.keys import KeyRange
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import PushOp
from shoal.pushes import Door
from shoal.pushes.encoder import Encoder
from shoal.simulation.checkers.history import violated
from shoal.tables.consistency import Consistency
from shoal.tables.spec import TableSpec

ROWS, FRAGMENT = 24, 8
NAME, CODEC = "encoded", "int:4:scale=power:block=8"
PACKED_CODEC = "int:8:scale=power:block=8+zlib"  # zeros become fewer bytes than other values
PACKED = 0.3  # share of the seeds with this one
ZEROS = 0.4  # share of the fragments that are zero there
UNSURE_MOST = 8  # pushes with unknown outcome of a fragment, whose combinations are tried


class EncodedPush(msgspec.Struct, eq=False):
    """A push, its worker's door, and the residual before it.

    outcome:  the outcome of its request; None while it is unknown
    sent:     what servers got, once the outcome is known; zero for rows that were not pushed
    counts:   for each row: whether the push is certain to count
    sure:     for each row: whether the push is certain to count, or not to count
    """

    rows: KeyRange
    values: np.ndarray
    door: Door
    before: np.ndarray
    outcome: Outcome | None = None
    sent: np.ndarray = np.zeros(ROWS, np.float32)
    counts: np.ndarray = np.zeros(ROWS, bool)
    sure: np.ndarray = np.zeros(ROWS, bool)


class EncodedWorkload:
    """Pushes to the table, and checks its rows and the workers' residuals."""

    def __init__(self, consistency: Consistency, packed: bool = False) -> None:
        self._packed = packed
        self.spec = TableSpec(
            NAME,
            ROWS,
            fragment_rows=FRAGMENT,
            consistency=consistency,
            merge="sum",
            codec=PACKED_CODEC if packed else CODEC,
        )
        self._pushed: list[EncodedPush] = []
        self._expected: dict[int, tuple[Door, np.ndarray]] = {}  # by door: its residual

    def push(self, door: Door, random: Random) -> tuple[PushOp, EncodedPush]:
        """Return a push of a worker whose earlier ones have their outcome, and its record."""
        edges = random.choice([(0, ROWS), (0, FRAGMENT), (FRAGMENT, ROWS), (3, 19)])
        values = np.zeros(ROWS, np.float32)
        values[slice(*edges)] = [random.randint(-20, 20) for _ in range(edges[1] - edges[0])]
        for first in range(0, ROWS, FRAGMENT) if self._packed else ():
            if random.random() < ZEROS:
                values[first : first + FRAGMENT] = 0
        before = self._check_residual(door)
        pushed = EncodedPush(KeyRange(*edges), values, door, before)
        self._pushed.append(pushed)
        data = values[slice(*edges)].copy().view(np.uint8).data
        return PushOp(NAME, KeyRange(*edges), data), pushed

    def acknowledged(self, pushed: EncodedPush, outcome: Outcome) -> None:
        """Record the outcome of the request with a push, whose worker has sent no other since."""
        pushed.outcome = outcome
        rows = slice(pushed.rows.start, pushed.rows.stop)
        encoder = _encoder(pushed.door)
        after = pushed.before if encoder is None else encoder.residual
        assert after is not None
        pushed.sent = np.zeros(ROWS, np.float32)
        pushed.sent[rows] = (pushed.values + pushed.before - after)[rows]
        residual = after.copy()
        pushed.counts = np.full(ROWS, outcome.error is None)
        pushed.sure = pushed.counts.copy()
        told = [some for name, some in outcome.uncounted if name == NAME]
        if isinstance(outcome.error, RoundClosed) and not outcome.uncounted:
            raise violated("residual", f"a push was late ({outcome.error}), and no rows of it")
        for each in told:
            some = slice(each.start, each.stop)
            pushed.sure[some] = True
            residual[some] += pushed.sent[some]
        self._expected[id(pushed.door)] = pushed.door, residual

    def _check_residual(self, door: Door) -> np.ndarray:
        """Check `residual`: it is what was left out and what did not count; return it."""
        encoder = _encoder(door)
        if encoder is None:
            return np.zeros(ROWS, np.float32)
        encoder.settle()
        assert encoder.residual is not None
        _, expected = self._expected.get(id(door), (door, encoder.residual))
        if not np.array_equal(encoder.residual, expected):
            text = f"{encoder.residual.tolist()}, not {expected.tolist()}"
            raise violated("residual", f"a worker's residual is {text}")
        return encoder.residual.copy()

    def check_end(self, fragments: Mapping[int, np.ndarray], whole: bool) -> None:
        """Check `encoded`: the rows are the sum of the pushes, each as it was decoded, once.

        fragments:  the rows of each fragment, by its first row
        whole:      whether all accepted pushes are in the rows
        """
        for each in self._pushed:
            if each.outcome is None:  # its worker has died
                self.acknowledged(each, Outcome(error=ProcessDied("unknown")))
        for door, _ in self._expected.values():
            self._check_residual(door)
        for first, rows in fragments.items():
            some = slice(first, first + len(rows))
            of = [each for each in self._pushed if each.sent[some].any()]
            total = sum((p.sent[some] for p in of if p.counts[first]), np.zeros(len(rows)))
            unsure = [each.sent[some] for each in of if not _sure(each, first, len(rows))]
            if not whole or len(unsure) > UNSURE_MOST:
                continue
            sizes = range(len(unsure) + 1)
            sums = (sum(c, total) for size in sizes for c in combinations(unsure, size))
            if not any(np.array_equal(rows, each) for each in sums):
                text = f"{rows.tolist()}, and its acknowledged pushes are {total.tolist()}"
                raise violated("encoded", f"rows from {first} are {text}")


def _sure(pushed: EncodedPush, first: int, count: int) -> bool:
    rows = KeyRange(first, first + count) & pushed.rows
    return bool(pushed.sure[rows.start : rows.stop].all())


def _encoder(door: Door) -> Encoder | None:
    """Return the encoder of the table, if the worker has encoded anything."""
    found = (each for each in door.encoders() if each.spec.name == NAME)
    encoder = next(found, None)
    return encoder if encoder is not None and encoder.residual is not None else None
