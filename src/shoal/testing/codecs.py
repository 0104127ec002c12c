"""The laws of codecs: functions of a codec, which raise AssertionError.

@pytest.mark.parametrize("law", CODEC_LAWS, ids=lambda law: law.__name__)
def test_law(law):
    law(codec_of("mine:4"))
"""

from __future__ import annotations

import numpy as np

from shoal.codecs.base import Codec
from shoal.errors import BadEncoding, InvalidValue, NotFinite
from shoal.testing.connections import laws_in, raises

LENGTHS = (1, 2, 7, 8, 9, 63, 511, 512, 513, 1030)
KEYS = 10_000
MUTATIONS = 10_000
GUARD = 64  # bytes before and behind an array that has to stay as they are


def values_of(count: int, seed: int = 0) -> np.ndarray:
    """Return values of a few magnitudes, with zeros of both signs among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 1, count)
    values[::11] = 0.0
    values[5::22] = -0.0
    return values.astype(np.float32)


def encoded(codec: Codec, values: np.ndarray, key: int = 0) -> np.ndarray:
    """Return values encoded without a residual."""
    data = np.empty(codec.nbytes(len(values)), np.uint8)
    return data[: codec.encode(values, data, key=key)]


def decoded(codec: Codec, data: np.ndarray, count: int) -> np.ndarray:
    """Return `count` decoded values."""
    into = np.full(count, np.nan, np.float32)
    codec.decode(data, into)
    return into


# ---------------------------------------------------------------------------- laws


def nothing_is_encoded_as_nothing(codec: Codec) -> None:
    """Encode and decode no values."""
    assert codec.nbytes(0) == 0
    assert len(decoded(codec, encoded(codec, values_of(0)), 0)) == 0


def decoded_values_are_finite(codec: Codec) -> None:
    """Encode each length, the largest values and the smallest ones."""
    largest, tiny = np.float32(codec.largest), np.float32(1e-45)
    for count in LENGTHS:
        kinds = (values_of(count), *(np.full(count, each, "f") for each in (largest, tiny, 0.0)))
        for values in (*kinds, np.resize([largest, tiny, -largest], count).astype("f")):
            into = decoded(codec, encoded(codec, values), count)
            assert np.isfinite(into).all(), f"{codec}: {count} values become {into}"


def nothing_is_lost_with_a_residual(codec: Codec) -> None:
    """Compare decoded + residual with value + gain * old residual, over several encodings."""
    for count in LENGTHS:
        residual = np.zeros(count, np.float32)
        for step, gain in enumerate((1.0, 0.5, 2.0)):
            values = values_of(count, step)
            wanted = values + np.float32(gain) * residual
            data = np.empty(codec.nbytes(count), np.uint8)
            size = codec.encode(values, data, residual=residual, gain=gain, key=step)
            into = decoded(codec, data[:size], count)
            error = np.abs(into + residual - wanted).max()
            error /= max(np.abs(wanted).max(), np.abs(into).max(), 1e-6)
            assert error < 1e-6, f"{codec}: {error} of the largest value is lost"


def what_did_not_count_is_given_back(codec: Codec) -> None:
    """Give an encoding back to the residual, which then has the values."""
    values, residual = values_of(1030), np.zeros(1030, np.float32)
    data = np.empty(codec.nbytes(1030), np.uint8)
    size = codec.encode(values, data, residual=residual)
    codec.give_back(data[:size], residual)
    assert np.abs(residual - values).max() < 1e-5, f"{codec}: {residual} is not {values}"


def a_key_decides_the_bits(codec: Codec) -> None:
    """Encode the same values twice with one key, as a resumed run does."""
    values = values_of(1030)
    for key in (0, 1, (1 << 64) - 1):
        assert np.array_equal(encoded(codec, values, key), encoded(codec, values, key))


def the_mean_is_right_unless_it_is_biased(codec: Codec) -> None:
    """Compare the mean over 10,000 keys with the values: within 5 standard errors, if it draws."""
    if codec.biased or not codec.draws:
        return
    values = np.random.default_rng(2).uniform(-1, 1, 80).astype(np.float32)
    values[::11] = 0.0
    total, squares = np.zeros(80), np.zeros(80)
    into, data = np.empty(80, np.float32), np.empty(codec.nbytes(80), np.uint8)
    for key in range(KEYS):
        size = codec.encode(values, data, key=key)
        codec.decode(data[:size], into)
        total += into
        squares += into.astype(np.float64) ** 2
    mean = total / KEYS
    error = np.sqrt(np.maximum(squares / KEYS - mean**2, 0) / KEYS)
    within = 5 * error + 1e-6 * np.abs(values).max()
    assert (np.abs(mean - values) <= within).all(), f"{codec}: {mean} is not {values}"


def values_of_one_key_share_no_random_bits(codec: Codec) -> None:
    """Encode equal values that begin at other elements, and at other keys: the errors differ."""
    if codec.biased or not codec.draws:
        return
    values = np.resize(values_of(7), 1024)
    seen = set()
    for key, first in ((0, 0), (0, 1024), (1, 0), (1 << 32, 0), (0, 1 << 33)):
        data = np.empty(codec.nbytes(1024), np.uint8)
        size = codec.encode(values, data, key=key, first=first)
        seen.add(data[:size].tobytes())
    assert len(seen) == 5, f"{codec}: equal bits for other elements or keys"


def what_is_not_finite_is_refused(codec: Codec) -> None:
    """Encode a NaN, infinities and a value that is too large, at several places."""
    for bad in (np.nan, np.inf, -np.inf, *([codec.largest * 1.01] if codec.largest < 3e38 else [])):
        for at in (0, 511, 512, 1029):
            values = values_of(1030)
            before = values[::-1].copy()
            values[at] = bad
            residual = before.copy()
            data = np.empty(codec.nbytes(1030), np.uint8)
            with raises(NotFinite) as caught:
                codec.encode(values, data, residual=residual, gain=0.5)
            assert f"element {at} " in str(caught[0]), f"{codec}: {caught[0]}"
            assert np.abs(residual - before).max() < 1e-4, f"{codec}: the residual has changed"


def other_arrays_are_refused(codec: Codec) -> None:
    """Encode and decode arrays that are too short or too long, or of another kind."""
    values = values_of(100)
    for wrong in (-1, 1):
        data = np.zeros(codec.nbytes(100) + wrong, np.uint8)
        with raises(InvalidValue):
            codec.encode(values, data)
        with raises(BadEncoding):
            codec.decode(data, np.empty(100, np.float32))
    with raises(InvalidValue):
        codec.encode(values, np.empty(codec.nbytes(100), np.uint8), residual=np.zeros(99, "f"))
    for other in (values.astype(np.float64), np.repeat(values, 2)[::2], values.reshape(10, 10)):
        with raises(InvalidValue):
            codec.encode(other, np.empty(codec.nbytes(len(other)), np.uint8))


def damaged_bytes_harm_nothing(codec: Codec) -> None:
    """Decode 10,000 mutated encodings: an error, or finite values; no byte beside is written."""
    rng = np.random.default_rng(1)
    count = 530
    good = encoded(codec, values_of(count))
    memory = np.zeros(4 * count + 2 * GUARD, np.uint8)
    into = memory[GUARD:-GUARD].view(np.float32)
    for number in range(MUTATIONS):
        data = good.copy()
        for _ in range(1 + number % 4):
            data[rng.integers(len(data))] = rng.integers(256)
        if number % 10 == 0:
            data = rng.integers(0, 256, len(good)).astype(np.uint8)
        before = data.copy()
        try:
            codec.decode(data, into)
        except BadEncoding:
            continue
        assert np.isfinite(into).all(), f"{codec}: damaged bytes become {into}"
        beside = memory[:GUARD].any() or memory[-GUARD:].any()
        assert not beside, f"{codec}: it writes out of bounds"
        assert np.array_equal(data, before), f"{codec}: it writes to what it reads"


CODEC_LAWS = laws_in(__name__, "codec")
