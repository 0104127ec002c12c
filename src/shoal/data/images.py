"""Images by class: JPEG and PNG files in a folder or a tar, with a folder for each class.

    train/CLASS/NAME.jpg  test/CLASS/NAME.jpg     the test images are given
    CLASS/NAME.png                                none are

A folder around all of these does not matter, nor do other files beside the images. All images have
one size; they are grey if the first is, and else RGB. Decoding is lossy in the last bit: two builds
of libjpeg may differ by one in a pixel.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.data.readers import read_bytes, samples, tar_files
from shoal.data.streams import corrupt
from shoal.errors import DataCorrupt, InvalidValue
from shoal.extras import require

SUFFIXES = (".jpg", ".jpeg", ".png")
TRAIN, TESTS = "train", ("test", "val", "valid")  # folders; the first of TESTS that is there
IMAGE_BYTES_MAX = 64 << 20  # bytes of an image's file
PIXEL_BYTES_MAX = 4 << 30  # bytes of all images, decoded
GREY = ("1", "L", "LA", "I;16")


class _Image(NamedTuple):
    """An image: its name below the folder or in the tar, its place there, and its content."""

    name: str
    offset: int
    read: Callable[[], bytes | bytearray]


def read_images(path: Path) -> npt.NDArray[Any]:
    """Read the images below a folder, or in a tar (also .tar.gz), as `samples`.

    Labels are places in the sorted names of classes. `test` tells the images of the test folder.

    Raises:
        DataMissing, DataCorrupt: a file is missing or damaged, or images have unlike sizes
        InvalidValue: there are no images, fewer than two classes, or too many pixels
    """
    found = list(_in_folder(path) if path.is_dir() else _in_tar(path))
    places, found = _placed(path, found)
    classes = sorted({name for name, _ in places})
    if len(classes) < 2:
        said = f"{len(classes)} class{'es' * (len(classes) != 1)}"
        raise InvalidValue(
            f"{path}: images of {said}: there have to be two or more, each with a folder of "
            f"{', '.join(SUFFIXES)} files"
        )
    first = _decoded(path, found[0])
    if len(found) * prod(first.shape) > PIXEL_BYTES_MAX:
        raise InvalidValue(
            f"{path}: {len(found):,} images of {_size(first)} are more than "
            f"{PIXEL_BYTES_MAX >> 30} GiB of pixels: make them smaller"
        )
    pixels = np.empty((len(found), *first.shape), np.uint8)
    for at, each in enumerate(found):
        pixels[at] = _decoded(path, each, first)
    number = {name: at for at, name in enumerate(classes)}
    labels = np.array([number[name] for name, _ in places])
    return samples(labels, np.array([test for _, test in places]), pixels)


def _in_folder(folder: Path) -> Iterator[_Image]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            name = str(path.relative_to(folder))
            yield _Image(name, 0, partial(read_bytes, path, IMAGE_BYTES_MAX))


def _in_tar(path: Path) -> Iterator[_Image]:
    files = [
        _Image(name, offset, partial(bytes, content))
        for name, offset, content in tar_files(path)
        if name.lower().endswith(SUFFIXES)
    ]
    yield from sorted(files, key=lambda each: each.name)


def _placed(path: Path, images: Sequence[_Image]) -> tuple[list[tuple[str, bool]], list[_Image]]:
    """Return (class, whether for test) of each image that counts, and these images."""
    parts = [each.name.split("/") for each in images]
    while parts and min(map(len, parts)) > 2:
        if len({each[0] for each in parts}) > 1 or parts[0][0] == TRAIN:
            break
        parts = [each[1:] for each in parts]  # a folder around all others
    tops = {each[0] for each in parts}
    if TRAIN not in tops:
        for each, words in zip(images, parts, strict=True):
            if len(words) < 2:
                raise DataCorrupt(f"{path}: {each.name!r} is not in the folder of a class")
        return [(words[0], False) for words in parts], list(images)
    test = next((name for name in TESTS if name in tops), "")
    chosen = [
        (each, words)
        for each, words in zip(images, parts, strict=True)
        if words[0] in (TRAIN, test) and len(words) > 2
    ]
    return [(words[1], words[0] == test) for _, words in chosen], [each for each, _ in chosen]


def _decoded(
    path: Path, image: _Image, like: npt.NDArray[np.uint8] | None = None
) -> npt.NDArray[np.uint8]:
    """Return an image as (channels, height, width), of the size and channels of `like`."""
    require("PIL", "a data set of images")
    from PIL import Image  # slow to import, and few runs need it

    file = path / image.name if path.is_dir() else path
    try:
        with Image.open(io.BytesIO(image.read()), formats=["JPEG", "PNG"]) as opened:
            width, height = opened.size
            if like is not None and (height, width) != like.shape[1:]:  # before it is decoded
                corrupt(
                    file,
                    f"{image.name!r} is {width}x{height} pixels, and the first is {_size(like)}",
                    byte=image.offset,
                )
            if 3 * width * height > PIXEL_BYTES_MAX:
                corrupt(file, f"{image.name!r} is {width}x{height} pixels", byte=image.offset)
            grey = opened.mode in GREY if like is None else len(like) == 1
            pixels = np.asarray(opened.convert("L" if grey else "RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        corrupt(file, f"{image.name!r} is not a whole JPEG or PNG ({error})", byte=image.offset)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _size(image: npt.NDArray[np.uint8]) -> str:
    return f"{image.shape[2]}x{image.shape[1]}"
