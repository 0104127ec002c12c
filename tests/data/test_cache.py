"""`data.cache`: decoded once, decoded anew when the file changes, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data import cache
from shoal.data.cache import kept


class Decoder:
    """Decodes to an array of its number of calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, source: Path) -> np.ndarray[Any, Any]:
        assert source.is_file()
        self.calls += 1
        return np.full((2, 3), self.calls, np.uint8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "big.gz"
    path.write_bytes(bytes(cache.SMALLEST_BYTES))
    return path


def test_a_file_is_decoded_once(tmp_path: Path, source: Path) -> None:
    decode = Decoder()
    first, second = (kept(tmp_path / "cache", source, decode) for _ in range(2))
    assert decode.calls == 1
    assert np.array_equal(first, second)
    assert isinstance(second, np.memmap)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npy"]


def test_writing_to_the_array_changes_no_file(tmp_path: Path, source: Path) -> None:
    kept(tmp_path, source, Decoder())
    kept(tmp_path, source, Decoder())[:] = 9
    assert kept(tmp_path, source, Decoder()).max() == 1


def test_a_changed_file_is_decoded_anew_and_its_old_array_removed(
    tmp_path: Path, source: Path
) -> None:
    decode = Decoder()
    kept(tmp_path, source, decode)
    os.utime(source, ns=(1, 1))
    assert kept(tmp_path, source, decode).max() == 2
    assert len(list(tmp_path.glob("*.npy"))) == 1


def test_files_of_one_name_in_two_folders_do_not_meet(tmp_path: Path, source: Path) -> None:
    other = tmp_path / "other" / source.name
    other.parent.mkdir()
    other.write_bytes(source.read_bytes())
    os.utime(other, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
    decode = Decoder()
    kept(tmp_path, source, decode)
    assert kept(tmp_path, other, decode).max() == 2
    assert kept(tmp_path, source, decode).max() == 1


def test_small_files_are_not_kept(tmp_path: Path) -> None:
    small = tmp_path / "small.gz"
    small.write_bytes(b"x")
    kept(tmp_path, small, Decoder())
    assert not list(tmp_path.glob("*.npy"))


UNENDED = b"\x93NUMPY\x01\x00\x10\x00" + b"{'descr': ('|u1\n"  # numpy raises a TokenError


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"rubbish", UNENDED])
def test_a_damaged_cache_is_replaced(tmp_path: Path, source: Path, content: bytes) -> None:
    kept(tmp_path, source, Decoder())
    (array,) = tmp_path.glob("*.npy")
    array.write_bytes(content)
    assert kept(tmp_path, source, Decoder()).max() == 1
    assert np.load(array).max() == 1


def test_no_changed_bit_of_a_kept_array_is_used(
    tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path, source, Decoder())
    (array,) = tmp_path.glob("*.npy")
    whole = array.read_bytes()
    for byte in range(len(whole)):
        array.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :])
        again = kept(tmp_path, source, Decoder())
        assert (again.tolist(), again.dtype) == ([[1, 1, 1]] * 2, np.uint8), byte
    assert f"{array} is not as it was written: {source} is decoded again" in caplog.text
    caplog.clear()
    kept(tmp_path, source, Decoder())
    assert caplog.text == ""


def test_a_cache_that_others_can_write_to_is_not_used(
    tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    kept(folder, source, Decoder())
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    cache._is_private.cache_clear()  # as in another process
    decode = Decoder()
    for _ in range(2):
        kept(folder, source, decode)
    assert decode.calls == 2
    assert caplog.text.count("decoded data are not kept") == 1
    assert f"{folder} can be written to by all users (mode 777)" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_an_array_of_another_user_is_not_used(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "cache"
    kept(folder, source, Decoder())
    os.chown(next(folder.glob("*.npy")), 54321, 54321)
    cache._is_private.cache_clear()
    decode = Decoder()
    kept(folder, source, decode)
    assert decode.calls == 1


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (3, 2, 1)])
@pytest.mark.parametrize("dtype", [">i4", "f8", "?"])
def test_arrays_of_every_kind_are_kept(
    tmp_path: Path, source: Path, shape: tuple[int, ...], dtype: str
) -> None:
    array = np.asfortranarray(np.arange(np.prod(shape)).reshape(shape).astype(dtype))
    for _ in range(2):
        again = kept(tmp_path, source, lambda _: array)
        assert (again.dtype, again.shape) == (array.dtype, array.shape)
        assert np.array_equal(again, array)


def test_a_name_with_marks_of_patterns_is_a_name(tmp_path: Path, source: Path) -> None:
    marked = source.rename(source.with_name("big[1]*.gz"))
    decode = Decoder()
    for _ in range(2):
        kept(tmp_path / "cache", marked, decode)
    os.utime(marked, ns=(1, 1))
    kept(tmp_path / "cache", marked, decode)
    assert decode.calls == 2
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, source: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    decode = Decoder()
    for _ in range(2):
        kept(in_the_way / "cache", source, decode)
    assert decode.calls == 2


def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_save", full)
    assert kept(tmp_path / "cache", source, Decoder()).max() == 1
    assert list((tmp_path / "cache").iterdir()) == []
