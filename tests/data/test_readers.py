"""`data.readers`: good files are read, and damaged ones named with the place of the damage."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.readers import (
    CIFAR_RECORD,
    read_bytes,
    read_cifar,
    read_csv,
    read_idx,
    split_records,
)
from shoal.errors import DataCorrupt, DataMissing
from tests.data.files import cifar, idx, write

# -- bytes ---------------------------------------------------------------------------------------


def test_plain_and_gzip_files_read_alike(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    members = gzip.compress(content[:100]) + gzip.compress(content[100:]) + bytes(7)
    assert read_bytes(write(tmp_path / "plain", content), 1 << 20) == content
    assert read_bytes(write(tmp_path / "one.gz", content), 1 << 20) == content
    assert read_bytes(write(tmp_path / "members", members), 1 << 20) == content
    assert read_bytes(write(tmp_path / "empty", b""), 1 << 20) == b""


def test_a_gzip_file_that_ends_early_is_named_with_its_length(tmp_path: Path) -> None:
    whole = gzip.compress(bytes(range(256)) * 40)
    for length in (2, 9, 30, len(whole) // 2, len(whole) - 1):
        path = write(tmp_path / f"cut{length}", whole[:length])
        with pytest.raises(DataCorrupt, match=rf"cut{length}: at byte {length}: .*truncated"):
            read_bytes(path, 1 << 20)


def test_damage_in_a_gzip_file_is_found_where_it_is(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()
    damaged = bytearray(gzip.compress(noise))
    damaged[-6] ^= 1  # in the checksum
    with pytest.raises(DataCorrupt, match=r"bad: at byte 4608: damaged gzip data .*data check"):
        read_bytes(write(tmp_path / "bad", damaged), 1 << 20)
    with pytest.raises(DataCorrupt, match=r"tail: at byte .*: damaged gzip data"):
        read_bytes(write(tmp_path / "tail", gzip.compress(noise) + b"tail"), 1 << 20)
    (tmp_path / "fake.gz").write_bytes(b"plain")
    with pytest.raises(DataCorrupt, match=r"fake.gz: at byte 0: not a gzip file"):
        read_bytes(tmp_path / "fake.gz", 1 << 20)


def test_a_file_that_cannot_be_opened_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"nothing: cannot be read \(No such file"):
        read_bytes(tmp_path / "nothing", 1 << 20)


# -- IDX -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x-idx", "x-idx.gz"])
def test_idx_bytes_keep_their_shape(tmp_path: Path, name: str) -> None:
    array = read_idx(write(tmp_path / name, idx((2, 3, 4))), dims=3)
    assert array.tolist() == np.arange(24).reshape(2, 3, 4).tolist()
    assert (array.dtype, array.flags.writeable) == (np.uint8, True)


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(0x08, "u1"), (0x09, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")],
)
def test_idx_values_of_every_dtype_come_in_native_order(
    tmp_path: Path, code: int, dtype: str
) -> None:
    values = np.array([1, 2, 100]).astype(">" + dtype)
    array = read_idx(write(tmp_path / "x", idx((3,), code, values.tobytes())))
    assert (array.dtype, array.tolist()) == (np.dtype(dtype), [1, 2, 100])


def test_an_empty_idx_array_is_an_array(tmp_path: Path) -> None:
    assert read_idx(write(tmp_path / "x", idx((0, 28, 28)))).shape == (0, 28, 28)


@pytest.mark.parametrize("name", ["cut-idx", "cut-idx.gz"])
@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 15, 16, 17, 39])
def test_a_truncated_idx_file_is_named_with_the_offset(
    tmp_path: Path, name: str, length: int
) -> None:
    path = write(tmp_path / name, idx((2, 3, 4))[:length])
    with pytest.raises(DataCorrupt, match=rf"{name}: at byte {length}: the file ends"):
        read_idx(path)


@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [
        (0, 1, r"at byte 0: not an IDX file: the magic number is 01 00 08 03"),
        (1, 9, r"at byte 0: not an IDX file"),
        (2, 0x0A, r"at byte 2: unknown IDX dtype code 0x0a"),
        (2, 0x0C, r"at byte 40: the file ends, but shape \(2, 3, 4\) needs 112 bytes"),
        (3, 0, r"at byte 3: 0 dimensions where 3 must be"),
        (3, 2, r"at byte 3: 2 dimensions where 3 must be"),
        (7, 3, r"at byte 40: the file ends, but shape \(3, 3, 4\) needs 52 bytes"),
        (4, 255, r"at byte 40: the file ends, but shape \(4278190082, 3, 4\) needs"),
        (7, 1, r"at byte 28: more bytes than shape \(1, 3, 4\) needs"),
    ],
)
def test_a_corrupt_idx_header_is_named_with_the_offset(
    tmp_path: Path, offset: int, value: int, says: str
) -> None:
    content = bytearray(idx((2, 3, 4)))
    content[offset] = value
    with pytest.raises(DataCorrupt, match=rf"bad-idx: {says}"):
        read_idx(write(tmp_path / "bad-idx", content), dims=3)


@given(content=st.binary(max_size=64), header=st.booleans())
def test_no_bytes_crash_the_idx_reader(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, header: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-idx"
    path.write_bytes((b"\0\0\x08" if header else b"") + content)
    with contextlib.suppress(DataCorrupt):
        read_idx(path)


# -- CIFAR-10 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch.bin", "batch.bin.gz"])
def test_cifar_records_are_label_and_planes(tmp_path: Path, name: str) -> None:
    images, labels = split_records(read_cifar(write(tmp_path / name, cifar([3, 9, 0]))))
    assert labels.tolist() == [3, 9, 0]
    assert images.shape == (3, 3, 32, 32)
    assert images[0, 0, 0, :3].tolist() == [3, 4, 5]  # red, first row
    assert images[0, 1, 1, 0] == (1024 + 32 + 3) % 256  # green, second row


def test_a_damaged_cifar_file_is_named_with_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "bad.bin"
    for length, says in [
        (0, "at byte 0: record 0 has 0 of 3073 bytes"),
        (100, "at byte 0: record 0 has 100 of 3073 bytes"),
        (CIFAR_RECORD + 1, f"at byte {CIFAR_RECORD}: record 1 has 1 of 3073 bytes"),
    ]:
        with pytest.raises(DataCorrupt, match=rf"bad.bin: {says}"):
            read_cifar(write(path, cifar([1, 2])[:length]))
    with pytest.raises(DataCorrupt, match=rf"at byte {2 * CIFAR_RECORD}: sample 2 has label 10"):
        read_cifar(write(path, cifar([1, 2, 10, 11])))


# -- CSV -----------------------------------------------------------------------------------------


def table(tmp_path: Path, text: str, name: str = "t.csv", **options: Any) -> Any:
    return read_csv(write(tmp_path / name, text.encode()), **options)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_numbers_and_a_class_of_numbers(tmp_path: Path, name: str) -> None:
    read = table(tmp_path, "1,2.5,4\n-3e2, .5 ,2\n\n7,8,10\n", name)
    assert read.features.tolist() == [[1, 2.5], [-300, 0.5], [7, 8]]
    assert (read.features.dtype, read.labels.dtype) == (np.float32, np.int64)
    assert (read.labels.tolist(), read.classes) == ([1, 0, 2], ("2", "4", "10"))
    assert (read.header, read.dropped) == ((), 0)


def test_classes_may_be_words_in_sorted_order(tmp_path: Path) -> None:
    read = table(tmp_path, "1,virginica\n2,setosa\n3,virginica\n4,7\n")
    assert (read.labels.tolist(), read.classes) == ([2, 1, 2, 0], ("7", "setosa", "virginica"))


def test_spellings_of_a_number_are_one_class(tmp_path: Path) -> None:
    assert table(tmp_path, "1,1\n2,1.0\n3,2\n").classes == ("1", "2")


def test_a_line_of_names_is_a_header(tmp_path: Path) -> None:
    read = table(tmp_path, '\ufeff"length, cm",kind\r\n1,a\r\n2,b\r\n')
    assert (read.header, read.features.tolist()) == (("length, cm", "kind"), [[1], [2]])
    assert table(tmp_path, "2001,2002\n1,0\n", header=True).features.tolist() == [[1]]


def test_a_first_line_with_one_bad_field_is_no_header(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match=r"t.csv: line 1, column 2: 'oops' is not a number"):
        table(tmp_path, "1,oops,0\n1,2,0\n")
    with pytest.raises(DataCorrupt, match="line 1, column 1: 'a' is not a number"):
        table(tmp_path, "a,b\n1,0\n", header=False)


def test_rows_with_missing_values_are_dropped_and_counted(tmp_path: Path) -> None:
    text = "?,1,0\n1,2,1\n3, ?,0\n4,5,?\n6,7,0\n"
    read = table(tmp_path, text)
    assert (read.features.tolist(), read.labels.tolist()) == ([[1, 2], [6, 7]], [1, 0])
    assert read.dropped == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: needs a feature and a class, has 0 fields"),
        ("5\n6\n", "line 1: needs a feature and a class, has 1 fields"),
        ("a,b\n", "line 1: no complete row"),
        ("1,?\n", r"line 1: no complete row \(1 with missing"),
        ("1,2,0\n\n1,2\n", "line 3: 2 fields where the first line has 3"),
        ("1,2,0\n1,2,3,0\n", "line 2: 4 fields where the first line has 3"),
        ("1,2,0\n1,x,0\n", "line 2, column 2: 'x' is not a number"),
        ("1,2,0\n1,,0\n", "line 2, column 2: '' is not a number"),
        ("1,2,0\nnan,2,0\n", "line 2, column 1: 'nan' is not a number"),
        ("1,2,0\n1,-inf,0\n", "line 2, column 2: '-inf' is not a number"),
        ("1,2,0\n1,1e39,0\n", "line 2, column 2: '1e39' is not a number"),
        ("1,2,0\n1_0,2,0\n", "line 2, column 1: '1_0' is not a number"),
        ("1,2,0\n\n3,4,yes\n", "line 3, column 3: the class 'yes' is not a whole number"),
        ("1,2,0.5\n", "line 1, column 3: the class '0.5' is not a whole number"),
        ('1,2,0\n1,"2,0\n', "line 2: unexpected end of data"),
    ],
)
def test_a_bad_csv_file_is_named_with_line_and_column(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataCorrupt, match=rf"t.csv: {says}"):
        table(tmp_path, text)


def test_bytes_that_are_not_text_are_named_with_the_offset(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match=r"t.csv: at byte 4: not UTF-8"):
        read_csv(write(tmp_path / "t.csv", b"1,2\n\xff,3\n"))


@given(st.text(alphabet='0123456789.,-e?"\n\r ab_\0', max_size=60))
def test_no_text_crashes_the_csv_reader(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(text.encode())
    with contextlib.suppress(DataCorrupt):
        read = read_csv(path)
        assert np.isfinite(read.features).all()
        assert set(read.labels.tolist()) == set(range(len(read.classes)))
