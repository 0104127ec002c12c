"""Images by class: JPEG and PNG files in a folder or a tar, with a folder for each class.

    train/CLASS/NAME.jpg  test/CLASS/NAME.jpg     the test images are given
    CLASS/NAME.png                                none are

A folder around all of these does not matter, nor do other files and hidden ones. All images have
one size; they are grey if the first is, and else RGB, without transparency. Decoding is lossy in
the last bit: two builds of libjpeg may differ by one in a pixel.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from shoal.data.readers import read_bytes, samples, tar_files
from shoal.data.streams import corrupt
from shoal.errors import DataCorrupt, DataMissing, InvalidValue, ShoalError
from shoal.extras import require

Pixels = npt.NDArray[np.uint8]
SUFFIXES = (".jpg", ".jpeg", ".png")
TRAIN = ("train", "training")  # folders, in any case
TEST = ("test", "testing", "val", "valid", "validation")  # the first that has images counts
LAYOUT = "images are CLASS/NAME, or train/CLASS/NAME and test/CLASS/NAME"
IMAGE_BYTES_MAX = 64 << 20  # bytes of an image's file
PIXEL_BYTES_MAX = 4 << 30  # bytes of all images, decoded


class _Image(NamedTuple):
    """An image: the parts of its name, its place in the tar, and its content."""

    parts: tuple[str, ...]
    offset: int
    read: Callable[[], bytes | bytearray]

    @property
    def name(self) -> str:
        return "/".join(self.parts)


class _Placed(NamedTuple):
    """An image that counts, and where."""

    test: bool
    label: str
    image: _Image


def files_of_images(folder: Path) -> list[Path]:
    """Return the image files below a folder, also behind links, in the order of their names.

    Raises:
        DataMissing: a folder below it cannot be read
    """

    def unreadable(error: OSError) -> NoReturn:
        raise DataMissing(f"{error.filename}: cannot be read ({error.strerror})")

    found = []
    around = {str(folder): frozenset([os.path.realpath(folder)])}  # folders around each, and it
    for place, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        above, inner = around.pop(place), []
        for name in filter(_counts, folders):
            path = Path(place, name)
            if (real := os.path.realpath(path)) not in above:  # a link may lead around
                around[str(path)] = above | {real}
                inner.append(name)
        folders[:] = inner
        for name in names:
            try:
                path = Path(place, name)
                if _counts(name, SUFFIXES) and stat.S_ISREG(path.stat().st_mode):
                    found.append(path)
            except OSError as error:
                unreadable(error)
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def read_images(path: Path) -> npt.NDArray[Any]:
    """Read the images below a folder, or in a tar (also .tar.gz), as `samples`: training first.

    Labels are places in the sorted names of classes.

    Raises:
        DataMissing, DataCorrupt: a file is missing or damaged, images have unlike sizes or no
            place in the layout, or there are too many pixels
        InvalidValue: there are fewer than two classes
    """
    placed = _placed(path, list(_in_folder(path) if path.is_dir() else _in_tar(path)))
    classes = sorted({each.label for each in placed if not each.test})
    if len(classes) < 2:
        said = f"{len(classes)} class{'es' * (len(classes) != 1)}"
        raise InvalidValue(
            f"{path}: training images of {said}: there have to be two or more, each with a folder "
            f"of {', '.join(SUFFIXES)} files; {LAYOUT}"
        )
    number = {name: at for at, name in enumerate(classes)}
    for each in placed:
        if each.label not in number:
            raise DataCorrupt(
                f"{path}: no training image is of class {each.label!r}, as {each.image.name} is"
            )
    first = _decoded(path, placed[0].image)
    if len(placed) * prod(first.shape) > PIXEL_BYTES_MAX:
        raise DataCorrupt(
            f"{path}: {len(placed):,} images of {_size(first)} are more than "
            f"{PIXEL_BYTES_MAX >> 30} GiB of pixels: make them smaller"
        )
    found = samples(len(placed), first.shape)
    found["label"] = [number[each.label] for each in placed]
    found["part"] = [each.test for each in placed]
    for at, each in enumerate(placed):
        found["pixels"][at] = _decoded(path, each.image, first)
    return found


def _counts(name: str, suffixes: tuple[str, ...] = ("",)) -> bool:
    """Return whether a file or folder counts: hidden ones, as of macOS in tars, do not."""
    return not name.startswith((".", "__MACOSX")) and name.lower().endswith(suffixes)


def _in_folder(folder: Path) -> Iterator[_Image]:
    for path in files_of_images(folder):
        yield _Image(path.relative_to(folder).parts, 0, partial(read_bytes, path, IMAGE_BYTES_MAX))


def _in_tar(path: Path) -> Iterator[_Image]:
    found: dict[tuple[str, ...], _Image] = {}
    for name, offset, content in tar_files(path, links=SUFFIXES):
        parts = PurePosixPath(name).parts
        if not parts or not all(map(_counts, parts)) or not _counts(parts[-1], SUFFIXES):
            if ".." in parts:
                corrupt(path, f"member {name!r} is outside of the tar", byte=offset)
            continue
        if parts in found:
            corrupt(path, f"member {name!r} is there twice", byte=offset)
        if len(content) > IMAGE_BYTES_MAX:
            corrupt(path, f"member {name!r} is longer than {IMAGE_BYTES_MAX} bytes", byte=offset)
        found[parts] = _Image(parts, offset, partial(bytes, content))
    yield from (found[parts] for parts in sorted(found))


def _placed(path: Path, images: Sequence[_Image]) -> list[_Placed]:
    """Return the images that count, training images first.

    Raises:
        DataCorrupt: an image has no place in the layout
    """
    parts = [each.parts for each in images]
    around = 0  # folders around all others
    while parts and min(map(len, parts)) > around + 2:
        tops = {each[around] for each in parts}
        if len(tops) > 1 or tops.pop().lower() in TRAIN:
            break
        around += 1
    below = [each[around:] for each in parts]
    tops = {each[0] for each in below if len(each) > 2}
    train = next((top for name in TRAIN for top in tops if top.lower() == name), None)
    test = next((top for name in TEST for top in tops if top.lower() == name), None)
    if train is None and test is not None and all(len(each) > 2 for each in below):
        raise DataCorrupt(f"{path}: there is a folder {test!r} and none for training; {LAYOUT}")
    found = []
    for image, words in zip(images, below, strict=True):
        is_test = words[0] == test and len(words) > 2
        if train is not None and not is_test:
            if words[0].lower() in TEST:
                continue  # of another such folder
            if words[0] != train:
                _misplaced(path, image)
        inner = words[1:] if train is not None else words
        if len(inner) != 2:
            _misplaced(path, image)
        found.append(_Placed(is_test, inner[0], image))
    return sorted(found, key=lambda each: each.test)


def _misplaced(path: Path, image: _Image) -> NoReturn:
    raise DataCorrupt(f"{path}: {image.name!r} is not in the folder of a class; {LAYOUT}")


def _decoded(path: Path, image: _Image, like: Pixels | None = None) -> Pixels:
    """Return an image as (channels, height, width), of the size and channels of `like`."""
    require("PIL", "a data set of images")
    from PIL import Image  # slow to import, and few runs need it

    file = path / image.name if path.is_dir() else path
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(io.BytesIO(image.read()), formats=["JPEG", "PNG"]) as opened,
        ):
            size = opened.size[::-1]
            fits = like is None or size == like.shape[1:]  # known before it is decoded
            grey = opened.mode[0] in "1LI" if like is None else len(like) == 1
            pixels = _pixels(opened, grey) if fits else np.empty(0, np.uint8)
    except Image.DecompressionBombError:
        corrupt(file, f"{image.name!r} has too many pixels", byte=image.offset)
    except ShoalError:  # of `read`
        raise
    except Exception as error:  # of Pillow, which has several for damaged files
        said = type(error).__name__ if "<_io" in str(error) else error
        corrupt(file, f"{image.name!r} is not a whole JPEG or PNG ({said})", byte=image.offset)
    if not fits:
        assert like is not None
        what = f"{size[1]}x{size[0]} pixels, and the first is {_size(like)}"
        corrupt(file, f"{image.name!r} is {what}", byte=image.offset)
    return pixels


def _pixels(image: Any, grey: bool) -> Pixels:
    if image.mode[0] == "I":  # 16 bits a pixel, of which `convert` would keep the lower ones
        high = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
        return high[None] if grey else np.stack([high] * 3)
    pixels = np.asarray(image.convert("L" if grey else "RGB"))
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _size(image: Pixels) -> str:
    return f"{image.shape[2]}x{image.shape[1]}"
