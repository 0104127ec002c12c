"""The workload of a table whose rows are pulled encoded: they are those that an exact pull gives.

Under bsp workers pull differences, else encoded rows. Values are small integers, which the codec
has exactly. So a difference that is added twice, to other rows or to none leaves wrong rows.
"""

from __future__ import annotations

from random import Random

import numpy as np

from shoal.keys import KeyRange
from shoal.protocol.requests import PullOp, PushOp
from shoal.simulation.checkers.history import violated
from shoal.tables.consistency import Consistency
from shoal.tables.spec import TableSpec

ROWS, FRAGMENT = 48, 16
NAME, CODEC = "pulled", "fp16"
LARGEST = 3  # of a value: all sums are integers that 11 bits hold
CANARY = -7.0
AGAIN = "asked again"  # the kind of note of a worker whose pull needs another request
PULLED = 0.7  # share of the clocks in which a worker pulls the table


class PulledWorkload:
    """Pushes to the table, and pulls of its rows in both ways."""

    def __init__(self, consistency: Consistency) -> None:
        self.spec = TableSpec(
            NAME,
            ROWS,
            fragment_rows=FRAGMENT,
            consistency=consistency,
            merge="sum",
            server_codec=f"delta:{CODEC}" if consistency.name == "bsp" else CODEC,
        )

    def push(self, random: Random) -> PushOp:
        """Return a push of some fragments."""
        edges = random.choice([(0, ROWS), (0, FRAGMENT), (FRAGMENT, ROWS), (3, 35)])
        count = edges[1] - edges[0]
        values = np.array([random.randint(-LARGEST, LARGEST) for _ in range(count)], np.float32)
        return PushOp(NAME, KeyRange(*edges), values.view(np.uint8).data)

    def pulls(self, random: Random) -> tuple[list[PullOp], list[np.ndarray]]:
        """Return pulls of the same rows, encoded and exact, and their memory; or nothing."""
        if random.random() >= PULLED:
            return [], []
        rows = KeyRange(*random.choice([(0, ROWS), (0, ROWS), (FRAGMENT, ROWS)]))
        into = [np.full(len(rows), CANARY, np.float32) for _ in range(2)]
        ops = [
            PullOp(NAME, rows, each.view(np.uint8).data, exact=exact)
            for each, exact in zip(into, (False, True), strict=True)
        ]
        return ops, into

    def check(self, into: list[np.ndarray], again: bool, ahead: bool) -> None:
        """Check `pulled`: both pulls of a request have the same rows.

        again:  whether servers were asked again for the encoded rows, later than for the others
        ahead:  whether the worker has gone on to the next round before the rows had come
        """
        moves = ahead or self.spec.consistency.closes is not None  # rows, in the meantime
        if not into or (again and moves):
            return
        encoded, exact = into
        if not np.array_equal(encoded, exact):
            text = f"{encoded.tolist()}, and the table's are {exact.tolist()}"
            raise violated("pulled", f"encoded rows are {text}")
