"""The loops that codecs are made of: load with the residual, draw, round, pack, unpack.

Codecs work on blocks of a few hundred values, which stay in the first cache between the loops of
one block. A block's record has its scale, then its codes; so a prefix of the records is an
encoding of the first blocks. Integers are cast at each step: numba widens them silently.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from shoal.jit import U, kernel

BLOCK = 512
HIGHEST = np.int32(253 << 23)  # the bits of 2**126: from here on a scale times a code may overflow
INFINITE = np.int32(0x7F800000)  # the bits of infinity; those of NaNs are above
MAGNITUDE = np.int32(0x7FFFFFFF)
LARGEST = np.float32(np.finfo(np.float32).max)
SMALL = np.float32(1e-37)  # a smaller step has no finite inverse
ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding it rounds to integers, ties to even
ROUND_BITS = np.int32(0x4B400000)
F, I32, U32 = np.float32, np.int32, np.uint32


def _bits(_typing: Any, value: Any) -> Any:
    """Return the bits of a float32 as int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


def _float(_typing: Any, value: Any) -> Any:
    """Return the float32 that has the bits of an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


bits_of: Any = intrinsic(_bits)
float_of: Any = intrinsic(_float)


# ---------------------------------------------------------------------------- values


@kernel
def load(values: Any, residual: Any, gain: Any, x: Any) -> Any:
    """Write values + gain * residual to x, and return the bits of the largest magnitude."""
    top = I32(0)
    if residual.size:
        for i in range(U(x.size)):
            x[i] = values[i] + residual[i] * gain
            top = max(top, I32(bits_of(x[i]) & MAGNITUDE))
    else:
        for i in range(U(x.size)):
            x[i] = values[i]
            top = max(top, I32(bits_of(x[i]) & MAGNITUDE))
    return top


@kernel
def part(residual: Any, start: Any, stop: Any) -> Any:
    """Return the part of a residual, which may be empty."""
    return residual[start:stop] if residual.size else residual


# ---------------------------------------------------------------------------- random bits


@kernel
def draw(key: Any, draws: Any, count: Any) -> None:
    """Fill `draws` with 16 random bits for each of `count` values, from a block's key.

    One hash of 32 bits (two rounds of multiply and shift) serves two values. `draws` has an even
    length.
    """
    low, high = U32(key & U(0xFFFFFFFF)), U32(key >> U(32))
    half = U((count + 1) // 2)
    for i in range(half):
        h = U32(U32(i) + low)
        h = U32(h ^ U32(h >> U32(16)))
        h = U32(h * U32(0x21F0AAAD))
        h = U32(h ^ U32(h >> U32(15)))
        h = U32(h + high)
        h = U32(h * U32(0x735A2D97))
        h = U32(h ^ U32(h >> U32(15)))
        draws[i] = I32(U32(h & U32(0xFFFF)))
        draws[i + half] = I32(U32(h >> U32(16)))


# ---------------------------------------------------------------------------- scales


@kernel
def put_float(out: Any, at: Any, value: Any) -> None:
    """Write a float32, little-endian."""
    bits = U32(bits_of(F(value)))
    for i in range(U(4)):
        out[U(at) + i] = np.uint8((bits >> U32(8 * i)) & U32(0xFF))


@kernel
def get_float(data: Any, at: Any) -> Any:
    """Read a float32, little-endian."""
    bits = U32(0)
    for i in range(U(4)):
        bits = U32(bits | U32(U32(data[U(at) + i]) << U32(8 * i)))
    return float_of(I32(bits))


@kernel
def _power_of(step: Any) -> Any:
    """Return the exponent byte of the least power of two that is not less than a step."""
    bits = bits_of(F(step))
    exponent = np.int32(bits >> np.int32(23))
    if bits & np.int32(0x7FFFFF):
        exponent = np.int32(exponent + np.int32(1))
    return min(exponent, np.int32(254))


@kernel
def put_step(out: Any, at: Any, step: Any, power: Any) -> Any:
    """Write the step of a block, as a float or as a power of two; return it, and what is behind."""
    if power:
        exponent = _power_of(step) if step > F(0) else np.int32(0)
        out[at] = np.uint8(exponent)
        return float_of(np.int32(exponent << np.int32(23))), at + 1
    put_float(out, at, step)
    return F(step), at + 4


@kernel
def get_step(data: Any, at: Any, power: Any) -> Any:
    """Read the step of a block; return it, and what is behind. The exponent 255 is infinity."""
    if power:
        return float_of(np.int32(np.int32(data[at]) << np.int32(23))), at + 1
    return get_float(data, at), at + 4


@kernel
def most_step(levels: Any) -> Any:
    """Return the largest step of a grid with so many levels: levels * step is finite."""
    return F(F(LARGEST / F(levels)) * F(0.9999999))


@kernel
def valid(scale: Any, most: Any) -> Any:
    """Return whether a scale is one that an encoder writes: 0 <= scale <= most. A NaN is not."""
    return scale >= F(0) and scale <= F(most)


# ---------------------------------------------------------------------------- codes


def packed_bytes(count: int, bits: int) -> int:
    """Return the bytes of `count` codes of 1 to 8 bits.

    >>> packed_bytes(512, 4), packed_bytes(9, 1), packed_bytes(9, 3)
    (256, 2, 5)
    """
    nbytes = 0
    for piece in (8, 4, 2, 1):
        if bits & piece:
            nbytes += (count * piece + 7) // 8
    return nbytes


packed_size = kernel(packed_bytes)  # the same, for loops


@lru_cache(1 << 10)
def blocks_bytes(count: int, block: int, bits: int, scale_bytes: int) -> int:
    """Return the bytes of the records of `count` values; the last block may be a short one.

    >>> blocks_bytes(1024, 512, 4, scale_bytes=4), blocks_bytes(513, 512, 4, scale_bytes=4)
    (520, 265)
    """
    whole, rest = divmod(count, block)
    nbytes = whole * (scale_bytes + packed_bytes(block, bits))
    return nbytes + (scale_bytes + packed_bytes(rest, bits) if rest else 0)


@kernel
def pack(codes: Any, bits: Any, out: Any) -> None:
    """Pack codes into planes: byte i has the codes i, i + s, i + 2 s ... of s bytes.

    So the loop over i is one over neighbours, which the compiler turns into vector instructions.
    A code of 3, 5, 6 or 7 bits is cut into pieces of 4, 2 and 1, low bits first.
    """
    if bits == 8:
        for i in range(U(codes.size)):
            out[i] = codes[i]
        return
    count, at, shift = codes.size, 0, 0
    for piece in (4, 2, 1):
        if not bits & piece:
            continue
        each = 8 // piece
        size = (count + each - 1) // each
        plane, mask = out[at : at + size], np.uint8((1 << piece) - 1)
        for p in range(each):
            some = codes[min(count, p * size) : min(count, (p + 1) * size)]
            down, up = np.uint8(shift), np.uint8(p * piece)
            if p == 0:
                for i in range(U(some.size)):
                    plane[i] = np.uint8(np.uint8(some[i] >> down) & mask)
            else:
                for i in range(U(some.size)):
                    code = np.uint8(np.uint8(some[i] >> down) & mask)
                    plane[i] = np.uint8(plane[i] | np.uint8(code << up))
        at, shift = at + size, shift + piece


@kernel
def unpack(data: Any, bits: Any, codes: Any) -> None:
    """Unpack what `pack` has packed."""
    if bits == 8:
        for i in range(U(codes.size)):
            codes[i] = data[i]
        return
    count, at, shift = codes.size, 0, 0
    for piece in (4, 2, 1):
        if not bits & piece:
            continue
        each = 8 // piece
        size = (count + each - 1) // each
        plane, mask = data[at : at + size], np.uint8((1 << piece) - 1)
        for p in range(each):
            some = codes[min(count, p * size) : min(count, (p + 1) * size)]
            down, up = np.uint8(p * piece), np.uint8(shift)
            for i in range(U(some.size)):
                code = np.uint8(np.uint8(plane[i] >> down) & mask)
                some[i] = np.uint8(code << up) if shift == 0 else np.uint8(some[i] | (code << up))
        at, shift = at + size, shift + piece
