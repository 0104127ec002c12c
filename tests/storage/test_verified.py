"""Files of tensors: one that is not as it was written is refused by name."""

import re

import pytest
import torch

from shoal.errors import DataCorrupt, DataMissing
from shoal.storage.verified import (
    DTYPES,
    check_verified,
    read_some,
    read_told,
    read_verified,
    write_verified,
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "folder" / "a.safetensors"
    write_verified(path, {"0.rows": torch.arange(9.0), "1.rows": torch.ones(2)}, {"tables": "[]"})
    return path


def test_a_file_reads_as_it_was_written(path):
    tensors, told = read_verified(path)
    assert torch.equal(tensors["0.rows"], torch.arange(9.0))
    assert told["tables"] == "[]"
    assert read_told(path) == told
    assert list(read_some(path, "1.")) == ["rows"]


def test_every_changed_byte_is_noticed(path):
    """Of rows and of what the file says; or it reads as it was written (a space of the header)."""
    data, (tensors, told) = path.read_bytes(), read_verified(path)
    refused = 0
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            found, said = read_verified(path)
        except DataCorrupt as error:
            assert str(path) in error.message  # noqa: PT017
            refused += 1
            with pytest.raises(DataCorrupt, match=re.escape(str(path))):
                check_verified(path)
        else:
            check_verified(path)
            assert said == told
            assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert refused > 0.95 * len(data)


def test_every_truncation_is_noticed(path):
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(DataCorrupt, match=r"a\.safetensors is damaged: .*restore it from"):
            read_verified(path)
        with pytest.raises(DataCorrupt, match=r"a\.safetensors is damaged: .*restore it from"):
            check_verified(path)


STORED = [each.removeprefix("torch.") for each in DTYPES.values()]


@pytest.mark.parametrize("dtype", [*STORED, "float8_e4m3fn", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3)], ids=str)
def test_a_file_is_checked_where_it_is_whatever_it_has(dtype, shape, tmp_path):
    """By the bytes alone; of a type whose name is not known, by torch."""
    path = tmp_path / "b.safetensors"
    values = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    write_verified(path, {"b": values, "a": torch.arange(3), "c": values.clone()}, {})
    check_verified(path)
    tail = bytearray(path.read_bytes())
    tail[-1] ^= 1  # of the last tensor with a value
    path.write_bytes(tail)
    with pytest.raises(DataCorrupt, match="its rows are not as they were written"):
        check_verified(path)


def test_a_file_without_tensors_is_whole(tmp_path):
    path = tmp_path / "none.safetensors"
    write_verified(path, {}, {"tables": "[]"})
    check_verified(path)


def test_a_file_that_is_not_there_and_a_folder_in_its_place_are_refused(path):
    path.unlink()
    with pytest.raises(DataMissing, match=r"a\.safetensors does not exist"):
        read_verified(path)
    path.mkdir()
    for read in (read_verified, read_told, check_verified, lambda path: read_some(path, "0.")):
        with pytest.raises(DataCorrupt, match=r"a\.safetensors is damaged: it cannot be read"):
            read(path)
