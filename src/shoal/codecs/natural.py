"""`natural`: sign and exponent, rounded at random to a power of two."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from shoal.codecs.base import Codec, Given, option
from shoal.codecs.grids import Block
from shoal.codecs.kernels import (
    BLOCK,
    MAGNITUDE,
    F,
    bits_of,
    blocks_bytes,
    draw,
    float_of,
    load,
    pack,
    packed_size,
    part,
    unpack,
)
from shoal.jit import U, kernel, mixed

ONE = np.int32(1 << 23)  # one exponent, in the bits of a float32


# fmt: off
class Natural(Codec, frozen=True):
    """Round |x| in [2^e, 2^(e+1)) to one of the two, at random, so that the mean is x.

    A block has K = 2^(bits - 1) - 1 exponents, up to that of its maximum, and 0; below the least
    one 2^m a value becomes 0 or 2^m. Where |x| >= 2^m the variance is at most x^2 / 8.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("natural:8").nbytes(1024), codec_of("natural:4").nbytes(1024)
        (1026, 514)
    """

    name = "natural"
    argument = "bits"
    summary = "sign and exponent, rounded at random to a power of two; unbiased"
    source = "Horvath 2019, section 2; 4 bits: Douillard 2025, section 2.3"
    draws = True

    bits: Annotated[int, option("bits of a value", ge=2, le=8)] = 8
    block: Block = BLOCK
    # fmt: on

    @property
    def biased(self) -> bool:
        return False

    def nbytes(self, count: int) -> int:
        return blocks_bytes(count, self.block, self.bits, 1)

    @property
    def largest(self) -> float:
        return float(2.0**127)  # the largest power of two

    def _encode(self, values: Given, into: np.ndarray) -> int:
        given = self.block, self.bits, values.key, values.first
        return int(_encode(*values[:3], into, *given))

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return int(_decode(data, into, self.block, self.bits))


@kernel
def _encode(
    values: Any,
    residual: Any,
    gain: Any,
    out: Any,
    block: Any,
    bits: Any,
    key: Any,
    first: Any,
) -> Any:
    x, codes = np.empty(block, np.float32), np.empty(block, np.uint8)
    draws = np.empty(block, np.int32)
    exponents, count, at = np.int32((1 << (bits - 1)) - 1), values.size, 0
    highest = np.int32(np.int32(254) << np.int32(23))  # the bits of 2**127
    for start in range(0, count, block):
        stop = min(count, start + block)
        size = packed_size(stop - start, bits)
        packed, some = out[at + 1 : at + 1 + size], x[: stop - start]
        of = packed if bits == 8 else codes[: stop - start]
        left = part(residual, start, stop)
        top = load(values[start:stop], left, gain, some)
        if top > highest:
            return start
        high = min(np.int32(np.int32(top >> np.int32(23)) + np.int32(1)), np.int32(254))
        low = max(np.int32(high - exponents + np.int32(1)), np.int32(1))
        out[at] = np.uint8(low)
        draw(mixed(key + mixed(first + U(start))), draws, stop - start)
        _round(some, low, np.int32(bits - 1), draws, of)
        if left.size:
            _keep(some, of, low, np.int32(bits - 1), left)
        if bits < 8:
            pack(of, bits, packed)
        at += 1 + size
    return -1


@kernel
def _round(x: Any, low: Any, sign: Any, draws: Any, codes: Any) -> None:
    """Code 0 is 0, code c is 2^(low + c - 1); the bit above is the sign.

    A mantissa is uniform between two powers of two: adding a random one carries into the exponent
    with the right chance. Values below 2^low are moved up by it first, where that is true of them.
    """
    least = np.int32(low << np.int32(23))
    floor = float_of(least)
    for i in range(U(x.size)):
        bits = bits_of(x[i])
        size = np.int32(bits & MAGNITUDE)
        moved = bits_of(F(float_of(size) + floor))
        known = moved if size < least else np.int32(size + ONE)
        chance = np.int32(np.int32(draws[i] << np.int32(7)) + np.int32(64))
        code = np.int32(np.int32(np.int32(known + chance) >> np.int32(23)) - low)
        negative = np.int32(np.int32(bits >> np.int32(31)) & np.int32(1))
        codes[i] = np.uint8(np.int32(code | np.int32(negative << sign)))


@kernel
def _value(code: Any, low: Any, sign: Any) -> Any:
    size = np.int32(np.int32(code) & np.int32(np.int32(np.int32(1) << sign) - np.int32(1)))
    bits = np.int32(np.int32(low + size - np.int32(1)) << np.int32(23))
    bits = bits if size > 0 else np.int32(0)
    negative = np.int32(np.int32(code) >> sign)
    value = float_of(bits)
    return -value if negative else value


@kernel
def _values(codes: Any, low: Any, sign: Any, into: Any) -> None:
    for i in range(U(codes.size)):
        into[i] = _value(codes[i], low, sign)


@kernel
def _keep(x: Any, codes: Any, low: Any, sign: Any, residual: Any) -> None:
    for i in range(U(x.size)):
        residual[i] = x[i] - _value(codes[i], low, sign)


@kernel
def _decode(data: Any, into: Any, block: Any, bits: Any) -> Any:
    codes = np.empty(block, np.uint8)
    exponents, count, at = (1 << (bits - 1)) - 1, into.size, 0
    for start in range(0, count, block):
        stop = min(count, start + block)
        of, some = codes[: stop - start], into[start:stop]
        low = np.int32(data[at])
        if low < 1 or low + exponents - 1 > 254:
            return start
        size = packed_size(stop - start, bits)
        unpack(data[at + 1 : at + 1 + size], bits, of)
        at += 1 + size
        _values(of, low, np.int32(bits - 1), some)
    return -1
