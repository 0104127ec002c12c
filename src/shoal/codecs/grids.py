"""Uniform grids: `int` rounds to the nearest level, `qsgd` at random so that the mean is exact."""

from __future__ import annotations

from math import sqrt
from typing import Annotated, Any, Literal

import numpy as np

from shoal.codecs.base import Codec, Given, option
from shoal.codecs.kernels import (
    BLOCK,
    HIGHEST,
    ROUND,
    ROUND_BITS,
    SMALL,
    F,
    bits_of,
    blocks_bytes,
    draw,
    float_of,
    get_step,
    load,
    most_step,
    pack,
    packed_size,
    part,
    put_float,
    put_step,
    unpack,
    valid,
)
from shoal.jit import U, kernel, mixed

Block = Annotated[int, option("values that share a scale", ge=8, le=4096, multiple_of=8)]
SCALE_BYTES = {"float": 4, "power": 1}


class _Grid(Codec, frozen=True):
    """Values of a block become x / s, rounded to integers from -L to L: L = 2^(bits - 1) - 1."""

    @property
    def largest(self) -> float:
        return float(2.0**126)


# fmt: off
class Int(_Grid, frozen=True):
    """Round x / s to the nearest integer, s = max |x| / L of each block.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("int:8").nbytes(1024), codec_of("int:4").nbytes(1024)
        (1032, 520)
    """

    stateless = True
    name = "int"
    argument = "bits"
    summary = "rounds to the nearest of 2^bits - 1 levels in blocks with a scale each"
    source = "Rouhani 2023, section 3 (scale=power:block=32: MXINT8)"

    bits: Annotated[Literal[4, 8], option("bits of a value: 4 or 8")] = 8
    scale: Annotated[Literal["float", "power"], option("float, or power (of two)")] = "float"
    block: Block = BLOCK
    # fmt: on

    @property
    def biased(self) -> bool:
        return True

    def nbytes(self, count: int) -> int:
        return blocks_bytes(count, self.block, self.bits, SCALE_BYTES[self.scale])

    def _encode(self, values: Given, into: np.ndarray) -> int:
        power = self.scale == "power"
        return int(_nearest(*values[:3], into, self.block, self.bits, power))

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return int(_decode(data, into, self.block, self.bits, self.scale == "power"))


# fmt: off
class QSGD(_Grid, frozen=True):
    """Round x / s up or down at random, so that the mean is x; s = norm(x) / L of each block.

    The variance of a block of d values is at most min(d / L^2, sqrt(d) / L) ||x||^2 with the norm
    l2, and at most d / (4 L^2) max^2 with the norm max.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("qsgd:4").nbytes(1024)
        520
    """

    stateless = True
    name = "qsgd"
    argument = "bits"
    summary = "rounds at random to 2^bits - 1 levels in blocks with a scale each; unbiased"
    source = "Alistarh 2017, section 3.1; norm max: section 4"
    draws = True

    bits: Annotated[int, option("bits of a value", ge=2, le=8)] = 4
    norm: Annotated[Literal["max", "l2"], option("the norm that is the highest level")] = "max"
    block: Block = BLOCK
    # fmt: on

    @property
    def biased(self) -> bool:
        return False

    def nbytes(self, count: int) -> int:
        return blocks_bytes(count, self.block, self.bits, 4)

    def _encode(self, values: Given, into: np.ndarray) -> int:
        given = self.block, self.bits, self.norm == "l2", values.key, values.first
        return int(_stochastic(*values[:3], into, *given))

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return int(_decode(data, into, self.block, self.bits, False))


@kernel
def _nearest(
    values: Any, residual: Any, gain: Any, out: Any, block: Any, bits: Any, power: Any
) -> Any:
    x, codes = np.empty(block, np.float32), np.empty(block, np.uint8)
    levels, count, at = (1 << (bits - 1)) - 1, values.size, 0
    up = np.int32(levels) - ROUND_BITS
    for start in range(0, count, block):
        stop = min(count, start + block)
        some, of = x[: stop - start], codes[: stop - start]
        left = part(residual, start, stop)
        top = load(values[start:stop], left, gain, some)
        if top > HIGHEST:
            return start
        step = F(float_of(top) / F(levels))
        if step < SMALL:
            step = F(0)
        step, at = put_step(out, at, step, power)
        inverse = F(1) / step if step > F(0) else F(0)
        _round_nearest(some, inverse, step, up, left, of)
        size = packed_size(stop - start, bits)
        pack(of, bits, out[at : at + size])
        at += size
    return -1


@kernel
def _round_nearest(x: Any, inverse: Any, step: Any, up: Any, residual: Any, codes: Any) -> None:
    if residual.size:
        for i in range(U(x.size)):
            rounded = F(x[i] * inverse + ROUND)
            residual[i] = x[i] - (rounded - ROUND) * step
            codes[i] = np.uint8(np.int32(bits_of(rounded) + up))
    else:
        for i in range(U(x.size)):
            codes[i] = np.uint8(np.int32(bits_of(F(x[i] * inverse + ROUND)) + up))


@kernel
def _stochastic(
    values: Any,
    residual: Any,
    gain: Any,
    out: Any,
    block: Any,
    bits: Any,
    l2: Any,
    key: Any,
    first: Any,
) -> Any:
    x, codes = np.empty(block, np.float32), np.empty(block, np.uint8)
    draws = np.empty(block, np.int32)
    levels, count, at = (1 << (bits - 1)) - 1, values.size, 0
    for start in range(0, count, block):
        stop = min(count, start + block)
        some, of = x[: stop - start], codes[: stop - start]
        left = part(residual, start, stop)
        top = load(values[start:stop], left, gain, some)
        if top > HIGHEST:
            return start
        step = F(float_of(top) / F(levels))
        if l2 and step >= SMALL:
            step = min(F(step * _norm(some, F(1) / float_of(top))), most_step(levels))
        if step < SMALL:
            step = F(0)
        put_float(out, at, step)
        at += 4
        inverse = F(1) / step if step > F(0) else F(0)
        draw(mixed(key + mixed(first + U(start))), draws, stop - start)
        _round_at_random(some, inverse, np.int32(levels), draws, of)
        if left.size:
            _keep(some, of, step, np.int32(levels), left)
        size = packed_size(stop - start, bits)
        pack(of, bits, out[at : at + size])
        at += size
    return -1


@kernel
def _norm(x: Any, inverse: Any) -> Any:
    """Return the l2 norm of values divided by the largest magnitude: the squares stay finite."""
    total = F(0)
    for i in range(U(x.size)):
        scaled = F(x[i] * inverse)
        total = F(total + scaled * scaled)
    return F(sqrt(total))


@kernel
def _round_at_random(x: Any, inverse: Any, levels: Any, draws: Any, codes: Any) -> None:
    for i in range(U(x.size)):
        chance = F(F(draws[i]) * F(1 / 65536) + F(0.5 / 65536 - 0.5))
        rounded = np.int32(bits_of(F(F(x[i] * inverse + chance) + ROUND)) - ROUND_BITS)
        rounded = min(max(rounded, np.int32(-levels)), levels)
        codes[i] = np.uint8(np.int32(rounded + levels))


@kernel
def _keep(x: Any, codes: Any, step: Any, levels: Any, residual: Any) -> None:
    for i in range(U(x.size)):
        residual[i] = x[i] - F(np.int32(codes[i]) - levels) * step


@kernel
def _decode(data: Any, into: Any, block: Any, bits: Any, power: Any) -> Any:
    codes = np.empty(block, np.uint8)
    levels, count, at = np.int32((1 << (bits - 1)) - 1), into.size, 0
    for start in range(0, count, block):
        stop = min(count, start + block)
        of, some = codes[: stop - start], into[start:stop]
        step, at = get_step(data, at, power)
        if not valid(step, most_step(levels)):
            return start
        size = packed_size(stop - start, bits)
        unpack(data[at : at + size], bits, of)
        at += size
        most = np.uint8(0)
        for i in range(U(of.size)):
            most = max(most, of[i])
        if np.int32(most) > np.int32(2) * levels:
            return start
        for i in range(U(of.size)):
            some[i] = F(np.int32(np.int32(of[i]) - levels)) * step
    return -1
