"""Small floating-point numbers in blocks with a scale each: `fp8` and `fp4`.

A magnitude is looked up by the upper bits of its float32: each entry of the table is the largest
code that is not above all of its values, and a comparison with the middle between this level and
the next one decides.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np

from shoal.codecs.base import Codec, Given, option
from shoal.codecs.grids import SCALE_BYTES, Block
from shoal.codecs.kernels import (
    BLOCK,
    HIGHEST,
    MAGNITUDE,
    SMALL,
    F,
    bits_of,
    blocks_bytes,
    float_of,
    get_step,
    load,
    pack,
    packed_size,
    part,
    put_step,
    unpack,
    valid,
)
from shoal.jit import U, kernel

LOOKED_AT = 19  # lower bits of a float32 that the table does not look at: it has 4 of the mantissa


class _Floats(Codec, frozen=True):
    """Values of a block become x / s, rounded to the nearest small float; s = max |x| / largest."""

    stateless = True

    scale: Annotated[Literal["float", "power"], option("float, or power (of two)")] = "float"
    block: Block = BLOCK

    @property
    def biased(self) -> bool:
        return True

    @property
    def largest(self) -> float:
        return float(2.0**126)

    @property
    @abstractmethod
    def _bits(self) -> int: ...

    @property
    @abstractmethod
    def _levels(self) -> np.ndarray:
        """The magnitudes, ascending: the first is 0."""

    def nbytes(self, count: int) -> int:
        return blocks_bytes(count, self.block, self._bits, SCALE_BYTES[self.scale])

    def _encode(self, values: Given, into: np.ndarray) -> int:
        levels = self._levels
        how = self.block, self._bits, self.scale == "power"
        return int(_nearest(*values[:3], into, levels, *_lookup(levels.tobytes()), *how))

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return int(_decode(data, into, self._levels, self.block, self._bits, self.scale == "power"))


# fmt: off
class FP8(_Floats, frozen=True):
    """Round to floats of 8 bits, in blocks with a scale each.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("fp8").nbytes(1024), codec_of("fp8:e5m2:scale=power:block=32").nbytes(1024)
        (1032, 1056)
    """

    name = "fp8"
    argument = "kind"
    summary = "floats of 8 bits in blocks with a scale each: the error is relative to each value"
    source = "Micikevicius 2022, section 3 (scale=power:block=32: MXFP8, Rouhani 2023)"

    kind: Annotated[Literal["e4m3", "e5m2"], option("bits of exponent and mantissa")] = "e4m3"
    # fmt: on

    @property
    def _bits(self) -> int:
        return 8

    @property
    def _levels(self) -> np.ndarray:
        return _magnitudes(4, 3, 127) if self.kind == "e4m3" else _magnitudes(5, 2, 124)


# fmt: off
class FP4(_Floats, frozen=True):
    """Round to 0, 0.5, 1, 1.5, 2, 3, 4 and 6 times the scale of a block, with a sign (E2M1).

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("fp4:scale=power:block=32").nbytes(1024)
        544
    """

    name = "fp4"
    summary = "floats of 4 bits in blocks with a scale each"
    source = "Rouhani 2023, section 3 (scale=power:block=32: MXFP4)"
    # fmt: on

    @property
    def _bits(self) -> int:
        return 4

    @property
    def _levels(self) -> np.ndarray:
        return _magnitudes(2, 1, 8)


@cache
def _magnitudes(exponent_bits: int, mantissa_bits: int, count: int) -> np.ndarray:
    """Return the first `count` magnitudes of a small float, ascending: (count,) float32."""
    bias, parts = 2 ** (exponent_bits - 1) - 1, 2**mantissa_bits
    codes = np.arange(count)
    exponents, mantissas = codes // parts, codes % parts / parts
    tiny = mantissas * 2.0 ** (1 - bias)
    found: np.ndarray = np.where(exponents, (1 + mantissas) * 2.0 ** (exponents - bias), tiny)
    return found.astype(np.float32)


@cache
def _lookup(levels: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the code by the upper bits of a magnitude, and the middle above each level."""
    magnitudes = np.frombuffer(levels, np.float32)
    middles = np.append((magnitudes[1:] + magnitudes[:-1]) / 2, np.float32(np.inf))
    lowest = (np.arange(1 << (31 - LOOKED_AT), dtype=np.uint32) << LOOKED_AT).view(np.float32)
    codes = np.searchsorted(middles[:-1], np.where(np.isnan(lowest), 0, lowest), side="left")
    return codes.astype(np.uint8), middles.astype(np.float32)


@kernel
def _nearest(
    values: Any,
    residual: Any,
    gain: Any,
    out: Any,
    levels: Any,
    lookup: Any,
    middles: Any,
    block: Any,
    bits: Any,
    power: Any,
) -> Any:
    x, codes = np.empty(block, np.float32), np.empty(block, np.uint8)
    count, at = values.size, 0
    for start in range(0, count, block):
        stop = min(count, start + block)
        some, of = x[: stop - start], codes[: stop - start]
        left = part(residual, start, stop)
        top = load(values[start:stop], left, gain, some)
        if top > HIGHEST:
            return start
        step = F(float_of(top) / levels[levels.size - 1])
        if step < SMALL:
            step = F(0)
        step, at = put_step(out, at, step, power)
        inverse = F(1) / step if step > F(0) else F(0)
        _round(some, inverse, lookup, middles, np.uint8(levels.size - 1), bits, of)
        if left.size:
            _keep(some, of, step, levels, bits, left)
        size = packed_size(stop - start, bits)
        pack(of, bits, out[at : at + size])
        at += size
    return -1


@kernel
def _round(
    x: Any, inverse: Any, lookup: Any, middles: Any, last: Any, bits: Any, codes: Any
) -> None:
    """Code the nearest level; of two that are as near, the one with the even code."""
    for i in range(U(x.size)):
        value = bits_of(F(x[i] * inverse))
        size = np.int32(value & MAGNITUDE)
        code = lookup[size >> np.int32(LOOKED_AT)]
        middle, magnitude = middles[code], float_of(size)
        if magnitude > middle or (magnitude == middle and code & 1):
            code = min(np.uint8(code + 1), last)
        sign = np.uint8(np.int32(value >> np.int32(31)) & np.int32(1))
        codes[i] = np.uint8(code | np.uint8(sign << np.uint8(bits - 1)))


@kernel
def _keep(x: Any, codes: Any, step: Any, levels: Any, bits: Any, residual: Any) -> None:
    mask = np.uint8((1 << (bits - 1)) - 1)
    for i in range(U(x.size)):
        value = F(levels[codes[i] & mask] * step)
        residual[i] = x[i] + value if codes[i] > mask else x[i] - value


@kernel
def _decode(data: Any, into: Any, levels: Any, block: Any, bits: Any, power: Any) -> Any:
    codes = np.empty(block, np.uint8)
    count, at, mask = into.size, 0, np.uint8((1 << (bits - 1)) - 1)
    most = F(F(3.4e38) / levels[levels.size - 1])
    for start in range(0, count, block):
        stop = min(count, start + block)
        of, some = codes[: stop - start], into[start:stop]
        step, at = get_step(data, at, power)
        if not valid(step, most):
            return start
        size = packed_size(stop - start, bits)
        unpack(data[at : at + size], bits, of)
        at += size
        for i in range(U(of.size)):
            code = of[i] & mask
            if code >= levels.size:
                return start
            value = F(levels[code] * step)
            some[i] = -value if of[i] > mask else value
    return -1
