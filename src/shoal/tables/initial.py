"""What rows are before their first update: a function of the seed, the key and the column."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.keys import KeyRange, splitmix64
from shoal.tables.spec import Init

mixed = splitmix64(np.uint64)


def fill(rows: Tensor, init: Init, held: KeyRange) -> None:
    """Write the initial values of keys `held` into `rows`, a pure function of (seed, key, column).

    The counter (key * width + column) goes through SplitMix64 (Steele et al. 2014, figure 16);
    its upper 53 bits make a uniform number in [0, 1), two of them a normal one (Box and Muller).
    """
    if init.kind == "zeros":
        rows.zero_()
        return
    if init.kind == "constant":
        rows.fill_(init.a)
        return
    width = rows.shape[1]
    counters = np.arange(held.start * width, held.stop * width, dtype=np.uint64)
    first = _uniform(counters, init.seed, 0)
    if init.kind == "uniform":
        values = init.a + (init.b - init.a) * first
    else:
        second = _uniform(counters, init.seed, 1)
        radius = np.sqrt(-2.0 * np.log1p(-first))
        values = init.a + init.b * radius * np.cos(2.0 * np.pi * second)
    rows.copy_(torch.from_numpy(values).view(rows.shape))


def stream_of(seed: int, number: int) -> np.uint64:
    """What the counters of a seed's random stream begin at."""
    return np.uint64((seed * 2 + number) * 0x632BE59BD9B4E019 % (1 << 64))


def _uniform(counters: np.ndarray, seed: int, stream: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        z = counters + stream_of(seed, stream)
        z = mixed(z * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15))
    uniform: np.ndarray = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform
