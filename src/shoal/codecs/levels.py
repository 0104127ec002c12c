"""`levels`: any grid of one's own, between 0 and the largest value of a block."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np

from shoal.codecs.base import Codec, Given, option
from shoal.codecs.grids import Block
from shoal.codecs.kernels import (
    BLOCK,
    INFINITE,
    LARGEST,
    SMALL,
    F,
    blocks_bytes,
    draw,
    float_of,
    get_float,
    load,
    pack,
    packed_size,
    part,
    put_float,
    unpack,
    valid,
)
from shoal.jit import U, kernel, mixed

LEVELS_MOST = 128  # a code has a sign and 7 bits
Grid = Annotated[str, option("levels from 0 upwards, with commas: their proportions count")]
Rounding = Annotated[
    Literal["random", "nearest"], option("to one of two neighbours at random, or to the nearest")
]


# fmt: off
class Levels(Codec, frozen=True):
    """A sign and the number of a level, in units of each block's largest magnitude.

    With 0 = l_0 < l_1 < ... < l_n and s the largest magnitude of a block, u = l_n |x| / s lies
    between two levels l_j and l_(j+1)::

        P(l_(j+1)) = (u - l_j) / (l_(j+1) - l_j)        E[sign(x) l s / l_n] = x

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("levels:0,1,3,10").nbytes(1024)
        392
    """

    argument = "grid"
    name = "levels"
    summary = "the levels of a grid of one's own, at random between two neighbours"
    source = "Alistarh 2017, section 3.1, with any levels"
    draws = True

    grid: Grid = "0,1,2,4"
    round: Rounding = "random"
    block: Block = BLOCK
    # fmt: on

    def __post_init__(self) -> None:
        levels = levels_of(self.grid)
        rising = all(one < other for one, other in pairwise(levels))
        if not 2 <= len(levels) <= LEVELS_MOST or levels[0] != 0 or not rising:
            raise ValueError(
                f"a grid has 2 to {LEVELS_MOST} rising numbers from 0, with commas between them, "
                f"not {self.grid!r}"
            )

    @property
    def biased(self) -> bool:
        return self.round == "nearest"

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return 1 + (len(levels_of(self.grid)) - 1).bit_length()

    def nbytes(self, count: int) -> int:
        return blocks_bytes(count, self.block, self.bits, 4)

    def _encode(self, values: Given, into: np.ndarray) -> int:
        given = self.block, self.bits, levels_of(self.grid), self.biased, values.key, values.first
        return int(_encode(*values[:3], into, *given))

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return int(_decode(data, into, self.block, self.bits, levels_of(self.grid)))


@lru_cache(64)
def levels_of(grid: str) -> np.ndarray:
    """Return the levels of a grid, the highest of which is 1; none if it is no list of numbers.

    >>> levels_of("0,1,2,4").tolist()
    [0.0, 0.25, 0.5, 1.0]
    """
    try:
        levels = np.array([float(each) for each in grid.split(",")])
    except ValueError:
        return np.empty(0, np.float32)
    if not np.isfinite(levels).all() or levels[-1] <= 0:
        return np.empty(0, np.float32)
    whole: np.ndarray = (levels / levels[-1]).astype(np.float32)
    return whole


@kernel
def _encode(
    values: Any,
    residual: Any,
    gain: Any,
    out: Any,
    block: Any,
    bits: Any,
    levels: Any,
    nearest: Any,
    key: Any,
    first: Any,
) -> Any:
    x, codes = np.empty(block, np.float32), np.empty(block, np.uint8)
    draws = np.empty(block, np.int32)
    count, at = values.size, 0
    for start in range(0, count, block):
        stop = min(count, start + block)
        some, of = x[: stop - start], codes[: stop - start]
        left = part(residual, start, stop)
        top = load(values[start:stop], left, gain, some)
        if top >= INFINITE:
            return start
        scale = float_of(top)
        if scale < SMALL:
            scale = F(0)
        put_float(out, at, scale)
        at += 4
        if not nearest:
            draw(mixed(key + mixed(first + U(start))), draws, stop - start)
        _choose(some, scale, levels, np.uint8(1 << (bits - 1)), nearest, draws, of, left)
        size = packed_size(stop - start, bits)
        pack(of, bits, out[at : at + size])
        at += size
    return -1


@kernel
def _choose(
    x: Any, scale: Any, levels: Any, sign: Any, nearest: Any, draws: Any, codes: Any, residual: Any
) -> None:
    inverse = F(1) / scale if scale > F(0) else F(0)
    for i in range(U(x.size)):
        size = F(abs(x[i]) * inverse)
        level: Any = 0
        while level < levels.size - 2 and levels[level + 1] <= size:
            level += 1
        below, above = levels[level], levels[level + 1]
        where = F(F(size - below) / F(above - below))
        chance = F(0.5) if nearest else F(F(draws[i]) * F(1 / 65536) + F(0.5 / 65536))
        level += where > chance
        codes[i] = np.uint8(level) | (sign if x[i] < F(0) else np.uint8(0))
        if residual.size:
            value = F(levels[level] * scale)
            residual[i] = x[i] + value if x[i] < F(0) else x[i] - value


@kernel
def _decode(data: Any, into: Any, block: Any, bits: Any, levels: Any) -> Any:
    codes = np.empty(block, np.uint8)
    count, at = into.size, 0
    sign = np.uint8(1 << (bits - 1))
    for start in range(0, count, block):
        stop = min(count, start + block)
        of, some = codes[: stop - start], into[start:stop]
        scale = get_float(data, at)
        at += 4
        if not valid(scale, LARGEST):
            return start
        size = packed_size(stop - start, bits)
        unpack(data[at : at + size], bits, of)
        at += size
        for i in range(U(of.size)):
            level = np.uint8(of[i] & np.uint8(sign - np.uint8(1)))
            if level >= levels.size:
                return start
            value = F(levels[level] * scale)
            some[i] = -value if of[i] & sign else value
    return -1
