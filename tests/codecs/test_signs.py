"""Signs and ternary values, with their scales."""

import numpy as np
import pytest

from shoal.codecs import codec_of
from shoal.testing.codecs import decoded, encoded


def normal(count=1024):
    return np.random.default_rng(3).standard_normal(count).astype(np.float32) + np.float32(0.3)


def test_onebit_decodes_the_mean_of_each_sign():
    values = normal()
    into = decoded(codec_of("onebit"), encoded(codec_of("onebit"), values), 1024)
    for block, found in zip(values.reshape(2, 512), into.reshape(2, 512), strict=True):
        for side in (block >= 0, block < 0):
            assert np.allclose(found[side], block[side].mean(dtype=float), rtol=1e-5)


@pytest.mark.parametrize(("scale", "nbytes"), [("one", 128), ("mean", 136)])
def test_sign_decodes_one_or_the_mean_magnitude(scale, nbytes):
    values, codec = normal(), codec_of(f"sign:scale={scale}")
    assert codec.nbytes(1024) == nbytes
    into = decoded(codec, encoded(codec, values), 1024)
    means = np.repeat(np.abs(values).reshape(2, 512).mean(1), 512)
    wanted = np.where(values >= 0, 1.0, -1.0) * (means if scale == "mean" else 1.0)
    assert np.allclose(into, wanted, rtol=1e-5)


def test_ternary_has_three_values_and_the_variance_of_the_paper():
    values, codec = normal(512), codec_of("ternary")
    top, squared = np.abs(values).max(), np.zeros(512)
    for key in range(1000):
        into = decoded(codec, encoded(codec, values, key), 512)
        assert set(np.unique(np.abs(into))) <= {0.0, top}
        squared += (into - values).astype(float) ** 2 / 1000
    size = np.abs(values).astype(float)
    assert abs(squared.sum() / (size * (top - size)).sum() - 1) < 0.05


def test_fitted_ternary_values_err_less_with_more_rounds():
    values = normal()
    errors = [
        float(((decoded(codec, encoded(codec, values), 1024) - values) ** 2).sum())
        for codec in (codec_of(f"ternary:fit={rounds}") for rounds in (1, 3, 10))
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.25 * float((values**2).sum())
