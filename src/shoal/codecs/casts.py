"""`fp16` and `bf16`: half the bytes, with fewer bits of mantissa."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.codecs.base import Codec, Given
from shoal.codecs.kernels import BLOCK, F, bits_of, float_of, load, part
from shoal.jit import U, kernel

HALF_LARGEST = np.int32(0x477FEFFF)  # the bits of the last float32 that rounds to 65504
BRAIN_LARGEST = np.int32(0x7F7F7FFF)  # the same for bfloat16


class _Cast(Codec, frozen=True):
    """Values rounded to the nearest value of another floating-point format, ties to even."""

    @property
    def biased(self) -> bool:
        return False  # of all codecs' errors it is the least: too small to repay a residual

    def nbytes(self, count: int) -> int:
        return 2 * count

    def _encode(self, values: Given, into: np.ndarray) -> int:
        return int(_encode(*values[:3], into.view(np.uint16), self.name == "fp16"))

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return int(_decode(data.view(np.uint16), into, self.name == "fp16"))


class FP16(_Cast, frozen=True):
    """IEEE half precision: 11 bits of mantissa, magnitudes from 6e-8 to 65504.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("fp16").nbytes(1024), codec_of("fp16").largest
        (2048, 65504.0)
    """

    stateless = True
    summed = "float16"
    name = "fp16"
    summary = "half precision: 11 bits of mantissa, up to 65504"
    source = "IEEE 754, binary16"

    @property
    def largest(self) -> float:
        return 65504.0


class BF16(_Cast, frozen=True):
    """Bfloat16: the range of float32 with 8 bits of mantissa.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("bf16").nbytes(1024)
        2048
    """

    stateless = True
    summed = "bfloat16"
    name = "bf16"
    summary = "bfloat16: 8 bits of mantissa, the range of float32"
    source = "Kalamkar 2019, section 3"

    @property
    def largest(self) -> float:
        return float(np.uint32(0x7F7F0000).view(np.float32))


@kernel
def _encode(values: Any, residual: Any, gain: Any, out: Any, half: Any) -> Any:
    x = np.empty(BLOCK, np.float32)
    most = HALF_LARGEST if half else BRAIN_LARGEST
    for start in range(0, values.size, BLOCK):
        stop = min(values.size, start + BLOCK)
        some, of, left = x[: stop - start], out[start:stop], part(residual, start, stop)
        if load(values[start:stop], left, gain, some) > most:
            return start
        if half:
            for i in range(U(some.size)):
                of[i] = _to_half(some[i])
        else:
            for i in range(U(some.size)):
                of[i] = _to_brain(some[i])
        if left.size:
            for i in range(U(some.size)):
                left[i] = some[i] - (_from_half(of[i]) if half else _from_brain(of[i]))
    return -1


@kernel
def _decode(data: Any, into: Any, half: Any) -> Any:
    highest = np.uint16(0x7C00) if half else np.uint16(0x7F80)  # an infinity or a NaN
    for start in range(0, into.size, BLOCK):
        stop = min(into.size, start + BLOCK)
        of, some = data[start:stop], into[start:stop]
        top = np.uint16(0)
        for i in range(U(of.size)):
            top = max(top, np.uint16(of[i] & np.uint16(0x7FFF)))
        if top >= highest:
            return start
        if half:
            for i in range(U(of.size)):
                some[i] = _from_half(of[i])
        else:
            for i in range(U(of.size)):
                some[i] = _from_brain(of[i])
    return -1


@kernel
def _to_half(value: Any) -> Any:
    bits = bits_of(value)
    size = np.int32(bits & np.int32(0x7FFFFFFF))
    odd = np.int32(np.int32(size >> np.int32(13)) & np.int32(1))
    normal = np.int32(np.int32(size + np.int32(0xFFF - (112 << 23)) + odd) >> np.int32(13))
    # adding 1/2 shifts a subnormal half's mantissa into place, rounded
    tiny = np.int32(bits_of(F(float_of(size) + F(0.5))) - np.int32(0x3F000000))
    code = tiny if size < np.int32(113 << 23) else normal
    return np.uint16(np.int32(code | np.int32(np.int32(bits >> np.int32(16)) & np.int32(0x8000))))


@kernel
def _from_half(code: Any) -> Any:
    size = np.int32(np.int32(code & np.uint16(0x7FFF)) << np.int32(13))
    value = F(float_of(size) * float_of(np.int32(0x77800000)))  # 2**112
    return -value if code & np.uint16(0x8000) else value


@kernel
def _to_brain(value: Any) -> Any:
    bits = bits_of(value)
    odd = np.int32(np.int32(bits >> np.int32(16)) & np.int32(1))
    return np.uint16(np.int32(np.int32(bits + np.int32(0x7FFF) + odd) >> np.int32(16)) & 0xFFFF)


@kernel
def _from_brain(code: Any) -> Any:
    return float_of(np.int32(np.uint32(np.uint32(code) << np.uint32(16))))
