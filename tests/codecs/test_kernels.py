"""Packing, scales and random bits."""

import numpy as np
import pytest

from shoal.codecs import kernels
from shoal.jit import U


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 64, 65, 511, 512])
def test_codes_come_back_from_their_planes(bits, count):
    codes = np.random.default_rng(count).integers(0, 1 << bits, count).astype(np.uint8)
    packed = np.full(kernels.packed_bytes(count, bits), 255, np.uint8)
    kernels.pack(codes, bits, packed)
    back = np.full(count, 255, np.uint8)
    kernels.unpack(packed, bits, back)
    assert np.array_equal(back, codes)
    assert len(packed) <= -(-count * bits // 8) + 3


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3e38, 1e-45, np.inf])
def test_a_scale_comes_back_from_any_place(value):
    for at in range(5):
        memory = np.zeros(9, np.uint8)
        kernels.put_float(memory, at, np.float32(value))
        assert memory[at : at + 4].tobytes() == np.float32(value).tobytes()
        assert np.float32(kernels.get_float(memory, at)).tobytes() == np.float32(value).tobytes()


def test_a_scale_that_no_encoder_writes_is_invalid():
    assert kernels.valid(np.float32(0), 1)
    assert kernels.valid(np.float32(1), 1)
    for bad in (-1, 1.5, np.nan, np.inf, -np.inf):
        assert not kernels.valid(np.float32(bad), 1)


def test_random_bits_are_uniform_and_those_of_two_keys_are_independent():
    count, keys = 512, 400
    drawn = np.empty((keys, count), np.int32)
    for key in range(keys):
        kernels.draw(kernels.U(key * 0x9E3779B97F4A7C15 % (1 << 64)), drawn[key], count)
    assert drawn.min() >= 0
    assert drawn.max() < 1 << 16
    total = drawn.size
    for bit in range(16):  # each bit is 1 in a half of all draws
        ones = int((drawn >> bit & 1).sum())
        assert abs(ones - total / 2) < 5 * np.sqrt(total) / 2
    scaled = (drawn - 32767.5) / (65536 / np.sqrt(12))
    for one, other in ((scaled[:-1], scaled[1:]), (scaled[:, :-1], scaled[:, 1:])):
        assert abs((one * other).mean()) < 5 / np.sqrt(one.size)
    halves = scaled[:, :256] * scaled[:, 256:]  # of one hash
    assert abs(halves.mean()) < 5 / np.sqrt(halves.size)


@pytest.mark.parametrize("count", [1, 2, 3, 511])
def test_an_odd_number_of_values_has_random_bits(count):
    draws = np.full(512, -1, np.int32)
    kernels.draw(U(1), draws, count)
    assert (draws[:count] >= 0).all()
