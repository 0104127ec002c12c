"""The values that are sent are those that should be, and damaged places are refused."""

import numpy as np
import pytest

from shoal.codecs import codec_of, residual_of
from shoal.errors import BadEncoding
from shoal.testing.codecs import decoded, encoded, values_of

COUNTS = [1, 2, 31, 32, 33, 511, 512, 513, 1000, 65_535, 65_536, 65_537, 200_001]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.7, 1.0])
def test_the_largest_values_are_sent_exactly(count, share):
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    codec = codec_of(f"topk:{share}")
    into = decoded(codec, encoded(codec, values), count)
    kept = codec.kept(count)
    assert kept == min(count, int(np.ceil(share * count)))
    largest = np.sort(np.argsort(-np.abs(values), kind="stable")[:kept])
    assert np.array_equal(np.flatnonzero(into), largest)
    assert np.array_equal(into[largest], values[largest])


@pytest.mark.parametrize("equal", [0.0, 1.0, -1.0, 1e-45])
def test_of_equal_values_the_first_are_sent(equal):
    values = np.full(3000, equal, np.float32)
    values[[7, 2999]] = 5.0
    codec = codec_of("topk:0.01")
    into = decoded(codec, encoded(codec, values), 3000)
    assert np.array_equal(np.flatnonzero(into == 5.0), [7, 2999])
    assert codec.kept(3000) == 30
    if equal:
        assert np.array_equal(np.flatnonzero(into == np.float32(equal)), [*range(7), *range(8, 29)])


def test_what_waits_is_sent_in_about_one_push_per_share():
    codec = codec_of("topk:0.1")
    values = np.random.default_rng(0).uniform(0.5, 1, 1000).astype(np.float32)
    residual, sent = residual_of(1000), np.zeros(1000)
    data = np.empty(codec.nbytes(1000), np.uint8)
    for _ in range(40):
        codec.encode(values, data, residual=residual)
        sent += decoded(codec, data, 1000)
    assert sent.all()
    assert np.abs(sent + residual - 40 * values).max() < 1e-3


@pytest.mark.parametrize(
    ("where", "to"),
    [
        (slice(0, 4), [7, 0, 0, 0]),  # places of the chunk, of 10
        (slice(4 + 18, 4 + 20), [255, 255]),  # beyond the last value
        (slice(4, 6), [231, 3]),  # the first place is 999: they do not ascend
        (slice(-4, None), [0, 0, 192, 127]),  # a NaN
    ],
    ids=["count", "beyond", "order", "nan"],
)
def test_damaged_places_and_values_are_refused(where, to):
    codec, count = codec_of("topk:0.01"), 1000
    data = encoded(codec, np.random.default_rng(3).standard_normal(count).astype(np.float32))
    data[where] = to
    with pytest.raises(BadEncoding):
        decoded(codec, data, count)


def test_randomk_sends_one_value_of_each_part_at_places_of_its_key():
    codec, values = codec_of("randomk:0.01"), values_of(1000) + 10
    places = []
    for key in (1, 2):
        into = decoded(codec, encoded(codec, values, key), 1000)
        places.append(np.flatnonzero(into))
        assert np.array_equal(places[-1] // 100, range(10))
        assert np.array_equal(into[places[-1]], values[places[-1]])
    assert not np.array_equal(*places)


def test_randomk_chooses_all_places_alike():
    codec, values = codec_of("randomk:0.1"), np.ones(100, np.float32)
    chosen = sum(decoded(codec, encoded(codec, values, key), 100) for key in range(5000))
    assert np.abs(chosen - 500).max() < 6 * np.sqrt(500)


def test_what_a_second_codec_leaves_out_waits_too():
    codec, values = codec_of("topk:0.5+int:4"), values_of(1000)
    residual, data = residual_of(1000), np.empty(codec.nbytes(1000), np.uint8)
    codec.encode(values, data, residual=residual)
    into = decoded(codec, data, 1000)
    assert np.abs(into + residual - values).max() < 1e-6
    assert (residual[into != 0] != 0).any()
