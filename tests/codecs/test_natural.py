"""Natural compression: powers of two, with the variance of the paper."""

import numpy as np
import pytest

from shoal.codecs import codec_of
from shoal.testing.codecs import decoded, encoded


@pytest.mark.parametrize("bits", [4, 8])
def test_decoded_values_are_powers_of_two_and_their_variance_is_an_eighth(bits):
    values = np.random.default_rng(3).uniform(0.1, 1.0, 2048).astype(np.float32)
    values[::2] *= -1
    codec, squared = codec_of(f"natural:{bits}"), np.zeros(2048)
    for key in range(400):
        into = decoded(codec, encoded(codec, values, key), 2048)
        mantissas, _ = np.frexp(into)
        assert (np.abs(mantissas) == 0.5).all()
        squared += (into - values).astype(float) ** 2 / 400
    assert (squared <= values.astype(float) ** 2 / 8 * 1.3).all()
    assert np.mean(squared / values.astype(float) ** 2) < 1 / 8


def test_powers_of_two_are_exact():
    codec = codec_of("natural:4")
    values = np.array([64.0, -32.0, 16.0, 2.0, -2.0, 0.0], np.float32)  # 128 is the highest
    for key in range(50):
        assert np.array_equal(decoded(codec, encoded(codec, values, key), 6), values)
