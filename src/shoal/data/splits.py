"""The assignment of samples to workers.

A *split* is one worker's share of the samples, as an array of indices. The plan is a pure function
of its seed, so every process computes it on its own and nothing about data has to be sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.errors import InvalidValue
from shoal.keys import split_evenly

Indices = npt.NDArray[np.int64]

ASSIGNMENT_FORMS = "'iid', 'noniid' or 'static:W,W,...' with one whole weight per worker"


@dataclass(frozen=True)
class Assignment:
    """The rule by which samples are assigned to workers.

    `iid`: at random; `noniid`: in runs of equal labels, so that a worker sees few classes;
    `static`: at random, in proportion to `weights`.

    >>> Assignment.parse("static:2,1,1")
    Assignment(kind='static', weights=(2, 1, 1))
    >>> str(Assignment.parse("static:2,1,1"))
    'static:2,1,1'
    """

    kind: Literal["iid", "noniid", "static"] = "iid"
    weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("iid", "noniid", "static"):
            raise InvalidValue(f"unknown assignment {self.kind!r}: give {ASSIGNMENT_FORMS}")
        if self.kind != "static" and self.weights:
            raise InvalidValue(f"assignment {self.kind} takes no weights: give {ASSIGNMENT_FORMS}")
        if self.kind == "static" and (min(self.weights, default=-1) < 0 or not any(self.weights)):
            raise InvalidValue(
                f"assignment weights {list(self.weights)} must be >= 0 and not all 0:"
                f" give {ASSIGNMENT_FORMS}"
            )

    @classmethod
    def parse(cls, text: str) -> Assignment:
        """Return the assignment that `text` spells, in the form of its `str()`."""
        kind, colon, tail = text.strip().partition(":")
        if kind == "iid" and not colon:
            return cls("iid")
        if kind == "noniid" and not colon:
            return cls("noniid")
        if kind == "static" and colon:
            parts = [part.strip() for part in tail.split(",")]
            if all(part.isascii() and part.isdigit() for part in parts):
                return cls("static", tuple(int(part) for part in parts))
        raise InvalidValue(f"unknown assignment {text!r}: give {ASSIGNMENT_FORMS}")

    def __str__(self) -> str:
        return f"static:{','.join(map(str, self.weights))}" if self.weights else self.kind


def plan_splits(
    labels: npt.NDArray[Any],
    workers: int,
    *,
    assignment: Assignment,
    block_size: int,
    redundancy: int,
    seed: int,
) -> list[Indices]:
    """Cut the samples into one split per worker.

    The samples are put in a seeded order (`noniid`: by label, ties at random), the order is cut
    into blocks of `block_size` (the last may be shorter), and each block goes to `redundancy`
    distinct workers. Workers hold equal numbers of blocks, or numbers in proportion to their
    weights, to within one block. With redundancy 1 the splits are disjoint; they are always
    complete.

    Args:
        labels: the label of each sample, shape (n,); only `noniid` looks at the values.
        workers: the number of splits to make.
        assignment: the rule by which samples are assigned.
        block_size: the samples that are dealt together, 1 <= block_size <= n.
        redundancy: the distinct workers that hold each block, 1 <= redundancy <= workers.
        seed: the seed; the plan is a pure function of it and of the other arguments.

    Returns:
        `workers` arrays of sample indices.

    Raises:
        InvalidValue: an argument is out of its range, or a worker would be left with nothing
            (a static weight of 0 asks for that, and is obeyed).

    >>> splits = plan_splits(np.array([1, 0, 1, 0]), 2, assignment=Assignment("noniid"),
    ...                      block_size=1, redundancy=1, seed=0)
    >>> [sorted(split.tolist()) for split in splits]
    [[1, 3], [0, 2]]
    """
    _check_plan(labels, workers, assignment, block_size, redundancy, seed)
    samples = len(labels)
    order = seeded(SPLIT_STREAM, seed).permutation(samples).astype(np.int64)
    if assignment.kind == "noniid":
        order = order[np.argsort(labels[order], kind="stable")]
    blocks = [order[start : start + block_size] for start in range(0, samples, block_size)]
    if assignment.kind == "iid":
        blocks = [block for first in range(workers) for block in blocks[first::workers]]

    shares = _shares(len(blocks), workers, assignment, redundancy)
    wanting = [
        rank
        for rank, share in enumerate(shares)
        if share == 0 and (assignment.kind != "static" or assignment.weights[rank])
    ]
    if wanting:
        raise InvalidValue(
            f"{samples} samples in blocks of {block_size} make {len(blocks)} blocks, which leaves"
            f" nothing for {len(wanting)} of {workers} workers: give a smaller block size"
        )
    # The workers' shares are laid end to end along `redundancy` rounds through all the blocks.
    # No share is longer than a round, so that no worker meets a block twice; and every block is
    # passed once a round. With one round this is: round robin (iid), contiguous (noniid).
    splits, start = [], 0
    for share in shares:
        mine = [blocks[slot % len(blocks)] for slot in range(start, start + share)]
        splits.append(np.concatenate(mine) if mine else np.empty(0, dtype=np.int64))
        start += share
    return splits


def _check_plan(
    labels: npt.NDArray[Any],
    workers: int,
    assignment: Assignment,
    block_size: int,
    redundancy: int,
    seed: int,
) -> None:
    if labels.ndim != 1 or len(labels) == 0:
        raise InvalidValue(f"splits need labels of shape (n,) with n >= 1, not {labels.shape}")
    if workers < 1:
        raise InvalidValue(f"splits need at least 1 worker, not {workers}")
    if not 1 <= block_size <= len(labels):
        raise InvalidValue(
            f"block size {block_size} is out of range: 1 to {len(labels)}, the number of samples "
            "(--block-size)"
        )
    if not 1 <= redundancy <= workers:
        raise InvalidValue(
            f"redundancy {redundancy} is out of range: 1 to {workers}, the number of workers"
        )
    if seed < 0:
        raise InvalidValue(f"seed {seed} must be >= 0")
    if assignment.kind != "static":
        return
    if len(assignment.weights) != workers:
        raise InvalidValue(
            f"assignment {assignment} has {len(assignment.weights)} weights"
            f" for {workers} workers: give one per worker"
        )
    able = sum(weight > 0 for weight in assignment.weights)
    if redundancy > able:
        raise InvalidValue(
            f"redundancy {redundancy} needs as many workers with a weight above 0,"
            f" but assignment {assignment} has {able}"
        )


def _shares(blocks: int, workers: int, assignment: Assignment, redundancy: int) -> list[int]:
    """Return the number of blocks that each worker holds; none holds more than there are."""
    if assignment.kind == "static":
        return _proportional(blocks * redundancy, assignment.weights, most=blocks)
    return [len(part) for part in split_evenly(blocks * redundancy, workers)]


def _proportional(total: int, weights: Sequence[int], *, most: int) -> list[int]:
    """Divide `total` in proportion to `weights` by largest remainder, no part above `most`.

    >>> _proportional(8, [3, 1, 1], most=4)
    [4, 2, 2]
    """
    parts = [0] * len(weights)
    open_ranks = [rank for rank, weight in enumerate(weights) if weight]
    while total and open_ranks:
        scale = sum(weights[rank] for rank in open_ranks)
        full = [rank for rank in open_ranks if total * weights[rank] >= most * scale]
        if not full:
            break
        # A part that would overflow is fixed at the most, and the rest is shared out again.
        for rank in full:
            parts[rank] = most
            open_ranks.remove(rank)
        total -= most * len(full)
    if not open_ranks:
        return parts
    for rank in open_ranks:
        parts[rank] = total * weights[rank] // scale
    left = total - sum(parts[rank] for rank in open_ranks)
    by_remainder = sorted(open_ranks, key=lambda rank: (-(total * weights[rank] % scale), rank))
    for rank in by_remainder[:left]:
        parts[rank] += 1
    return parts


# Each use of a seed draws from a stream of its own: a split and a shuffle from the same seed must
# not be correlated.
SPLIT_STREAM, BATCH_STREAM, SAMPLER_STREAM = 1, 2, 3


def seeded(stream: int, *words: int) -> np.random.Generator:
    """Return the generator of one use of a seed; all words are >= 0."""
    return np.random.default_rng((stream, *words))
