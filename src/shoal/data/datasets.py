"""The data sets of `catalogue`: where their files are looked for, their samples as tensors.

    digits         comes with scikit-learn, needs no file and no network
    mnist          four IDX files, downloaded where they are nowhere
    cifar10        the binary layout, as files or as the published tar
    images:PATH    a folder or a tar of JPEG and PNG images, with a folder for each class
    csv:PATH       a numeric CSV file whose last column is the class

Samples keep the dtype that they are stored in (images are bytes); `Dataset.transform` turns a
batch of them into a model's input. Every worker process loads the data when it starts, so loading
has to be quick: arrays that take long to decode are kept in the cache folder, and mapped.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.data.cache import kept
from shoal.data.images import files_of_images, read_images
from shoal.data.readers import (
    CIFAR_TEST,
    CIFAR_TRAIN,
    HELD_OUT,
    TRAINED,
    check_labels,
    read_cifar,
    read_cifar_tar,
    read_csv,
    read_idx,
    split_records,
)
from shoal.data.streams import corrupt
from shoal.data.transforms import Scale, Standardise, Transform
from shoal.errors import DataCorrupt, DataMissing, InvalidValue
from shoal.extras import require
from shoal.ownership import make_folders
from shoal.storage.files import naming

MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MNIST_FILES = {  # name of the gzip file without its suffix -> its sha256
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
DOWNLOAD_TIMEOUT_S = 20
CIFAR_TAR, CIFAR_IMAGES = "cifar-10-binary.tar", 50_000  # training images
SPLIT_SEED = 0  # of digits and images; fixed, so that all runs have the same test samples
TEST_FRACTION = 0.2
Part = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # samples, labels


@dataclass(frozen=True)
class Dataset:
    """Training and test samples.

    `x` has shape (n, ...) in its stored dtype, `y` shape (n,) int64 with 0 <= y < classes, and
    `transform(x, y)` turns a batch into a model's input. The tensors may be mapped from a file: a
    change to them stays in this process.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    transform: Transform
    notes: tuple[str, ...] = ()  # what a user should know of this data, such as rows left out


# -- finding files -------------------------------------------------------------------------------


def _places(data_dirs: Sequence[Path], *names: str) -> list[Path]:
    """Return the folders to look in: each of `data_dirs` and its sub-folders of these names."""
    return [place for folder in data_dirs for place in (folder, *(folder / name for name in names))]


def _present(place: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return those of the files that are in the folder, plain (preferred, quicker) or gzip."""
    found = {}
    for name in names:
        for path in (place / name, place / f"{name}.gz"):
            if path.is_file():
                found[name] = path
                break
    return found


def _find(places: Sequence[Path], *choices: Sequence[str]) -> dict[str, Path] | None:
    """Return the files of the first whole one of `choices`, in the first folder with any file.

    A folder that has only a part is what the user meant, and damaged: the next folder could have
    other data than were asked for.

    Raises:
        DataMissing: the folder has only a part.
    """
    for place in places:
        parts = [(found, names) for names in choices if (found := _present(place, names))]
        for found, names in parts:
            if len(found) == len(names):
                return found
        if parts:
            found, names = parts[0]
            lacking = [f"{name}[.gz]" for name in names if name not in found]
            raise DataMissing(
                f"{place} has {', '.join(path.name for path in found.values())}"
                f" but not {', '.join(lacking)}"
            )
    return None


def _missing(
    name: str, places: Sequence[Path], files: Sequence[str], more: str = ""
) -> DataMissing:
    looked = "\n".join(
        f"  {place}{'' if place.is_dir() else ' (no such folder)'}" for place in places
    )
    return DataMissing(
        f"no files of {name} in any of the places looked at:\n{looked}\n{more}"
        f"Give a folder that has {', '.join(files)} in it or in its sub-folder {name}/:"
        f" SHOAL_DATA=FOLDER in the environment or --data-dir FOLDER"
    )


def _decoded(cache: Path, path: Path, read: Callable[[Path], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return `read(path)`, through the cache if reading is more than copying."""
    if path.suffix not in (".gz", ".tar"):
        return read(path)
    return kept(cache, path, read)


# -- the data sets -------------------------------------------------------------------------------


def load_digits(data_dirs: Sequence[Path], seed: int = 0, *, offline: bool = False) -> Dataset:
    # Importing sklearn.datasets takes longer (seconds) than all the rest of a worker's start, so
    # the file is read from where the package lies.
    package = importlib.util.find_spec("sklearn")
    folders = (package.submodule_search_locations if package else None) or []
    places = [Path(folder) / "datasets" / "data" for folder in folders]
    found = _find(places, ["digits.csv"])
    if found is not None:
        table = read_csv(found["digits.csv"], header=False)
        pixels, labels = table.features, table.labels
    else:
        sets = require("sklearn.datasets", "the data set digits, which scikit-learn brings,")
        pixels, labels = sets.load_digits(return_X_y=True)
    images = pixels.astype(np.uint8).reshape(-1, 8, 8)  # whole numbers, 0 to 16
    train, test = holdout(labels, TEST_FRACTION, SPLIT_SEED)
    return _dataset(
        "digits", (images[train], labels[train]), (images[test], labels[test]), 10, Scale(1 / 16)
    )


def load_mnist(data_dirs: Sequence[Path], seed: int = 0, *, offline: bool = False) -> Dataset:
    cache = data_dirs[-1] / "mnist"
    given = _find(_places(data_dirs[:-1], "mnist"), list(MNIST_FILES))
    # A part of the files in the cache is a download that was cut short; it goes on.
    paths = given or _present(cache, list(MNIST_FILES))
    if len(paths) < len(MNIST_FILES):
        places = [*_places(data_dirs[:-1], "mnist"), cache]
        if offline:
            why = "It was not downloaded, because this run is offline.\n"
            raise _missing("mnist", places, [f"{name}[.gz]" for name in MNIST_FILES], why)
        paths = _download_mnist(cache, places)
    parts = []
    for part in ("train", "t10k"):
        label_path = paths[f"{part}-labels-idx1-ubyte"]
        images = _decoded(
            cache,
            paths[f"{part}-images-idx3-ubyte"],
            _mnist_images if given else lambda path: _mnist_images(_published(path)),
        )
        labels = read_idx(label_path if given else _published(label_path), dims=1)
        check_labels(label_path, labels, 10, header=8)
        if len(images) != len(labels):
            corrupt(label_path, f"{len(labels)} labels for {len(images)} images", byte=4)
        parts.append((images, labels))
    return _dataset("mnist", parts[0], parts[1], 10, Scale(1 / 255))


def _published(path: Path) -> Path:
    """Check that a file in the cache is the published one, if it is a .gz file; return it.

    Raises:
        DataCorrupt: it is not
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if path.suffix == ".gz" and found != MNIST_FILES[path.name.removesuffix(".gz")]:
        raise DataCorrupt(
            f"{path} is not the file that was published (its SHA-256 differs): remove it, and it "
            "is downloaded again; files of your own belong into a folder of --data-dir FOLDER"
        )
    return path


def _mnist_images(path: Path) -> npt.NDArray[Any]:
    images = read_idx(path, dims=3)
    if images.dtype != np.uint8:
        corrupt(path, f"pixels of {images.dtype} where bytes must be", byte=2)
    if images.shape[1:] != (28, 28):
        corrupt(path, f"images of {images.shape[1:]} pixels, not 28x28", byte=8)
    return images


def _download_mnist(cache: Path, places: Sequence[Path]) -> dict[str, Path]:
    pooch = require("pooch", "the download of mnist")  # only here: few runs download
    try:
        make_folders(cache)
        fetch = pooch.HTTPDownloader(timeout=DOWNLOAD_TIMEOUT_S)
        for name, sha256 in MNIST_FILES.items():
            pooch.retrieve(
                f"{MNIST_URL}{name}.gz",
                known_hash=f"sha256:{sha256}",
                fname=f"{name}.gz",
                path=cache,
                downloader=fetch,
            )
    except (OSError, ValueError) as error:  # ValueError: the checksum is another
        why = f"Downloading it from {MNIST_URL} failed: {error}\n"
        raise _missing("mnist", places, [f"{name}[.gz]" for name in MNIST_FILES], why) from None
    return {name: cache / f"{name}.gz" for name in MNIST_FILES}


def load_cifar10(data_dirs: Sequence[Path], seed: int = 0, *, offline: bool = False) -> Dataset:
    places = _places(data_dirs, "cifar10", "cifar-10-batches-bin")
    found = _find(places, [*CIFAR_TRAIN, CIFAR_TEST], [CIFAR_TAR])
    if found is None:
        names = [f"{CIFAR_TRAIN[0]} to {CIFAR_TRAIN[-1]} and {CIFAR_TEST}"]
        names.append(f"or {CIFAR_TAR} (plain or .gz)")
        raise _missing("cifar10", places, names)
    cache = data_dirs[-1] / "cifar10"
    # The images stay views into the records: a batch of them is contiguous all the same.
    if archive := found.get(CIFAR_TAR):
        train, test = _parts(_decoded(cache, archive, read_cifar_tar))
    else:
        *batches, tests = (_decoded(cache, path, read_cifar) for path in found.values())
        train, test = split_records(np.concatenate(batches)), split_records(tests)
    some = len(train[0])
    notes = () if some == CIFAR_IMAGES else (f"{some:,} of {CIFAR_IMAGES:,} training images",)
    return _dataset("cifar10", train, test, 10, Scale(1 / 255), notes)


def load_images(
    path_text: str, data_dirs: Sequence[Path], seed: int = 0, *, offline: bool = False
) -> Dataset:
    places = [Path.cwd(), *_places(data_dirs, "images")]
    found = next((path for place in places if (path := place / path_text).exists()), None)
    if found is None:
        looked = "\n".join(f"  {place / path_text}" for place in dict.fromkeys(places))
        raise DataMissing(f"no such folder or tar of images; looked at:\n{looked}")
    files = files_of_images(found) if found.is_dir() else [found]
    images = kept(data_dirs[-1] / "images", found, _split_images, files)
    held = (images["part"] == HELD_OUT).any()
    notes = ("a fifth of each class is for test",) if held else ()
    classes, name = int(images["label"].max()) + 1, f"images:{path_text}"
    return _dataset(name, *_parts(images), classes, Scale(1 / 255), notes)


def _split_images(path: Path) -> npt.NDArray[Any]:
    """Read images; hold some out for test where none are given. Training images come first."""
    images = read_images(path)
    if images["part"][-1] == TRAINED:
        with naming(path):
            _, held = holdout(images["label"], TEST_FRACTION, SPLIT_SEED)
        images["part"][held] = HELD_OUT
        images = images[np.argsort(images["part"], kind="stable")]
    return images


def _parts(images: npt.NDArray[Any]) -> tuple[Part, Part]:
    """Return the pixels and labels for training and for tests, as views into `samples`."""
    train = int((images["part"] == TRAINED).sum())
    first, last = images[:train], images[train:]
    return (first["pixels"], first["label"]), (last["pixels"], last["label"])


def load_csv(
    path_text: str, data_dirs: Sequence[Path], seed: int = 0, *, offline: bool = False
) -> Dataset:
    places = [Path.cwd(), *_places(data_dirs, "csv")]
    found = next((path for place in places if (path := place / path_text).is_file()), None)
    if found is None:
        looked = "\n".join(f"  {place / path_text}" for place in dict.fromkeys(places))
        raise DataMissing(f"no such CSV file; looked at:\n{looked}")
    table = read_csv(found)
    if len(table.classes) < 2:
        raise InvalidValue(
            f"{found}: all rows are of class {table.classes[0]!r} (the last column is the class)"
        )
    with naming(found):
        train, test = holdout(table.labels, TEST_FRACTION, seed)
    train_x = table.features[train]
    notes = (f"{table.dropped} rows with missing values left out",) if table.dropped else ()
    return _dataset(
        f"csv:{path_text}",
        (train_x, table.labels[train]),
        (table.features[test], table.labels[test]),
        len(table.classes),
        Standardise.of(torch.from_numpy(train_x)),
        notes,
    )


def holdout(
    labels: npt.NDArray[np.int64], fraction: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (training, test) indices, ascending; a random `fraction` of each class is for test."""
    if seed < 0:
        raise InvalidValue(f"seed {seed} must be >= 0")
    generator = np.random.default_rng(seed)
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        chosen[members[: round(fraction * len(members))]] = True
    if not chosen.any() or chosen.all():
        raise InvalidValue(f"{len(labels)} samples are too few to hold {fraction:.0%} out for test")
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _dataset(
    name: str,
    train: Part,
    test: Part,
    classes: int,
    transform: Transform,
    notes: tuple[str, ...] = (),
) -> Dataset:
    (train_x, train_y), (test_x, test_y) = (
        (torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))) for x, y in (train, test)
    )
    return Dataset(name, train_x, train_y, test_x, test_y, classes, transform, notes)
