"""The workload of a bounded table, which evicts keys all the time.

Each clock a worker adds 1 to a few keys, out of many more than the table has room for. An evicted
row begins again at 0, so a key may have any value up to the number of its pushes. Replicas are
compared at the end.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np

from shoal.protocol.requests import PullOp, PushOp
from shoal.simulation.checkers.history import violated
from shoal.tables.consistency import Consistency
from shoal.tables.spec import Access, TableSpec

KEYS, ROOM = 48, 16
MOST = 4  # keys in a push


class BoundedWorkload:
    """Pushes to the bounded table, and checks what is read from it."""

    def __init__(self, consistency: Consistency, random: Random) -> None:
        self.spec = TableSpec(
            "visits",
            0,
            kind="sparse",
            access=Access("sum"),
            consistency=consistency,
            merge="sum",
            max_rows=ROOM,
            evict=random.choice(["lru", "lfu"]),
        )
        self._pushed: Counter[int] = Counter()

    def push(self, random: Random) -> PushOp:
        keys = _some(random)
        self._pushed.update(keys.tolist())
        ones = np.ones(len(keys), np.float32)
        return PushOp("visits", self.spec.keys, ones.view(np.uint8).data, keys.data)

    def pull(self, random: Random) -> tuple[PullOp, np.ndarray]:
        keys = _some(random)
        rows = np.zeros(len(keys), np.float32)
        return PullOp("visits", self.spec.keys, rows.view(np.uint8).data, keys.data), rows

    def check_read(self, pull: PullOp, rows: np.ndarray) -> None:
        """Check `exactly once`: no key has a value above the number of its pushes."""
        for key, bounded in zip(np.asarray(pull.keys).tolist(), rows.tolist(), strict=True):
            if not 0 <= bounded <= self._pushed[key]:
                text = f"key {key} reads {bounded:g} after {self._pushed[key]} pushes"
                raise violated("exactly once", text)


def _some(random: Random) -> np.ndarray:
    keys = random.sample(range(KEYS), random.randint(1, MOST))
    return np.array(keys, np.uint64)
