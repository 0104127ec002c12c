"""The initial values of rows: a function of the seed, the key and the column.

Large tables are filled in blocks that fit the processor's cache, by functions that release the
interpreter's lock: a server serves other tables meanwhile.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.keys import KeyRange, splitmix64
from shoal.tables.init import Init

mixed = splitmix64(np.uint64)

BLOCK = 1 << 15  # counters at a time
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))  # of SplitMix64


def fill(rows: Tensor, init: Init, held: KeyRange) -> None:
    """Write the initial values of keys `held` into `rows`, a pure function of (seed, key, column).

    The counter c = key * width + column goes through SplitMix64 (Steele et al. 2014, figure 16).
    Its upper 53 bits make a uniform number in [0, 1), two of them a normal one (Box and Muller
    1958). In a float32 table the counter c // 2 makes two normal numbers of one hash, whose upper
    32 bits are the radius and whose lower 32 bits are the angle: the cosine is the number of the
    even counter, the sine that of the odd one.
    """
    if init.kind == "zeros":
        rows.zero_()
    elif init.kind == "constant":
        rows.fill_(init.a)
    elif init.kind == "normal" and rows.dtype == torch.float32:
        _fill_normal32(rows.view(-1), init, held.start * rows.shape[1])
    else:
        _fill_by_element(rows.view(-1), init, held.start * rows.shape[1])


def stream_of(seed: int, number: int) -> np.uint64:
    """Return the offset of the counters of random stream `number` of a seed."""
    return np.uint64((seed * 2 + number) * 0x632BE59BD9B4E019 % (1 << 64))


def _fill_by_element(values: Tensor, init: Init, first: int) -> None:
    """Write random values, each from the hashes of its counter; the first counter is `first`."""
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        counters = np.arange(first + start, first + start + len(block), dtype=np.uint64)
        one = _uniform(counters, init.seed, 0)
        if init.kind == "uniform":
            drawn = init.a + (init.b - init.a) * one
        else:
            radius = np.sqrt(-2.0 * np.log1p(-one))
            drawn = init.a + init.b * radius * np.cos(2 * np.pi * _uniform(counters, init.seed, 1))
        block.copy_(torch.from_numpy(drawn))


def _uniform(counters: np.ndarray, seed: int, stream: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        z = counters + stream_of(seed, stream)
        z = mixed(z * _GOLDEN + _GOLDEN)
    uniform: np.ndarray = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform


def _fill_normal32(values: Tensor, init: Init, first: int) -> None:
    """Write normal float32 numbers, two from each hash; the first counter is `first`."""
    hashes, scratch = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    steps = np.arange(BLOCK, dtype=np.uint64) * _GOLDEN
    normal = NormalPairs(hashes)
    for pair in range(first // 2, (first + len(values) + 1) // 2, BLOCK):
        with np.errstate(over="ignore"):
            begin = (np.uint64(pair) + stream_of(init.seed, 0) + np.uint64(1)) * _GOLDEN
            np.add(steps, begin, out=hashes)
        _mix(hashes, scratch)
        drawn = normal.draw(init.b)
        at = 2 * pair - first  # the first number's index; -1 if it belongs to the row before
        block = values[max(at, 0) : at + 2 * BLOCK]
        skipped = max(-at, 0)
        torch.add(drawn[skipped : skipped + len(block)], init.a, out=block)


class NormalPairs:
    """Makes two normal float32 numbers from each hash, in memory that every call reuses.

    With the signed halves h and l of a hash: u = (|h| + 1/2) / 2^31 in (0, 1], which is fine near 0
    where the largest numbers come from; r = sqrt(-2 ln u), t = 2 pi l / 2^32; r cos t and r sin t.

    Args:
        hashes: the hashes, (n,) uint64; `draw` reads the values that they have then.
    """

    def __init__(self, hashes: np.ndarray) -> None:
        halves = torch.from_numpy(hashes.view(np.int32)).view(-1, 2)
        self._low, self._high = halves.unbind(1)
        self._radius, self._angle = torch.empty(2, len(hashes))
        self._drawn = torch.empty(len(hashes), 2)

    def draw(self, deviation: float) -> Tensor:
        """Return (2 n,) normal float32 numbers of mean 0, valid until the next call."""
        radius, angle = self._radius, self._angle
        radius.copy_(self._high).abs_().add_(0.5).mul_(2.0**-31)
        radius.log_().mul_(-2.0).sqrt_().mul_(deviation)
        angle.copy_(self._low).mul_(2.0 * np.pi * 2.0**-32)
        torch.mul(radius, torch.cos(angle), out=self._drawn[:, 0])
        torch.mul(radius, torch.sin(angle), out=self._drawn[:, 1])
        return self._drawn.view(-1)


def _mix(z: np.ndarray, scratch: np.ndarray) -> None:
    """Apply the last step of SplitMix64 in place."""
    for shift, factor in _STEPS:
        np.right_shift(z, np.uint64(shift), out=scratch)
        np.bitwise_xor(z, scratch, out=z)
        if factor != 1:
            np.multiply(z, np.uint64(factor), out=z)
