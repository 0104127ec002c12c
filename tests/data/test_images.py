"""Images by class, in a folder or a tar: which label each has, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shoal.data import images
from shoal.data.images import read_images
from shoal.errors import DataCorrupt, InvalidValue
from tests.data.files import jpeg, png, tar, write

RED, BLUE = jpeg((250, 0, 0)), jpeg((0, 0, 250))
FIRST = 1024  # where the first member's content begins: after two headers
Made = Callable[[dict[str, bytes]], Path]


@pytest.fixture(params=["folder", "pets.tar", "pets.tar.gz"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """A function that makes a folder or a tar of some files."""

    def make(files: dict[str, bytes]) -> Path:
        path = tmp_path / request.param
        if request.param != "folder":
            return write(path, tar(files))
        for name, content in files.items():
            write(path / name, content)
        return path

    return make


def test_a_class_is_a_folder_and_its_label_a_place_in_their_order(made: Made) -> None:
    path = made({"dog/2.jpg": BLUE, "cat/9.JPEG": RED, "cat/notes.txt": b"none", "a.md": b""})
    found = read_images(path)
    assert found["label"].tolist() == [0, 1]
    assert not found["test"].any()
    assert found["pixels"].shape == (2, 3, 32, 32)
    assert np.abs(found["pixels"].mean((2, 3)) - [[250, 0, 0], [0, 0, 250]]).max() < 5


@pytest.mark.parametrize("around", ["", "pets/", "data/pets/"])
@pytest.mark.parametrize("test", ["test", "val"])
def test_test_images_may_be_given(made: Made, around: str, test: str) -> None:
    names = {f"{around}train/{c}/{i}.png": png(10 * i) for i, c in enumerate("abab")}
    names |= {f"{around}{test}/{c}/7.png": png(7) for c in "ba"}
    if test == "test":
        names[f"{around}val/a/8.png"] = png(8)  # is left out
    found = read_images(made(names))
    assert sorted(found["label"][~found["test"]].tolist()) == [0, 0, 1, 1]
    assert found["label"][found["test"]].tolist() == [0, 1]
    assert found["pixels"][found["test"]].ravel().tolist() == [7] * 32


def test_the_first_image_says_whether_all_are_grey(made: Made) -> None:
    size = (4, 4)
    grey = read_images(made({"a/1.png": png(3), "b/2.jpg": jpeg((9, 9, 9), size)}))
    assert grey["pixels"].shape == (2, 1, 4, 4)


@pytest.mark.parametrize(
    ("files", "error", "told"),
    [
        ({}, InvalidValue, "images of 0 classes"),
        ({"cat/1.jpg": RED}, InvalidValue, "images of 1 class:"),
        ({"x/cat/1.jpg": RED, "x/cat/2.jpg": RED}, InvalidValue, "images of 1 class:"),
        ({"1.jpg": RED, "cat/2.jpg": RED}, DataCorrupt, "'1.jpg' is not in the folder of a class"),
        ({"a/1.jpg": b"rubbish", "b/2.jpg": RED}, DataCorrupt, "'a/1.jpg' is not a whole JPEG"),
        ({"a/1.jpg": RED, "b/2.jpg": RED[:-100]}, DataCorrupt, "'b/2.jpg' is not a whole JPEG"),
        ({"a/1.jpg": RED, "b/2.png": b""}, DataCorrupt, "'b/2.png' is not a whole JPEG"),
        (
            {"a/1.jpg": RED, "b/2.jpg": jpeg((1, 2, 3), (16, 8))},
            DataCorrupt,
            "'b/2.jpg' is 16x8 pixels, and the first is 32x32",
        ),
    ],
)
def test_other_files_are_refused(
    made: Made, files: dict[str, bytes], error: type[Exception], told: str
) -> None:
    path = made(files)
    path.mkdir(exist_ok=True) if path.name == "folder" else None
    with pytest.raises(error, match=told):
        read_images(path)


def test_all_images_together_have_a_bound(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made({"a/1.png": png(1), "b/2.png": png(2)})
    monkeypatch.setattr(images, "PIXEL_BYTES_MAX", 3 * 16)
    assert len(read_images(path)) == 2
    write(path / "b" / "3.png", png(3)) if path.is_dir() else write(
        path, tar({f"{c}/{n}.png": png(n) for n, c in enumerate("abbb")})
    )
    monkeypatch.setattr(images, "PIXEL_BYTES_MAX", 47 - 0)
    with pytest.raises((InvalidValue, DataCorrupt), match="pixels"):
        read_images(path)


def test_a_truncated_tar_is_never_taken_for_a_shorter_one(tmp_path: Path) -> None:
    whole = tar({"a/0.jpg": RED, "b/1.jpg": BLUE})
    end = FIRST + -(-len(RED) // 512) * 512 + 512 + -(-len(BLUE) // 512) * 512
    path = tmp_path / "cut.tar"
    for length in [*range(0, end + 512, 97), FIRST, FIRST + 1, end, end + 511]:
        with pytest.raises(DataCorrupt, match=r"cut.tar: at byte \d+: "):
            read_images(write(path, whole[:length]))
    assert len(read_images(write(path, whole[: end + 512]))) == 2


def test_a_damaged_tar_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    whole = bytearray(tar({"a/0.jpg": RED, "b/1.jpg": BLUE}))
    second = FIRST + -(-len(RED) // 512) * 512
    whole[second + 150] ^= 0xFF  # in the header's checksum
    with pytest.raises(DataCorrupt, match=f"at byte {second}: "):
        read_images(write(tmp_path / "bad.tar", whole))
