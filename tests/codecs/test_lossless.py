"""Lossless stages: exact, small where there is something to gain, and bounded."""

import sys
import zlib

import numpy as np
import pytest

from shoal.codecs import codec_of, pulled_codec_of, summed_codec_of
from shoal.errors import BadEncoding, InvalidValue, PackageMissing

NAMES = ["zlib:6", "lz4", "zstd"]


def encoded(codec, values, **more):
    data = np.empty(codec.nbytes(len(values)), np.uint8)
    return data[: codec.encode(values, data, **more)]


def decoded(codec, data, count):
    into = np.full(count, np.nan, np.float32)
    codec.decode(data, into)
    return into


@pytest.mark.parametrize("name", NAMES)
def test_values_come_back_bit_for_bit(name):
    codec, rng = codec_of(name), np.random.default_rng(0)
    for values in (
        rng.standard_normal(5000).astype(np.float32),
        np.where(rng.random(5000) < 0.9, 0, rng.standard_normal(5000)).astype(np.float32),
        np.array([-0.0, 0.0, 1e-45, -3e38] * 9, np.float32),
        np.zeros(1, np.float32),
    ):
        back = decoded(codec, encoded(codec, values), len(values))
        assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_zeros_and_regular_bytes_cost_little(name):
    codec, rng = codec_of(name), np.random.default_rng(0)
    values = rng.standard_normal(1 << 16).astype(np.float32)
    assert len(encoded(codec, np.zeros(1 << 16, np.float32))) < 200
    sparse = np.where(rng.random(1 << 16) < 0.95, 0, values)
    assert len(encoded(codec, sparse)) < 0.09 * values.nbytes
    if name != "lz4":  # exponents are alike; lz4 finds only repeated strings
        assert len(encoded(codec, values)) < 0.93 * values.nbytes
    assert len(encoded(codec, values)) <= 1 + values.nbytes


@pytest.mark.parametrize("stage", NAMES)
def test_a_stage_shrinks_what_a_codec_made_and_changes_nothing(stage):
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(1 << 16) ** 5).astype(np.float32)
    plain, packed = codec_of("int:8"), codec_of(f"int:8+{stage}")
    one, other = np.zeros(1 << 16, np.float32), np.zeros(1 << 16, np.float32)
    data = encoded(packed, values, residual=other)
    expected = decoded(plain, encoded(plain, values, residual=one), 1 << 16)
    assert np.array_equal(decoded(packed, data, 1 << 16), expected)
    assert np.array_equal(one, other)
    assert len(data) < 0.8 * plain.nbytes(1 << 16)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_decompressed_beyond_what_the_values_need(name):
    codec = codec_of(name)
    bomb = encoded(codec, np.zeros(1 << 22, np.float32))
    with pytest.raises(BadEncoding):
        decoded(codec, bomb[:100] if len(bomb) > 100 else bomb, 64)
    codec = codec_of(f"int:8+{name}")
    data = encoded(codec, np.zeros(1 << 20, np.float32))
    with pytest.raises(BadEncoding):
        decoded(codec, data[:250], 512)


def test_a_stream_with_more_behind_it_is_refused():
    codec = codec_of("zlib")
    values = np.zeros(1000, np.float32)
    good = encoded(codec, values)
    with pytest.raises(BadEncoding, match="more or fewer bytes"):
        decoded(codec, np.concatenate([good, good]), 1000)
    short = zlib.compress(bytes(10), wbits=-15)
    with pytest.raises(BadEncoding, match="without their zeros"):
        decoded(codec, np.frombuffer(b"\x01" + short, np.uint8), 1000)


def test_levels_are_used():
    values = np.repeat(np.random.default_rng(0).standard_normal(4096), 3).astype(np.float32)
    sizes = [len(encoded(codec_of(f"zlib:{level}"), values)) for level in (0, 1, 9)]
    assert sizes[0] == 1 + values.nbytes  # nothing is gained: as they are
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("text", ["lz4", "int:8+zstd"])
def test_a_missing_package_is_named(text, monkeypatch):
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(PackageMissing, match=r"pip install 'shoal\[codecs\]'"):
        codec_of(text)


@pytest.mark.parametrize("text", ["zlib+int:8", "zlib+zstd", "int:8+zlib+lz4", "zlib+topk:0.1"])
def test_a_stage_comes_last_and_once(text):
    with pytest.raises(InvalidValue, match="lossless"):
        codec_of(text)


@pytest.mark.parametrize("text", ["zlib", "int:8+zstd"])
def test_sums_and_pulls_have_sizes_that_are_known_before(text):
    with pytest.raises(InvalidValue, match="leave out the lossless stage"):
        summed_codec_of(text)
    with pytest.raises(InvalidValue, match="leave out the lossless stage"):
        pulled_codec_of(text)


def test_a_codec_with_a_stage_begins_with_both():
    assert codec_of("onebit:after=5+zlib").begins_at == 5
    assert str(codec_of("topk:0.01+int:8+zstd:3")) == "topk:0.01+int:8+zstd:3"
