"""The error of uniform grids by the papers' formulas."""

import numpy as np
import pytest

from shoal.codecs import codec_of
from shoal.testing.codecs import decoded, encoded


def normal(count=4096):
    return np.random.default_rng(3).standard_normal(count).astype(np.float32)


@pytest.mark.parametrize(("bits", "levels"), [(4, 7), (8, 127)])
def test_int_errs_by_half_a_step_at_most(bits, levels):
    values = normal()
    codec = codec_of(f"int:{bits}")
    error = np.abs(decoded(codec, encoded(codec, values), 4096) - values).reshape(-1, 512)
    step = np.abs(values).reshape(-1, 512).max(1, keepdims=True) / levels
    assert (error <= step / 2 * 1.0001).all()
    assert error.max() > 0.45 * step.min()
    assert codec.nbytes(4096) == 4096 * bits // 8 + 4 * 8


def test_a_scale_that_is_a_power_of_two_holds_the_largest_value():
    values = normal()
    codec = codec_of("int:8:scale=power:block=32")
    data = encoded(codec, values)
    assert len(data) == 4096 + 4096 // 32
    scales = 2.0 ** (data.reshape(-1, 33)[:, :1].astype(float) - 127)
    largest = np.abs(values).reshape(-1, 32).max(1, keepdims=True)
    assert (scales * 127 >= largest).all()
    assert (scales * 127 < 2.01 * largest).all()
    error = np.abs(decoded(codec, data, 4096) - values).reshape(-1, 32)
    assert (error <= scales / 2 * 1.0001).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_the_variance_of_qsgd_is_within_that_of_the_paper(bits, norm):
    values = normal()
    codec, levels, block = codec_of(f"qsgd:{bits}:norm={norm}"), (1 << (bits - 1)) - 1, 512
    squared = np.zeros(8)
    for key in range(200):
        error = decoded(codec, encoded(codec, values, key), 4096) - values
        squared += (error.astype(float) ** 2).reshape(8, block).sum(1) / 200
    blocks = values.reshape(8, block)
    l2 = min(block / levels**2, np.sqrt(block) / levels) * (blocks.astype(float) ** 2).sum(1)
    largest = block / (4 * levels**2) * np.abs(blocks).max(1) ** 2
    assert (squared <= (l2 if norm == "l2" else largest) * 1.05).all()


def test_values_below_the_smallest_step_are_zeros():
    codec = codec_of("int:8")
    tiny = np.full(10, 1e-40, np.float32)
    assert not decoded(codec, encoded(codec, tiny), 10).any()
