"""Rows of sparse tables, encoded one by one."""

import numpy as np
import pytest
import torch

from shoal.errors import BadEncoding, InvalidValue, NotFinite, UnknownName
from shoal.keys import SLOTS, KeyRange
from shoal.protocol.layout import Layout
from shoal.tables.opening import checked
from shoal.tables.row_encoding import RowEncoding
from shoal.tables.sparse.shard import SparseShard
from shoal.tables.spec import TableSpec

CODECS = ["fp16", "bf16", "fp8", "int:8", "int:4", "qsgd:8", "natural:8", "qsgd:4", "ternary"]


def spec_of(codec="int:8", width=16, **more):
    return TableSpec("e", row_shape=(width,), kind="sparse", merge="sum", codec=codec, **more)


def rows_of(count=20, width=16):
    return np.random.default_rng(3).standard_normal((count, width)).astype(np.float32)


@pytest.mark.parametrize("codec", CODECS)
def test_encoded_rows_can_be_cut_and_joined_anywhere(codec):
    encoding, rows = RowEncoding(spec_of(codec)), rows_of()
    data = encoding.encode(rows, 7).reshape(20, encoding.nbytes(1))
    order = np.random.default_rng(1).permutation(20)
    decoded, moved = np.empty_like(rows), np.empty_like(rows)
    encoding.decode(data.reshape(-1), decoded)
    encoding.decode(data[order].reshape(-1), moved)
    assert np.array_equal(moved, decoded[order])
    assert np.abs(decoded - rows).max() < {"ternary": 4, "qsgd:4": 1, "natural:8": 2}.get(
        codec, 0.6
    )


@pytest.mark.parametrize("codec", ["fp16", "qsgd:8", "natural:8", "qsgd:4"])
def test_what_has_no_residual_has_no_bias(codec):
    encoding, rows, total = RowEncoding(spec_of(codec)), rows_of(4), np.zeros((4, 16))
    for key in range(2000):
        decoded = np.empty_like(rows)
        encoding.decode(encoding.encode(rows, key), decoded)
        total += decoded
    assert np.abs(total / 2000 - rows).max() < 0.05


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_either_dtype(dtype):
    encoding = RowEncoding(spec_of("fp16", dtype=dtype))
    rows = rows_of().astype(dtype)
    decoded = np.zeros((20, 32), dtype)[:, ::2]  # also where they are not contiguous
    encoding.decode(encoding.encode(rows, 0), decoded)
    assert np.abs(decoded - rows).max() < 0.01


def test_values_that_cannot_be_encoded():
    rows = rows_of()
    for bad in (np.nan, np.inf, 1e6):
        rows[3, 5] = bad
        with pytest.raises(NotFinite):
            RowEncoding(spec_of("fp16")).encode(rows, 0)


def test_bytes_that_are_no_rows():
    encoding, into = RowEncoding(spec_of()), np.empty((2, 16), np.float32)
    with pytest.raises(BadEncoding, match="2 encoded rows have 40 bytes, not 39"):
        encoding.decode(np.zeros(39, np.uint8), into)
    with pytest.raises(BadEncoding):
        encoding.decode(np.full(40, 255, np.uint8), into)


@pytest.mark.parametrize("field", ["codec", "server_codec"])
@pytest.mark.parametrize(
    ("codec", "width", "words"),
    [
        ("onebit", 16, "needs a residual"),
        ("topk:0.1", 16, "needs a residual"),
        ("zlib", 16, "needs a size for each row"),
        ("int:8", 12, r"of 8, 16, ... to 4096 values, not of 12; take fp16"),
        ("int:8", 1, "take fp16 or bf16"),
        ("int:8:block=32", 16, "leave out block"),
        ("powersgd:2", 16, "for sums over the workers"),
        ("delta:int:8", 16, "choose 'int:8'|is for rows that workers pull"),
    ],
)
def test_codecs_that_are_not_for_rows(field, codec, width, words):
    with pytest.raises(InvalidValue, match=words):
        checked(TableSpec("e", row_shape=(width,), kind="sparse", **{field: codec}))


def test_codecs_that_are_not_known():
    with pytest.raises(UnknownName, match="did you mean 'int'"):
        checked(spec_of("itn:8"))


@pytest.mark.parametrize("kind", [{"kind": "custom"}, {"kind": "sparse", "dtype": "int64"}])
def test_tables_that_no_codec_is_for(kind):
    with pytest.raises(InvalidValue, match="codecs are for dense and sparse tables of floats"):
        TableSpec("e", codec="fp16", merge="sum", **kind)


@pytest.mark.parametrize("sizes", [(), (0,), (64,), (65,), (20, 20)])
def test_sizes_that_no_encoded_row_has(sizes):
    assert Layout(spec_of()).encoded_row_problem((20,)) == ""
    assert "encoded rows of" in Layout(spec_of()).encoded_row_problem(sizes)
    dense = TableSpec("w", 10, (16,), codec="fp16")
    assert Layout(dense).encoded_row_problem((20,))


def test_a_shard_reuses_the_memory_of_encoded_rows():
    spec = spec_of("fp16")
    shard, encoding, rows = SparseShard(spec, KeyRange(0, SLOTS)), RowEncoding(spec), rows_of(3)
    keys = np.array([1, 5, 9], np.uint64)
    for turn in range(3):
        staged = shard.stage_encoded_keys(spec.keys, 3, encoding.nbytes(1))
        of_keys, of_rows = staged.views
        of_keys[:] = keys.tobytes()
        of_rows[:] = encoding.encode(rows, 0).tobytes()
        shard.decode(staged)
        assert [view.nbytes for view in staged.views] == [24, rows.nbytes]
        shard.apply(staged, None)
        assert staged.encoded is staged.memory is None, turn
    refused = shard.stage_encoded_keys(spec.keys, 3, encoding.nbytes(1))
    shard.release(refused)
    assert refused.encoded is refused.memory is None
    free = shard._staging._free
    assert all(len({id(each) for each in some}) == len(some) for some in free.values())
    pull = shard.stage_keys(spec.keys, 3)
    pull.keys[:] = keys
    found = torch.frombuffer(bytearray(shard.read_keys(pull)), dtype=torch.float32).view(3, 16)
    assert (found - 3 * torch.from_numpy(rows)).abs().max() < 0.01


def test_a_shard_without_a_codec_decodes_nothing():
    shard = SparseShard(spec_of(""), KeyRange(0, SLOTS))
    staged = shard.stage_encoded_keys(shard.held, 2, 20)
    with pytest.raises(BadEncoding, match="has no codec"):
        shard.decode(staged)
