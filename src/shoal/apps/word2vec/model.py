"""Skip-gram and CBOW with negative sampling, on local copies of rows: compiled loops.

    for a word w and a neighbour c (or the mean of its neighbours), with noise words n:
    maximise log σ(in[c] · out[w]) + sum_n log σ(-in[c] · out[n])

Mikolov et al. 2013, "Distributed Representations of Words and Phrases and their Compositionality",
equation 4. As in word2vec.c, sums beyond ±6 cause no update and σ comes from a table.

A block of text is trained on rows that were pulled for it: those of its words, and those of a pool
of noise words, drawn once per block from the counts to the power of 3/4. Each noise word of each
pair is drawn from the pool, so that its distribution is the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from shoal.jit import U, kernel

MOST = 6.0  # bound of a sum, as in word2vec.c
TABLE = 1000
SIGMOID = (1 / (1 + np.exp(-(((np.arange(TABLE) + 0.5) * 2 / TABLE - 1) * MOST)))).astype(
    np.float32
)
POWER = 0.75


def noise_pool(cumulative: np.ndarray, size: int, random: np.random.Generator) -> np.ndarray:
    """Draw `size` noise words; `cumulative` is the running sum of counts to the power of 3/4."""
    draws = random.random(size) * cumulative[-1]
    found: np.ndarray = np.searchsorted(cumulative, draws, side="right").astype(np.int32)
    return found


def running_sum(counts: np.ndarray) -> np.ndarray:
    """Return the running sum of counts to the power of 3/4."""
    return np.cumsum(counts.astype(np.float64) ** POWER)


def subsampled(ids: np.ndarray, keep: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the text, with each word kept by its chance in `keep`."""
    chances = keep[ids]
    chances[ids < 0] = 1.0
    kept: np.ndarray = ids[random.random(len(ids), np.float32) < chances]
    return kept


def load_kernels(dim: int) -> None:
    """Compile the loops, or fetch them from disk, before there is work."""
    few, one = np.zeros((2, dim), np.float32), np.zeros(1, np.int32)
    train_block(np.array([0, 1], np.int32), few, few.copy(), one, 1, 1, 0.0, 0, False)


@partial(kernel, fastmath=True)
def train_block(
    ids: Any,
    inputs: Any,
    outputs: Any,
    pool: Any,
    window: Any,
    negative: Any,
    lr: Any,
    seed: Any,
    cbow: Any,
) -> None:
    """Train on a piece of text, in place.

    ids:      int32, the words as places in `inputs` and `outputs`; below 0 between sentences
    inputs:   (n, dim) float32; outputs: (m, dim), of which the first n are the same words
    pool:     int32, the noise words as places in `outputs`; their number is a power of two
    """
    dim, step, state = U(inputs.shape[1]), np.float32(lr), U(seed * 2 + 1)
    rows, others = inputs.reshape(-1), outputs.reshape(-1)
    mean, change = np.empty(dim, np.float32), np.empty(dim, np.float32)
    for at in range(ids.size):
        word = ids[at]
        if word < 0:
            continue
        state = state * U(6364136223846793005) + U(1442695040888963407)
        reach = window - np.int64((state >> U(33)) % U(window))
        first, last = at, at
        while first > 0 and at - first < reach and ids[first - 1] >= 0:
            first -= 1
        while last + 1 < ids.size and last - at < reach and ids[last + 1] >= 0:
            last += 1
        if first == last:
            continue
        if cbow:
            share = np.float32(1) / np.float32(last - first)
            mean[:] = 0
            for near in range(first, last + 1):
                if near != at:
                    row = U(ids[near]) * dim
                    for j in range(dim):
                        mean[j] += rows[row + j]
            for j in range(dim):
                mean[j] *= share
            state = _against(mean, others, word, pool, negative, step, state, change)
            for near in range(first, last + 1):
                if near != at:
                    row = U(ids[near]) * dim
                    for j in range(dim):
                        rows[row + j] += change[j]
            continue
        for near in range(first, last + 1):
            if near != at:
                row = U(ids[near]) * dim
                one = rows[row : row + dim]
                state = _against(one, others, word, pool, negative, step, state, change)
                for j in range(dim):
                    one[j] += change[j]


@partial(kernel, fastmath=True)
def _against(
    one: Any, outputs: Any, word: Any, pool: Any, negative: Any, lr: Any, state: Any, change: Any
) -> Any:
    """Train `outputs` on one input, a word and its noise; write the input's change to `change`."""
    dim, mask = U(one.size), U(pool.size - 1)
    for j in range(dim):
        change[j] = 0
    for k in range(negative + 1):
        target, label = word, np.float32(1)
        if k:
            state = state * U(6364136223846793005) + U(1442695040888963407)
            target, label = pool[(state >> U(33)) & mask], np.float32(0)
            if target == word:
                continue
        to = U(target) * dim
        total = np.float32(0)
        for j in range(dim):
            total += one[j] * outputs[to + j]
        if total >= MOST or total <= -MOST:
            continue
        place = np.int64((total + np.float32(MOST)) * np.float32(TABLE / MOST / 2))
        step = (label - SIGMOID[place]) * lr
        for j in range(dim):
            change[j] += step * outputs[to + j]
        for j in range(dim):
            outputs[to + j] += step * one[j]
    return state


def block_loss(
    ids: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, pool: np.ndarray, pairs: int = 200
) -> float:
    """Return the mean loss of a block's first pairs of neighbours, with five noise words each."""
    here = np.flatnonzero((ids[:-1] >= 0) & (ids[1:] >= 0))[:pairs]
    if not len(here):
        return 0.0
    one, other = inputs[ids[here]], outputs[ids[here + 1]]
    noise = outputs[pool[: 5 * len(here)]].reshape(len(here), -1, inputs.shape[1])
    true = np.einsum("ij,ij->i", one, other)
    false = np.einsum("ij,ikj->ik", one, noise)
    return float((np.logaddexp(0, -true) + np.logaddexp(0, false).sum(1)).mean())
