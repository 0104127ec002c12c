"""One or two bits a value: `onebit`, `sign` and `ternary`."""

from __future__ import annotations

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


class OneBit(Codec, frozen=True):
    """Replace the values >= 0 of a block by their mean, and those below 0 by theirs.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("onebit").nbytes(1024)
        144
    """

    name = "onebit"
    summary = "the sign; values are the means of a block's values of that sign"
    source = "Seide 2014, section 3"

    block: Block = BLOCK

    @property
    def biased(self) -> bool:
        return True

    def nbytes(self, count: int) -> int:
        return blocks_bytes(count, self.block, 1, 8)

    def _encode(self, values: Given, into: np.ndarray) -> int:
        return int(_encode_signs(*values[:3], into, self.block, False, True))

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return int(_decode_signs(data, into, self.block, False, True))


# fmt: off
class Sign(Codec, frozen=True):
    """Replace each value by its sign, +1 or -1 (0 is +1), or by that times a block's mean |x|.

    With `merge="median"` servers take the vote of the majority.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("sign").nbytes(1024), codec_of("sign:scale=mean").nbytes(1024)
        (128, 136)
    """

    name = "sign"
    summary = "the sign, as +1 or -1, or times the mean magnitude of a block"
    source = "Bernstein 2018, algorithm 3; scale=mean: Karimireddy 2019, algorithm 1"

    scale: Annotated[Literal["one", "mean"], option("one, or a block's mean magnitude")] = "one"
    block: Block = BLOCK
    # fmt: on

    @property
    def biased(self) -> bool:
        return self.scale == "mean"  # a residual of votes would mean nothing

    def nbytes(self, count: int) -> int:
        return blocks_bytes(count, self.block, 1, 4 if self.scale == "mean" else 0)

    def _encode(self, values: Given, into: np.ndarray) -> int:
        given = self.block, self.scale == "one", False
        return int(_encode_signs(*values[:3], into, *given))

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return int(_decode_signs(data, into, self.block, self.scale == "one", False))


# fmt: off
class Ternary(Codec, frozen=True):
    """Replace x by s sign(x) with the chance |x| / s, else by 0; s = max |x| of a block.

    The mean is x, and the variance |x| (s - |x|). With `fit` rounds of alternating least squares
    instead: 0 where |x| < s / 2, and s the mean |x| of the others.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("ternary").nbytes(1024)
        264
    """

    name = "ternary"
    summary = "-s, 0 or s at random, unbiased; or fitted to a block"
    source = "Wen 2017, section 3.1; fit: Hou 2018, section 3.1"
    draws = True

    fit: Annotated[int, option("rounds of least squares; 0: at random", ge=0, le=100)] = 0
    block: Block = BLOCK
    # fmt: on

    @property
    def biased(self) -> bool:
        return self.fit > 0

    def nbytes(self, count: int) -> int:
        return blocks_bytes(count, self.block, 2, 4)

    def _encode(self, values: Given, into: np.ndarray) -> int:
        given = self.block, self.fit, values.key, values.first
        return int(_encode_ternary(*values[:3], into, *given))

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return int(_decode_ternary(data, into, self.block))


@kernel
def _encode_signs(
    values: Any, residual: Any, gain: Any, out: Any, block: Any, unit: Any, two: Any
) -> Any:
    """Encode signs: with the scale 1 (`unit`), a block's mean, or (`two`) the mean of each sign."""
    x, codes = np.empty(block, np.float32), np.empty(block, np.uint8)
    count, at = values.size, 0
    for start in range(0, count, block):
        stop = min(count, start + block)
        some, of = x[: stop - start], codes[: stop - start]
        left = part(residual, start, stop)
        if load(values[start:stop], left, gain, some) >= INFINITE:
            return start
        above = below = F(1)
        if not unit:
            above, below = _means(some, two)
            put_float(out, at, above)
            at += 4
        if two:
            put_float(out, at, below)
            at += 4
        _codes(some, of)
        if left.size:
            _keep(some, above, below, left)
        size = packed_size(stop - start, 1)
        pack(of, 1, out[at : at + size])
        at += size
    return -1


def _sums(x: Any, scaled: Any) -> Any:
    """Return the sums of scaled values >= 0 and of those below, and how many the first are."""
    high, low, number = F(0), F(0), np.int32(0)
    for i in range(U(x.size)):
        value = F(x[i] * scaled)
        high += max(value, F(0))
        low += max(-value, F(0))
        number += np.int32(1) if value >= F(0) else np.int32(0)
    return high, low, number


_vector_sums = kernel(_sums, fastmath={"reassoc"})  # vector instructions add in another order


@kernel
def _means(x: Any, two: Any) -> Any:
    """Return the mean magnitude of the values >= 0 and of those below, or of all.

    Each value is divided by their number first, so that the sums are finite.
    """
    total = F(x.size)
    high, low, number = _vector_sums(x, F(1) / total)
    if not two:
        return F(high + low), F(high + low)
    others = np.int32(x.size) - number
    above = min(F(high * (total / F(number))), LARGEST) if number else F(0)
    below = min(F(low * (total / F(others))), LARGEST) if others else F(0)
    return above, below


@kernel
def _codes(x: Any, codes: Any) -> None:
    for i in range(U(x.size)):
        codes[i] = np.uint8(1) if x[i] >= F(0) else np.uint8(0)


@kernel
def _keep(x: Any, above: Any, below: Any, residual: Any) -> None:
    for i in range(U(x.size)):
        residual[i] = x[i] - (above if x[i] >= F(0) else -below)


@kernel
def _decode_signs(data: Any, into: Any, block: Any, unit: Any, two: Any) -> Any:
    codes = np.empty(block, np.uint8)
    count, at = into.size, 0
    for start in range(0, count, block):
        stop = min(count, start + block)
        of, some = codes[: stop - start], into[start:stop]
        above = F(1)
        if not unit:
            above = get_float(data, at)
            at += 4
        below = above
        if two:
            below = get_float(data, at)
            at += 4
        if not (valid(above, LARGEST) and valid(below, LARGEST)):
            return start
        size = packed_size(stop - start, 1)
        unpack(data[at : at + size], 1, of)
        at += size
        for i in range(U(of.size)):
            some[i] = above if of[i] else -below
    return -1


@kernel
def _encode_ternary(
    values: Any, residual: Any, gain: Any, out: Any, block: Any, fit: Any, key: Any, first: Any
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
        if fit and scale > F(0):
            scale = _fitted(some, scale, fit)
            for i in range(U(some.size)):
                code = np.uint8(2) if some[i] < F(0) else np.uint8(1)
                of[i] = code if abs(some[i]) > F(0.5) * scale else np.uint8(0)
        else:
            inverse = F(65536) / scale if scale > F(0) else F(0)
            draw(mixed(key + mixed(first + U(start))), draws, stop - start)
            for i in range(U(some.size)):
                code = np.uint8(2) if some[i] < F(0) else np.uint8(1)
                chosen = F(abs(some[i]) * inverse) > F(F(draws[i]) + F(0.5))
                of[i] = code if chosen else np.uint8(0)
        put_float(out, at, scale)
        at += 4
        if left.size:
            for i in range(U(some.size)):
                left[i] = some[i] - _ternary_value(of[i], scale)
        size = packed_size(stop - start, 2)
        pack(of, 2, out[at : at + size])
        at += size
    return -1


@kernel
def _fitted(x: Any, top: Any, rounds: Any) -> Any:
    """Return the scale that alternating least squares find; values are divided by the largest."""
    inverse, scale = F(1) / top, F(0)
    for i in range(U(x.size)):
        scale += abs(x[i]) * inverse
    scale = F(scale / F(x.size))
    for _ in range(rounds):
        total, number = F(0), 0
        for i in range(U(x.size)):
            size = F(abs(x[i]) * inverse)
            if size > F(0.5) * scale:
                total += size
                number += 1
        scale = F(total / F(number)) if number else scale
    return F(min(scale, F(1)) * top)


@kernel
def _ternary_value(code: Any, scale: Any) -> Any:
    return scale * F(np.int32(code & np.uint8(1)) - np.int32(code >> np.uint8(1)))


@kernel
def _decode_ternary(data: Any, into: Any, block: Any) -> Any:
    codes = np.empty(block, np.uint8)
    count, at = into.size, 0
    for start in range(0, count, block):
        stop = min(count, start + block)
        of, some = codes[: stop - start], into[start:stop]
        scale = get_float(data, at)
        if not valid(scale, LARGEST):
            return start
        size = packed_size(stop - start, 2)
        unpack(data[at + 4 : at + 4 + size], 2, of)
        at += 4 + size
        most = np.uint8(0)
        for i in range(U(of.size)):
            most = max(most, of[i])
        if most > np.uint8(2):
            return start
        for i in range(U(of.size)):
            some[i] = _ternary_value(of[i], scale)
    return -1
