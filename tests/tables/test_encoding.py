"""Fragments that are encoded piece by piece, and what a server makes of damaged ones."""

import numpy as np
import pytest
import torch

from shoal.codecs import codec_of
from shoal.errors import BadEncoding, InvalidValue, UnknownName
from shoal.keys import KeyRange
from shoal.tables.consistency import asp
from shoal.tables.dense.shard import DenseShard
from shoal.tables.encoding import Encoding, FragmentValues
from shoal.tables.opening import checked
from shoal.tables.spec import Span, TableSpec


def spec_of(**more):
    return TableSpec("w", 3000, **{"fragment_rows": 1000, "codec": "int:8", **more})


def encoded(spec, values):
    """(data, sizes) of a push of all rows."""
    encoding, rows = Encoding(spec), KeyRange(0, spec.rows)
    raw, pieces = values.view(np.uint8), []
    for each in encoding.cut(rows):
        into = np.empty(each.nbytes, np.uint8)
        some = raw[4 * each.first : 4 * (each.first + each.length)]
        pieces.append(encoding.encode(FragmentValues(each, some, into), 7).into)
    return np.concatenate(pieces), tuple(len(each) for each in pieces)


def decoded(spec, data, sizes):
    into = torch.empty(spec.rows, spec.width)
    Encoding(spec).decode(KeyRange(0, spec.rows), data.data, sizes, into)
    return into.numpy().ravel()


def normal(count=3000):
    return np.random.default_rng(0).standard_normal(count).astype(np.float32)


def test_pieces_end_where_fragments_or_layers_do():
    spans = Span(0, "a"), Span(700, "b", "onebit"), Span(1500, "c", "none"), Span(2500, "d")
    values = normal()
    data, sizes = encoded(spec_of(spans=spans), values)
    of = {name: codec_of(name).nbytes for name in ("int:8", "onebit")}
    first, second = of["int:8"](700) + of["onebit"](300), of["onebit"](500) + 4 * 500
    assert sizes == (first, second, 4 * 500 + of["int:8"](500))
    found = decoded(spec_of(spans=spans), data, sizes)
    assert np.array_equal(found[1500:2500], values[1500:2500])
    assert 0 < np.abs(found - values)[:700].max() < 0.03
    assert 0 < np.abs(found - values)[2500:].max() < 0.03
    assert len(np.unique(found[700:1000])) == 2


def test_rows_of_several_values_are_cut_as_rows():
    spec = TableSpec("w", 300, (10,), fragment_rows=100, codec="int:8", spans=(Span(0), Span(150)))
    values = normal()
    found = decoded(spec, *encoded(spec, values))
    assert 0 < np.abs(found - values).max() < 0.03


def test_a_fragment_that_would_not_shrink_goes_as_it_is():
    spec = TableSpec("w", 8, fragment_rows=1, codec="natural:8")  # a scale and a code: 2 of 4 bytes
    assert [each.nbytes for each in Encoding(spec).cut(KeyRange(0, 8))] == [2] * 8
    spec = TableSpec("w", 8, fragment_rows=1, codec="int:8")  # 5 of 4 bytes
    values = normal(8)
    data, sizes = encoded(spec, values)
    assert sizes == (4,) * 8
    assert np.array_equal(decoded(spec, data, sizes), values)


def test_raw_fragments_are_taken_whatever_the_codec_is():
    """A worker may send some of them as they are, such as before a codec starts."""
    values = normal()
    data, sizes = encoded(spec_of(), values)
    mixed = np.concatenate([values[:1000].view(np.uint8), data[sizes[0] :]])
    found = decoded(spec_of(), mixed, (4000, *sizes[1:]))
    assert np.array_equal(found[:1000], values[:1000])


def test_pieces_whose_size_varies_stand_beside_others():
    spans = Span(0, "a"), Span(700, "b", "zlib"), Span(1500, "c", "none"), Span(2500, "d", "zlib")
    spec, values = spec_of(spans=spans, codec="onebit+zlib"), normal()
    values[700:1500] = 0
    data, sizes = encoded(spec, values)
    found = decoded(spec, data, sizes)
    assert np.array_equal(found[700:], values[700:])
    assert len(np.unique(found[:512])) == 2
    assert sizes[0] < 200 + codec_of("onebit").nbytes(700)
    assert 2000 < sizes[1] < 2200
    assert sizes[2] < 4000
    assert len(data) == sum(sizes)


def test_a_fragment_that_has_not_shrunk_goes_as_it_is():
    """Random bits cannot be compressed; what a codec has left out cannot be sent as it is."""
    bits = np.random.default_rng(0).integers(0x00800000, 0x7F000000, 3000, dtype=np.uint32)
    spec = spec_of(codec="zlib")
    data, sizes = encoded(spec, bits.view(np.float32))
    assert sizes == (4000, 4000, 4000)
    assert decoded(spec, data, sizes).tobytes() == bits.tobytes()
    [one, *_] = Encoding(spec_of(codec="int:8+zlib")).cut(KeyRange(0, 3000))
    assert one.nbytes < 4000
    assert one.varies


@pytest.mark.parametrize("codec", ["zlib", "int:8+zlib", "topk:0.1+int:8+lz4"])
def test_damaged_sizes_of_pieces_harm_nothing(codec):
    spans = Span(0, "a"), Span(400, "b", "int:8"), Span(600, "c")
    spec, rng = spec_of(spans=spans, codec=codec), np.random.default_rng(0)
    values = normal()
    values[::3] = 0
    good, sizes = encoded(spec, values)
    for number in range(3000):
        data = good.copy()
        at = rng.integers(len(data)) if number % 3 else rng.integers(8)
        data[at] = rng.integers(256)
        try:
            found = decoded(spec, data, sizes)
        except BadEncoding:
            continue
        assert np.isfinite(found).all()
    for wrong in (-1, 1):
        some = np.resize(good, len(good) + wrong)
        with pytest.raises(BadEncoding):
            decoded(spec, some, (*sizes[:-1], sizes[-1] + wrong))


@pytest.mark.parametrize("wrong", [-1, 1, -900])
def test_other_sizes_are_refused(wrong):
    data, sizes = encoded(spec_of(), normal())
    size = sizes[0] + wrong
    some = np.resize(data, len(data) + wrong)
    with pytest.raises(BadEncoding, match=f"1000 values has 1008 bytes or 4000, not {size}"):
        decoded(spec_of(), some, (size, *sizes[1:]))


def test_codecs_are_checked_where_a_table_is_declared():
    with pytest.raises(UnknownName, match="int"):
        checked(spec_of(codec="itn:8"))
    with pytest.raises(UnknownName, match="onebit"):
        checked(spec_of(spans=(Span(0, "a", "onebti"),)))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"dtype": "int32", "merge": "sum"},
            "dense and sparse tables of floats, not for a dense table of",
        ),
        (
            {"kind": "sparse", "rows": 0, "dtype": "int64", "merge": "sum"},
            "not for a sparse table of int64",
        ),
        ({"kind": "custom", "rows": 0}, "not for a custom table"),
        ({"nonfinite": "allow"}, "encodes finite values"),
        ({"codec": "x" * 5000}, "at most 4096 characters"),
    ],
)
def test_tables_that_no_codec_is_for(more, words):
    given = {"name": "w", "rows": 3000, "codec": "int:8", **more}
    with pytest.raises(InvalidValue, match=words):
        TableSpec(**given)


def test_a_shard_reuses_the_memory_of_encoded_pushes():
    spec = spec_of(consistency=asp())
    shard = DenseShard(spec, KeyRange(0, 3000))
    values = normal()
    data, sizes = encoded(spec, values)
    for _ in range(3):
        staged = shard.stage_encoded(spec.keys, sizes)
        [view] = staged.views
        view[:] = data.data
        shard.decode(staged)
        assert staged.views[0].nbytes == values.nbytes
        shard.apply(staged, None)
        assert staged.encoded is None
    assert np.abs(shard.rows.numpy().ravel() - 3 * values).max() < 0.1
    raw = shard.stage(spec.keys, -1)
    assert raw is staged
    assert raw.views[0].nbytes == values.nbytes


def test_what_is_sent_to_replicas_is_kept_until_they_have_it():
    spec = spec_of(consistency=asp())
    shard = DenseShard(spec, KeyRange(0, 3000))
    data, sizes = encoded(spec, normal())
    staged = shard.stage_encoded(spec.keys, sizes)
    staged.views[0][:] = data.data
    shard.decode(staged)
    shard.retain(staged)
    shard.apply(staged, None)
    assert bytes(staged.encoded.data) == bytes(data)
    shard.let_go(staged)
    assert staged.encoded is None


def test_a_server_refuses_to_open_what_it_cannot_decode():
    with pytest.raises(UnknownName):
        DenseShard(spec_of(codec="itn:8"), KeyRange(0, 3000))
    with pytest.raises(InvalidValue, match="no residual"):
        DenseShard(spec_of(server_codec="onebit"), KeyRange(0, 3000))
