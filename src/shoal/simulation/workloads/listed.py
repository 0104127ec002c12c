"""The workload of a sparse table whose lists of keys servers keep: rows get what is meant for them.

Workers push and pull by a few lists again and again. What they push to a key is a multiple of a
number of its own, so that values which a server has taken to other keys leave a row that is none.
In half of the seeds rows are encoded as well, by a codec that has these numbers exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import numpy as np

from shoal.protocol.machine import Outcome
from shoal.protocol.requests import PullOp, PushOp
from shoal.simulation.checkers.history import violated
from shoal.tables.consistency import Consistency
from shoal.tables.spec import Access, TableSpec

NAME = "listed"
PRIMES = 2, 3, 5, 7, 11, 13, 17, 19, 23, 29  # the numbers of the keys
POWERS = tuple(1 << number for number in range(10))  # the same where rows are encoded
CODEC, ENCODED = "fp16", 0.5  # of rows, in this share of the seeds
LISTS, MOST = 4, 6  # lists, and keys in one
KEPT_BYTES = 750  # that a server keeps, for three lists: it drops lists all the time
SAME = 0.5  # share of the pulls that name the list of the push


class ListedPush:
    """A push by a list, and its outcome."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcome: Outcome | None = None


class ListedWorkload:
    """Pushes to the table, and checks what is read from it."""

    def __init__(self, consistency: Consistency, random: Random) -> None:
        codec = CODEC if random.random() < ENCODED else ""
        self.spec = TableSpec(
            NAME,
            kind="sparse",
            codec=codec,
            server_codec=codec,
            access=Access("sum"),
            consistency=consistency,
            merge="sum",
            key_lists="cached",
        )
        self._numbers = np.array(POWERS if codec else PRIMES)
        self._lists: list[np.ndarray] = []
        for _ in range(0, LISTS, 2):  # two begin alike, and are as long
            first, *others = random.sample(range(len(PRIMES)), len(PRIMES))
            count = random.randint(1, MOST)
            for rest in (others, others[::-1]):
                self._lists.append(np.array([first, *rest][:count], np.uint64))
        self._pushes: list[ListedPush] = []

    def push(self, random: Random) -> tuple[PushOp, ListedPush]:
        """Return a push, and its record."""
        pushed = ListedPush(random.randrange(LISTS))
        self._pushes.append(pushed)
        keys = self._lists[pushed.number].copy()
        values = self._factors(keys).astype(np.float32)
        return PushOp(NAME, self.spec.keys, values.view(np.uint8).data, keys.data), pushed

    def pull(self, push: PushOp, random: Random) -> tuple[PullOp, np.ndarray]:
        """Return a pull, perhaps of the keys of a push, and its memory."""
        keys = push.keys
        if keys is None or random.random() >= SAME:
            keys = self._lists[random.randrange(LISTS)].copy().data
        rows = np.full(len(keys), np.nan, np.float32)
        return PullOp(NAME, self.spec.keys, rows.view(np.uint8).data, keys), rows

    def check_read(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Check `listed`: each row is a multiple of its key's number."""
        wrong = rows % self._factors(keys) != 0
        if wrong.any():
            text = f"keys {keys[wrong].tolist()} read {rows[wrong].tolist()}"
            raise violated("listed", f"{text}, which no push to them makes")

    def acknowledged(self, pushed: ListedPush, outcome: Outcome) -> None:
        """Record the outcome of the request with a push."""
        pushed.outcome = outcome

    def check_end(self, rows: Mapping[int, float], whole: bool) -> None:
        """Check `listed`: each row is the sum of the pushes by lists with its key.

        rows:   the rows by key
        whole:  whether all accepted pushes are in the rows
        """
        for key, factor in enumerate(self._numbers.tolist()):
            named = [each for each in self._pushes if key in self._lists[each.number]]
            sure = [each for each in named if each.outcome is not None and not each.outcome.error]
            count = rows.get(key, 0.0) / factor
            least = len(sure) if whole else 0
            if not least <= count <= len(named) or count % 1:
                text = f"key {key} has {count:g} of {len(named)} pushes, {len(sure)} acknowledged"
                raise violated("listed", text)

    def _factors(self, keys: np.ndarray) -> np.ndarray:
        return self._numbers[keys.astype(np.int64)]
