"""The workload of a table with optimizer state: order, weights and rates of pushes matter.

If pushes are applied at the end of rounds, table `model` has momentum and merges by weighted mean,
median or trimmed mean. Then each row is a function of the pushes in each round, with their weights
and rates; the reference below computes it from the pushes in the ledger. If pushes are applied on
arrival, the table does gradient descent with a rate per push, or with a schedule. Then each
fragment is a sum of whole updates in any order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, combinations, islice
from random import Random
from statistics import mean, median
from typing import Literal

import msgspec
import numpy as np

from shoal.keys import KeyRange
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import PullOp, PushOp
from shoal.simulation.checkers.history import Ledger, violated
from shoal.simulation.checkers.rounds import ClosedRounds
from shoal.tables.consistency import Consistency
from shoal.tables.spec import Access, TableSpec

ROWS, FRAGMENT = 8, 2
RATE, MOMENTUM = 0.5, 0.5
TRIM = 0.25
STEP_CLOCKS, GAMMA = 8, 0.5  # learning-rate schedule
UNCERTAIN_MOST = 8  # pushes with unknown outcome whose combinations are tried
SUBSETS_MOST = 1 << UNCERTAIN_MOST
TOLERANCE = 1e-9
Merge = Literal["mean", "median", "trimmed_mean"]
Shards = Mapping[int, tuple[np.ndarray, int]]  # by first row: rows, number of updates


class Pushed(msgspec.Struct, frozen=True):
    """A push with its worker's rank, weight and rate."""

    rank: int
    clock: int
    weight: float
    lr: float | None
    value: float


class OptimizerWorkload:
    """Pushes to the table, and checks its rows against the reference."""

    def __init__(self, consistency: Consistency, random: Random) -> None:
        self.exact = consistency.apply_at == "round_end"
        self._lockstep = self.exact and consistency.staleness == 0 and consistency.closes is None
        self._weighed = self.exact and consistency.closes is None
        self.scheduled = not self.exact and random.random() < 0.5
        self._merge: Merge = random.choice(list(MERGES)) if self.exact else "mean"
        options: dict[str, float | str] = {"lr": RATE}
        if self.exact:
            options["momentum"] = MOMENTUM
        if self.scheduled:
            options |= {"schedule": "step", "schedule_every": STEP_CLOCKS, "schedule_gamma": GAMMA}
        self.spec = TableSpec(
            "model",
            ROWS,
            dtype="float64",
            fragment_rows=FRAGMENT,
            access=Access("sgd", options),
            consistency=consistency,
            merge=self._merge,
            trim=TRIM if self._merge == "trimmed_mean" else 0.0,
        )
        self.pushed: dict[int, Pushed] = {}
        self._acknowledged: set[int] = set()
        self._reads: list[tuple[int, np.ndarray, bool]] = []
        self._weights: list[tuple[int, float]] = []
        self._split: set[int] = set()  # clocks with two requests of a worker
        self._unsure: set[int] = set()  # pushes that may never have been sent

    def push(self, key: int, rank: int, clock: int, random: Random) -> tuple[PushOp, Pushed]:
        """Return a push with its rate, and its record, which has the weight of the exchange."""
        value = 1.0 if self.scheduled else float(random.randint(1, 4))
        lr = None if self.scheduled else random.choice([None, 0.25, 1.0])
        pushed = Pushed(rank, clock, random.choice([1.0, 2.0, 4.0]), lr, value)
        self.pushed[key] = pushed
        values = np.full(ROWS, value, np.float64).view(np.uint8).data
        return PushOp("model", KeyRange(0, ROWS), values, lr=lr), pushed

    def split(self, clock: int) -> None:
        """Record that a worker sends two requests at a clock: its weight may count twice."""
        self._split.add(clock)

    def acknowledged(self, key: int, outcome: Outcome) -> None:
        """Record the outcome of the request with a push."""
        if outcome.error is None:
            self._acknowledged.add(key)
        elif self.pushed[key].clock in self._split:
            self._unsure.add(key)

    def pull(self) -> tuple[PullOp, np.ndarray]:
        rows = np.full(ROWS, np.nan, np.float64)
        return PullOp("model", KeyRange(0, ROWS), rows.view(np.uint8).data), rows

    def read(self, clock: int, rows: np.ndarray, round_weight: float, overlapped: bool) -> None:
        """Record the rows of a read at a clock, which is checked at the end.

        overlapped:  whether its worker advanced before the answer, so that the read may see one
                     more round
        """
        if np.isnan(rows).any():
            raise violated("order", f"a read at clock {clock} brought {rows.tolist()}")
        if self._lockstep:
            self._reads.append((clock, rows, overlapped))
        if self._weighed and clock > 0 and round_weight >= 0:
            self._weights.append((clock - 1, round_weight))

    # ------------------------------------------------------------------ the end

    def check_end(self, shards: Shards, counted: Collection[int], whole: bool) -> None:
        """Check `order` and `weights`: rows and the weights of rounds equal the reference.

        counted:  the keys of the pushes in the ledger
        whole:    whether all accepted pushes are in the rows
        """
        if not self.exact:
            self._check_arrivals(shards)
        elif whole:
            self._check_rounds(shards, counted)

    def check_merged(self, shards: Shards, closed: ClosedRounds, ledger: Ledger) -> None:
        """Check `order`: the rows of each fragment equal the reference of the rounds in it."""
        for first, (rows, updates) in shards.items():
            rounds = {
                merged.clock: [
                    self.pushed[ledger.key(each, merged.clock)] for each in sorted(merged.workers)
                ]
                for merged in closed.of("model", first)
            }
            end = self._reference(rounds)[-1][1]
            if updates != len(rounds) or not np.allclose(rows, end, rtol=TOLERANCE):
                text = f"rows from {first} are {rows.tolist()} after {updates} updates"
                raise violated("order", f"{text}, not {end} after {len(rounds)}")

    def _check_rounds(self, shards: Shards, counted: Collection[int]) -> None:
        counted = self.pushed.keys() & set(counted)
        unsure = sorted(counted & self._unsure)
        sizes = range(len(unsure) + 1)
        subsets = chain.from_iterable(combinations(unsure, size) for size in sizes)
        left_out = list(islice(subsets, SUBSETS_MOST))
        ends = [self._reference(self._rounds(counted - set(some)))[-1][1] for some in left_out]
        if len(unsure) > UNCERTAIN_MOST:  # a larger subset may be missing; all rows are without it
            ends.append(float(next(iter(shards.values()))[0][0]))
        for first, (rows, _) in shards.items():
            if not any(np.allclose(rows, end, rtol=TOLERANCE) for end in ends):
                raise violated("order", f"rows from {first} are {rows.tolist()}, not {ends[0]}")
        if not unsure:
            self._check_reads(self._rounds(counted))

    def _rounds(self, keys: Collection[int]) -> dict[int, list[Pushed]]:
        rounds: defaultdict[int, list[Pushed]] = defaultdict(list)
        for key in sorted(keys):
            rounds[self.pushed[key].clock].append(self.pushed[key])
        return rounds

    def _check_reads(self, rounds: Mapping[int, list[Pushed]]) -> None:
        states = self._reference(rounds)
        for clock, rows, overlapped in self._reads:
            before = [row for at, row in states if at <= clock][-1]
            after = [row for at, row in states if at <= clock + overlapped][-1]
            right = [np.isclose(rows, each, rtol=TOLERANCE) for each in (before, after)]
            if not np.logical_or(*right).all():
                text = f"a read at clock {clock} brought {rows.tolist()}, not {before}"
                raise violated("order", text)
        for clock, weight in self._weights:
            expected = sum(each.weight for each in rounds.get(clock, ()))
            if clock not in self._split and weight != expected:
                raise violated("weights", f"round {clock} weighs {weight:g}, not {expected:g}")

    def _reference(self, rounds: Mapping[int, list[Pushed]]) -> list[tuple[int, float]]:
        """Return (first clock of a reader that sees it, a row's value) after each round.

        The update of a round is the merged value, at the rate of the push of the lowest rank; of
        the earlier incarnation, where a worker and its successor have pushed in one round. `rounds`
        has pushes by incarnation.
        """
        row, velocity, states, first = 0.0, 0.0, [(0, 0.0)], True
        for clock in sorted(rounds):
            pushes = sorted(rounds[clock], key=lambda each: each.rank)
            merged = MERGES[self._merge](pushes)
            velocity = merged if first else MOMENTUM * velocity + merged
            row -= (RATE if pushes[0].lr is None else pushes[0].lr) * velocity
            states.append((clock + 1, row))
            first = False
        return states

    def _check_arrivals(self, shards: Shards) -> None:
        sure = [self.pushed[key] for key in self._acknowledged]
        open_ = [each for key, each in self.pushed.items() if key not in self._acknowledged]
        for first, (rows, updates) in shards.items():
            if not len(sure) <= updates <= len(self.pushed):
                text = f"rows from {first} had {updates} updates, of {len(sure)} acknowledged"
                raise violated("order", text)
            if self.scheduled:
                rates = (RATE * GAMMA ** (step // STEP_CLOCKS) for step in range(updates))
                sums = {-sum(rates)}
            elif len(open_) > UNCERTAIN_MOST:
                continue
            else:
                base = sum(map(_step, sure))
                extra = updates - len(sure)
                sums = {-(base + sum(map(_step, some))) for some in combinations(open_, extra)}
            if not all(any(np.isclose(row, each, rtol=TOLERANCE) for each in sums) for row in rows):
                raise violated("order", f"rows from {first} are {rows.tolist()}, not in {sums}")


def _step(pushed: Pushed) -> float:
    return pushed.value * (RATE if pushed.lr is None else pushed.lr)


def _mean(pushes: Sequence[Pushed]) -> float:
    return sum(p.weight * p.value for p in pushes) / sum(p.weight for p in pushes)


def _trimmed_mean(pushes: Sequence[Pushed]) -> float:
    values, out = sorted(p.value for p in pushes), int(TRIM * len(pushes))
    return mean(values[out : len(values) - out])


MERGES: Mapping[Merge, Callable[[Sequence[Pushed]], float]] = {
    "mean": _mean,
    "median": lambda pushes: median(p.value for p in pushes),
    "trimmed_mean": _trimmed_mean,
}
