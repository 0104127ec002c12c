"""Small floats are rounded as torch rounds them, and to the nearest level."""

import numpy as np
import pytest
import torch

from shoal.codecs import codec_of
from shoal.errors import BadEncoding
from shoal.testing.codecs import decoded, encoded


def spread(most, count=100_000):
    """Values of all magnitudes, with the largest first, which makes the scale 1."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-20, 9, count)
    return np.append(most, np.clip(values, -most, most)).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "dtype", "most"),
    [("fp8", torch.float8_e4m3fn, 448), ("fp8:e5m2", torch.float8_e5m2, 57344)],
)
def test_they_are_rounded_as_in_torch(text, dtype, most):
    values = spread(most)
    middles = torch.arange(256).to(torch.uint8).view(dtype).float().numpy()
    middles = np.unique(middles[np.isfinite(middles)])
    values = np.concatenate([values, (middles[1:] + middles[:-1]) / 2]).astype(np.float32)
    into = []
    for block in np.split(values, range(4095, len(values), 4095)):  # each has the largest value
        some = np.append(np.float32(most), block)
        codec = codec_of(f"{text}:block=4096")
        into.append(decoded(codec, encoded(codec, some), len(some))[1:])
    right = torch.from_numpy(values).to(dtype).float().numpy()
    assert np.array_equal(np.concatenate(into), right)


def test_fp4_is_the_nearest_of_its_levels():
    values = np.append(6, np.random.default_rng(1).uniform(-6, 6, 511)).astype(np.float32)
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    levels = np.concatenate([-levels[::-1], levels])
    into = decoded(codec_of("fp4"), encoded(codec_of("fp4"), values), 512)
    error = np.abs(values[:, None] - levels).min(1)
    assert np.allclose(np.abs(into - values), error, atol=1e-6)
    assert set(np.abs(into)) == {0, 0.5, 1, 1.5, 2, 3, 4, 6}


@pytest.mark.parametrize("text", ["fp4:scale=power:block=32", "fp8:scale=power:block=32"])
def test_scales_may_be_powers_of_two(text):
    values = np.random.default_rng(2).standard_normal(320).astype(np.float32)
    codec = codec_of(text)
    data = encoded(codec, values)
    assert codec.nbytes(320) == len(data) == (170 if "fp4" in text else 330)
    error = np.abs(decoded(codec, data, 320) - values)
    assert (
        error <= np.abs(values) * (0.34 if "fp4" in text else 0.07) + 0.3 * ("fp4" in text)
    ).all()


def test_codes_that_are_no_numbers_are_refused():
    codec = codec_of("fp8")
    data = encoded(codec, np.ones(8, np.float32))
    data[-1] = 127
    with pytest.raises(BadEncoding):
        decoded(codec, data, 8)
