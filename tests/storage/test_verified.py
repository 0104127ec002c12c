"""Files of tensors: one that is not as it was written is refused by name."""

import pytest
import torch

from shoal.errors import DataCorrupt, DataMissing
from shoal.storage.verified import read_some, read_told, read_verified, write_verified


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
        else:
            assert said == told
            assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert refused > 0.95 * len(data)


def test_every_truncation_is_noticed(path):
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(DataCorrupt, match=r"a\.safetensors is damaged: .*restore it from"):
            read_verified(path)


def test_a_file_that_is_not_there_and_a_folder_in_its_place_are_refused(path):
    path.unlink()
    with pytest.raises(DataMissing, match=r"a\.safetensors does not exist"):
        read_verified(path)
    path.mkdir()
    for read in (read_verified, read_told, lambda path: read_some(path, "0.")):
        with pytest.raises(DataCorrupt, match=r"a\.safetensors is damaged: it cannot be read"):
            read(path)
