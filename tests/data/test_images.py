"""Images by class, in a folder or a tar: which label each has, and what is refused."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.data import images
from shoal.data.images import files_of_images, read_images
from shoal.errors import DataCorrupt, DataMissing, InvalidValue
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
    assert not found["part"].any()
    assert found["pixels"].shape == (2, 3, 32, 32)
    assert np.abs(found["pixels"].mean((2, 3)) - [[250, 0, 0], [0, 0, 250]]).max() < 5


@pytest.mark.parametrize("around", ["", "pets/", "data/pets/"])
@pytest.mark.parametrize("test", ["test", "val", "Testing"])
def test_test_images_may_be_given(made: Made, around: str, test: str) -> None:
    train = "Training" if test == "Testing" else "train"
    names = {f"{around}{train}/{c}/{i}.png": png(10 * i) for i, c in enumerate("abab")}
    names |= {f"{around}{test}/{c}/7.png": png(7) for c in "ba"}
    if test == "test":
        names[f"{around}val/a/8.png"] = png(8)  # is left out
    if test == "val":
        names[f"{around}test/8.png"] = png(8)  # has no labels, as in a contest
    found = read_images(made(names))
    assert found["part"].tolist() == [0, 0, 0, 0, 1, 1]  # training images come first
    assert found["label"].tolist() == [0, 0, 1, 1, 0, 1]
    assert found["pixels"][:, 0, 0, 0].tolist() == [0, 20, 10, 30, 7, 7]


def test_hidden_files_and_folders_do_not_count(made: Made) -> None:
    hidden = ("cat/._1.jpg", ".thumbnails/1.jpg", "__MACOSX/cat/1.jpg", "cat/.x/1.jpg")
    found = read_images(made({"cat/1.jpg": RED, "dog/1.jpg": BLUE, **dict.fromkeys(hidden, b"")}))
    assert found["label"].tolist() == [0, 1]


def test_sixteen_bits_of_grey_are_scaled(made: Made) -> None:
    content = io.BytesIO()
    ramp = (np.arange(16, dtype=np.uint16) * 4096).reshape(4, 4)
    Image.fromarray(ramp).save(content, "PNG")
    found = read_images(made({"a/1.png": content.getvalue(), "b/2.png": png(3)}))
    assert found["pixels"][0, 0].ravel().tolist() == [16 * i for i in range(16)]


def test_folders_behind_links_count_and_unreadable_ones_are_named(tmp_path: Path) -> None:
    for name in ("pets/cat/1.jpg", "elsewhere/1.jpg"):
        write(tmp_path / name, RED)
    (tmp_path / "pets" / "dog").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "pets" / "dog" / "around").symlink_to(tmp_path / "pets")  # is not followed
    (tmp_path / "pets" / "owl").symlink_to(tmp_path / "elsewhere")  # as dog
    assert read_images(tmp_path / "pets")["label"].tolist() == [0, 1, 2]
    (tmp_path / "pets" / "owl").unlink()
    os.mkfifo(tmp_path / "pets" / "cat" / "2.jpg")
    assert read_images(tmp_path / "pets")["label"].tolist() == [0, 1]
    with pytest.raises(DataMissing, match="nothere: cannot be read"):
        files_of_images(tmp_path / "nothere")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["/a/1.png", "b/1.png"], None),
        (["././a/1.png", "b//1.png"], None),
        (["../a/1.png", "b/1.png"], "member '../a/1.png' is outside of the tar"),
        (["a/1.png", "b/1.png", "./a/1.png"], "member './a/1.png' is there twice"),
    ],
)
def test_names_in_a_tar_may_be_written_otherwise(
    tmp_path: Path, names: list[str], told: str | None
) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(RED)
            archive.addfile(info, io.BytesIO(RED))
    path = write(tmp_path / "pets.tar", content.getvalue())
    if told is not None:
        with pytest.raises(DataCorrupt, match=told):
            read_images(path)
    elif names[0].startswith("/"):  # all of it is below the root, and b beside it
        with pytest.raises(DataCorrupt, match="is not in the folder of a class"):
            read_images(path)
    else:
        assert read_images(path)["label"].tolist() == [0, 1]


def test_a_link_in_a_tar_is_named(tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        link = tarfile.TarInfo("a/2.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "a/1.jpg"
        archive.addfile(link)
    with pytest.raises(DataCorrupt, match=r"member 'a/2\.jpg' is a link"):
        read_images(write(tmp_path / "pets.tar", content.getvalue()))


def test_the_first_image_says_whether_all_are_grey(made: Made) -> None:
    size = (4, 4)
    grey = read_images(made({"a/1.png": png(3), "b/2.jpg": jpeg((9, 9, 9), size)}))
    assert grey["pixels"].shape == (2, 1, 4, 4)


@pytest.mark.parametrize(
    ("files", "error", "told"),
    [
        ({}, InvalidValue, "training images of 0 classes"),
        ({"cat/1.jpg": RED}, InvalidValue, "training images of 1 class:"),
        ({"x/cat/1.jpg": RED, "x/cat/2.jpg": RED}, InvalidValue, "training images of 1 class:"),
        ({"1.jpg": RED, "cat/2.jpg": RED}, DataCorrupt, "'1.jpg' is not in the folder of a class"),
        ({"x/a/1.jpg": RED, "y/b/c/2.jpg": RED}, DataCorrupt, "'x/a/1.jpg' is not in the folder"),
        (
            {"train/1.jpg": RED, "train/a/1.jpg": RED, "test/a/2.jpg": RED},
            DataCorrupt,
            "'train/1.jpg' is not in the folder of a class",
        ),
        (
            {"train/a/1.jpg": RED, "train/b/1.jpg": RED, "test/B/2.jpg": RED},
            DataCorrupt,
            "no training image is of class 'B', as test/B/2.jpg is",
        ),
        ({"test/a/1.jpg": RED, "val/b/1.jpg": RED}, DataCorrupt, "'test' and none for training"),
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
    monkeypatch.setattr(images, "PIXEL_BYTES_MAX", 2 * 16)
    assert len(read_images(path)) == 2
    monkeypatch.setattr(images, "PIXEL_BYTES_MAX", 2 * 16 - 1)
    with pytest.raises(DataCorrupt, match="2 images of 4x4 are more than 0 GiB of pixels"):
        read_images(path)


def test_an_image_has_a_bound_in_folders_and_tars(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made({"a/1.jpg": RED, "b/2.jpg": BLUE})
    monkeypatch.setattr(images, "IMAGE_BYTES_MAX", len(RED) - 1)
    with pytest.raises(DataCorrupt, match=f"longer than {len(RED) - 1} bytes"):
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
