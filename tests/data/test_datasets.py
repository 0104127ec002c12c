"""`data.datasets`: what files become, and what is said where they are not found or damaged.

Most tests make small files of their own; those of the real files need SHOAL_DATA.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
import torch

from shoal.data import cache
from shoal.data.catalogue import find_source
from shoal.data.datasets import MNIST_FILES, Dataset, holdout
from shoal.data.images import read_images
from shoal.data.transforms import Scale, Standardise
from shoal.errors import DataCorrupt, DataMissing, InvalidValue
from tests.data.files import RAMP, cifar, idx, jpeg, png, tar, write

# -- small files ---------------------------------------------------------------------------------


def write_mnist(folder: Path, *, gz: bool = True, train: int = 12, test: int = 5) -> Path:
    suffix = ".gz" if gz else ""
    for part, count in (("train", train), ("t10k", test)):
        labels = bytes(i % 10 for i in range(count))
        write(folder / f"{part}-images-idx3-ubyte{suffix}", idx((count, 28, 28)))
        write(folder / f"{part}-labels-idx1-ubyte{suffix}", idx((count,), values=labels))
    return folder


def write_cifar(path: Path, labels: list[int]) -> None:
    """Each image is of one shade, its label."""
    write(path, cifar(labels, np.zeros_like(RAMP)))


def load(name: str, *folders: Path, **options: Any) -> Dataset:
    """Loaded from the folders, the last of which is the cache; never from the network."""
    return find_source(name).load(folders, **({"offline": True} | options))


def real(name: str) -> Path:
    """The folder of the real files, or a skip that says why."""
    folder = Path(os.environ.get("SHOAL_DATA", ""))
    if not os.environ.get("SHOAL_DATA"):
        pytest.skip(f"SHOAL_DATA is not set: the real files of {name} are not bundled")
    if not (folder / name).is_dir():
        pytest.skip(f"SHOAL_DATA={folder} has no {name}")
    return folder


# -- digits --------------------------------------------------------------------------------------


def test_digits_need_no_file_and_have_one_split_for_all_seeds(tmp_path: Path) -> None:
    digits, other = load("digits", tmp_path), load("digits", tmp_path, seed=5)
    assert (digits.train_x.shape, digits.test_x.shape) == ((1438, 8, 8), (359, 8, 8))
    assert (digits.train_x.dtype, digits.train_y.dtype) == (torch.uint8, torch.int64)
    assert torch.equal(digits.test_x, other.test_x)
    assert digits.classes == 10
    x, _ = digits.transform(digits.train_x, digits.train_y)
    assert (x.min().item(), x.max().item()) == (0, 1)


def test_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    theirs = load_digits()
    train, test = holdout(theirs.target, 0.2, 0)
    ours = load("digits", tmp_path)
    for x, y, rows in ((ours.train_x, ours.train_y, train), (ours.test_x, ours.test_y, test)):
        assert np.array_equal(x.numpy(), theirs.images[rows])
        assert np.array_equal(y.numpy(), theirs.target[rows])


def test_holdout_is_stratified_complete_and_seeded() -> None:
    labels = np.repeat([0, 1, 2], [50, 10, 1])
    train, test = holdout(labels, 0.2, 3)
    assert np.bincount(labels[test], minlength=3).tolist() == [10, 2, 0]
    assert sorted([*train, *test]) == list(range(61))
    assert np.array_equal(holdout(labels, 0.2, 3)[1], test)
    assert not np.array_equal(holdout(labels, 0.2, 4)[1], test)
    with pytest.raises(InvalidValue, match="too few"):
        holdout(labels[:2], 0.2, 0)
    with pytest.raises(InvalidValue, match="seed -1"):
        holdout(labels, 0.2, -1)


# -- mnist ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize("sub", [".", "mnist"])
def test_mnist_is_read_from_the_folder_or_its_sub_folder(
    tmp_path: Path, gz: bool, sub: str
) -> None:
    write_mnist(tmp_path / "data" / sub, gz=gz)
    mnist = load("mnist", tmp_path / "data", tmp_path / "cache")
    assert (mnist.train_x.shape, mnist.test_x.shape) == ((12, 28, 28), (5, 28, 28))
    assert (mnist.train_x.dtype, mnist.train_y.dtype) == (torch.uint8, torch.int64)
    assert mnist.train_x.flatten()[:3].tolist() == [0, 1, 2]
    assert mnist.train_y.tolist() == [*range(10), 0, 1]
    assert mnist.transform == Scale(1 / 255)
    assert not (tmp_path / "cache").exists(), "small files need no cache"


def test_the_first_folder_wins(tmp_path: Path) -> None:
    for count, name in enumerate(("a", "b", "cache/mnist"), 1):
        write_mnist(tmp_path / name, gz=False, train=count)
    folders = [tmp_path / name for name in ("a", "b", "cache")]
    assert [len(load("mnist", *folders[start:]).train_x) for start in range(3)] == [1, 2, 3]


def test_large_files_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 1)
    write_mnist(tmp_path / "data")
    first = load("mnist", tmp_path / "data", tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "mnist").glob("*.npy"))) == 2
    monkeypatch.setattr("shoal.data.datasets._mnist_images", None)
    second = load("mnist", tmp_path / "data", tmp_path / "cache")
    assert torch.equal(first.train_x, second.train_x)


@pytest.mark.parametrize("name", MNIST_FILES)
def test_a_half_present_mnist_names_the_missing_file(tmp_path: Path, name: str) -> None:
    write_mnist(tmp_path / "data")
    write_mnist(tmp_path / "cache" / "mnist")  # whole, but not what the user pointed at
    (tmp_path / "data" / f"{name}.gz").unlink()
    with pytest.raises(DataMissing, match=rf"data has .* but not {name}\[.gz\]$"):
        load("mnist", tmp_path / "data", tmp_path / "cache", offline=False)


def test_a_missing_mnist_says_where_it_looked_and_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(DataMissing) as caught:
        load("mnist", tmp_path / "data", tmp_path / "cache")
    text = str(caught.value)
    for part in (
        f"  {tmp_path}/data\n",
        f"  {tmp_path}/data/mnist (no such folder)\n",
        f"  {tmp_path}/cache/mnist (no such folder)\n",
        "offline",
        "SHOAL_DATA=FOLDER",
        "--data-dir FOLDER",
        *MNIST_FILES,
    ):
        assert part in text


def fake_retrieve(source: Path) -> Any:
    def retrieve(url: str, known_hash: str, fname: str, path: Path, downloader: Any) -> str:
        assert url.startswith("https://")
        assert known_hash == f"sha256:{MNIST_FILES[fname.removesuffix('.gz')]}"
        path.mkdir(parents=True, exist_ok=True)
        (path / fname).write_bytes((source / fname).read_bytes())
        return str(path / fname)

    return retrieve


def publish(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the files in this folder stand for the published ones, as if downloaded."""
    for name in MNIST_FILES:
        content = (folder / f"{name}.gz").read_bytes()
        monkeypatch.setitem(MNIST_FILES, name, hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(pooch, "retrieve", fake_retrieve(folder))


@pytest.mark.parametrize("name", MNIST_FILES)
def test_a_download_that_has_changed_since_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    publish(write_mnist(tmp_path / "there"), monkeypatch)
    load("mnist", tmp_path / "cache", offline=False)
    assert (tmp_path / "cache" / "mnist").stat().st_mode & 0o777 == 0o700
    other = write_mnist(tmp_path / "other", train=3, test=3)  # whole, and not the published one
    path = tmp_path / "cache" / "mnist" / f"{name}.gz"
    path.write_bytes((other / path.name).read_bytes())
    with pytest.raises(DataCorrupt, match=f"{path} is not the file that was published.*remove it"):
        load("mnist", tmp_path / "cache")


def test_mnist_is_downloaded_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(write_mnist(tmp_path / "there"), monkeypatch)
    (tmp_path / "cache" / "mnist").mkdir(parents=True)
    # A download that was cut short goes on, rather than being an incomplete data set.
    (tmp_path / "cache" / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"")
    assert len(load("mnist", tmp_path / "cache", offline=False).train_x) == 12
    monkeypatch.setattr(pooch, "retrieve", None)
    assert len(load("mnist", tmp_path / "cache", offline=False).train_x) == 12


@pytest.mark.parametrize("error", [OSError("no route to host"), ValueError("SHA256 hash differs")])
def test_a_download_that_fails_says_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def retrieve(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(DataMissing, match=f"failed: {error}\n.*SHOAL_DATA=FOLDER"):
        load("mnist", tmp_path / "cache", offline=False)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train-labels-idx1", idx((2,), values=b"\1\2"), "at byte 4: 2 labels"),
        (
            "train-labels-idx1",
            idx((3,), values=b"\1\2\x0a"),
            "at byte 10: sample 2 has label 10, not one of 0 to 9",
        ),
        (
            "t10k-images-idx3",
            idx((1, 2, 2), values=bytes(4)),
            r"at byte 8: images of \(2, 2\) pixels, not 28x28",
        ),
        (
            "t10k-images-idx3",
            idx((1, 28, 28), 0x09, bytes(784)),
            "at byte 2: pixels of int8",
        ),
        ("t10k-labels-idx1", idx((1, 1), values=b"\0"), "at byte 3"),
    ],
)
def test_mnist_files_that_do_not_fit_are_named(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    write_mnist(tmp_path, gz=False)
    (tmp_path / f"{name}-ubyte").write_bytes(content)
    with pytest.raises(DataCorrupt, match=f"{name}-ubyte: {says}"):
        load("mnist", tmp_path, tmp_path / "cache")


def test_the_real_mnist_loads_quickly(tmp_path: Path) -> None:
    folder = real("mnist")
    mnist = load("mnist", folder, tmp_path)
    assert (mnist.train_x.shape, mnist.test_x.shape) == ((60000, 28, 28), (10000, 28, 28))
    assert mnist.train_y[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.train_x.float().mean().item() == pytest.approx(33.3184, abs=1e-3)

    start = time.perf_counter()
    again = load("mnist", folder, tmp_path)
    # It takes 2 ms where unpacking takes 450; the bound has room for a busy machine.
    assert time.perf_counter() - start < 0.25
    assert torch.equal(mnist.train_x, again.train_x)


# -- cifar10 -------------------------------------------------------------------------------------


def cifar_tar(*labels: list[int]) -> bytes:
    """The published tar, with batches of these labels and a test batch of the last."""
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    files = {f"cifar-10-batches-bin/{n}": cifar(ls) for n, ls in zip(names, labels, strict=False)}
    return tar({**files, "cifar-10-batches-bin/readme.html": b"words"}, folders=())


@pytest.mark.parametrize("form", ["files", "tar"])
def test_cifar10_is_files_or_the_published_tar(tmp_path: Path, form: str) -> None:
    batches = [[1], [2], [3, 3], [4], [5], [9, 8]]
    if form == "tar":
        write(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", cifar_tar(*batches))
    else:
        for number, labels in enumerate(batches[:-1], 1):
            name = f"data_batch_{number}.bin"
            write(tmp_path / "cifar-10-batches-bin" / name, cifar(labels))
        write(tmp_path / "cifar-10-batches-bin" / "test_batch.bin.gz", cifar(batches[-1]))
    found = load("cifar10", tmp_path, tmp_path / "cache")
    assert (found.train_y.tolist(), found.test_y.tolist()) == ([1, 2, 3, 3, 4, 5], [9, 8])
    assert (found.train_x.shape, found.test_x.shape) == ((6, 3, 32, 32), (2, 3, 32, 32))
    assert found.train_x[4].flatten()[:3].tolist() == [4, 5, 6]
    assert found.test_x[1].flatten()[:3].tolist() == [8, 9, 10]
    assert found.train_x[torch.tensor([2, 0])].is_contiguous()
    assert found.notes == ("6 of 50,000 training images",)


def test_a_half_present_or_missing_cifar10_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"(?s)no files of cifar10 in .*/cifar10 \(no such"):
        load("cifar10", tmp_path, tmp_path / "cache")
    write_cifar(tmp_path / "data_batch_1.bin", [1])
    with pytest.raises(DataMissing, match=r"has data_batch_1.bin but not data_batch_2.bin\[.gz\]"):
        load("cifar10", tmp_path, tmp_path / "cache")


def test_a_published_tar_without_a_batch_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-binary.tar", cifar_tar([1], [2]))
    with pytest.raises(DataCorrupt, match=r"no data_batch_3.bin, .*test_batch.bin in this tar"):
        load("cifar10", tmp_path, tmp_path / "cache")


# -- images --------------------------------------------------------------------------------------


def test_images_are_decoded_once_and_again_when_one_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 1)
    for name, colour in (("cat/1.jpg", (200, 9, 9)), ("dog/2.jpg", (9, 9, 200))):
        write(tmp_path / "pets" / "train" / name, jpeg(colour))
        write(tmp_path / "pets" / "test" / name, jpeg(colour))
    name = f"images:{tmp_path / 'pets'}"
    first = load(name, tmp_path, tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr("shoal.data.datasets.read_images", None)
        again = load(name, tmp_path, tmp_path / "cache")
    for found in (first, again):
        assert (found.train_y.tolist(), found.test_y.tolist()) == ([0, 1], [0, 1])
        assert found.train_x.shape == (2, 3, 32, 32)
        assert abs(found.train_x[0, 0].float().mean().item() - 200) < 5
        assert (found.classes, found.notes) == (2, ())
    (tmp_path / "pets" / os.fsdecode(b"caf\xe9.txt")).touch()  # a name that is not UTF-8
    write(tmp_path / "pets" / "train" / "cat" / "3.jpg", jpeg((1, 2, 3)))
    assert load(name, tmp_path, tmp_path / "cache").train_y.tolist() == [0, 0, 1]


def test_a_fifth_of_each_class_is_held_out_without_test_images(tmp_path: Path) -> None:
    members = {f"{'ab'[i % 2]}/{i:03d}.png": png(i) for i in range(40)}
    write(tmp_path / "images" / "letters.tar.gz", tar(members, folders=("a", "b")))
    found = load("images:letters.tar.gz", tmp_path, tmp_path / "cache")
    assert (len(found.train_y), len(found.test_y)) == (32, 8)
    assert found.test_y.tolist().count(0) == 4
    assert found.train_x.shape == (32, 1, 4, 4)
    seen = {int(x[0, 0, 0]) for part in (found.train_x, found.test_x) for x in part}
    assert seen == set(range(40))
    assert found.notes == ("a fifth of each class is for test",)
    again = load("images:letters.tar.gz", tmp_path, tmp_path / "cache")
    assert torch.equal(again.test_x, found.test_x)


def test_images_that_are_nowhere_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"(?s)no such folder or tar.*/images/pets"):
        load("images:pets", tmp_path, tmp_path / "cache")


def test_the_real_cifar10_and_its_jpegs_are_the_same_pictures(tmp_path: Path) -> None:
    folder = real("cifar10")
    whole = load("cifar10", folder, tmp_path)
    assert (len(whole.train_x), len(whole.test_x)) == (4000, 1000)
    classes = [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ]
    # Decoding all the JPEGs takes long: the first hundred tell whether label and planes fit.
    with (
        tarfile.open(folder / "cifar10" / "cifar10-images.tar.gz") as published,
        tarfile.open(tmp_path / "some.tar", "w") as some,
    ):
        for member in published:
            if member.isfile() and member.name.rpartition("/")[2] < "00100.jpg":
                some.addfile(member, published.extractfile(member))
    images = read_images(tmp_path / "some.tar")
    with tarfile.open(tmp_path / "some.tar") as some:
        order = [int(name[-9:-4]) for name in sorted(some.getnames())]
    assert [classes[label] for label in images["label"]] == [
        classes[int(whole.train_y[at])] for at in order
    ]
    pixels = torch.from_numpy(np.ascontiguousarray(images["pixels"])).float()
    assert (pixels - whole.train_x[order].float()).abs().mean() < 8


# -- csv -----------------------------------------------------------------------------------------


def test_a_csv_file_is_split_and_standardised_by_its_training_rows(tmp_path: Path) -> None:
    rows = [f"{index},{index % 7},{'ab'[index % 2]}" for index in range(50)]
    (tmp_path / "t.csv").write_text("\n".join([*rows, "?,1,a"]))
    table = load(f"csv:{tmp_path}/t.csv", tmp_path / "cache")
    assert table.name == f"csv:{tmp_path}/t.csv"
    assert (table.train_x.shape, table.test_x.shape, table.classes) == ((40, 2), (10, 2), 2)
    assert (table.train_x.dtype, table.train_y.dtype) == (torch.float32, torch.int64)
    assert table.transform == Standardise.of(table.train_x)
    assert table.notes == ("1 rows with missing values left out",)
    assert torch.equal(table.train_x[:, 0] % 2, table.train_y.float())
    assert sorted(torch.cat([table.train_x, table.test_x])[:, 0].tolist()) == list(range(50))
    other = load(f"csv:{tmp_path}/t.csv", tmp_path / "cache", seed=1)
    assert not torch.equal(other.test_x, table.test_x)


def test_a_csv_file_is_looked_for_here_and_in_the_data_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "csv").mkdir(parents=True)
    (tmp_path / "data" / "csv" / "t.csv").write_text("1,0\n2,0\n3,0\n1,1\n2,1\n3,1\n")
    assert load("csv:t.csv", tmp_path / "data", tmp_path / "cache").classes == 2
    assert load("csv:data/csv/t.csv", tmp_path / "cache").classes == 2
    with pytest.raises(DataMissing, match=f"no such CSV file; looked at:\n  {tmp_path}/no.csv"):
        load("csv:no.csv", tmp_path / "data", tmp_path / "cache")


def test_a_csv_file_without_two_classes_or_a_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,7\n2,7\n")
    with pytest.raises(InvalidValue, match="all rows are of class '7'"):
        load("csv:t.csv", tmp_path)
    for name in ("csv:", "csv:PATH"):
        with pytest.raises(InvalidValue, match="put the path"):
            find_source(name)


@pytest.mark.parametrize(
    ("name", "rows", "features", "classes"),
    [
        ("banknote_authentication", 1372, 4, 2),
        ("breast-cancer-wisconsin", 683, 9, 2),
        ("iris", 150, 4, 3),
        ("pima-indians-diabetes", 768, 8, 2),
        ("wine", 178, 13, 3),
    ],
)
def test_the_real_csv_files_load(
    tmp_path: Path, name: str, rows: int, features: int, classes: int
) -> None:
    table = load(f"csv:{name}.csv.gz", real("csv"), tmp_path)
    assert len(table.train_x) + len(table.test_x) == rows
    assert (table.train_x.shape[1], table.classes) == (features, classes)
    x, _ = table.transform(table.train_x, table.train_y)
    assert x.mean(0).abs().max() < 1e-4
    assert (x.std(0, correction=0) - 1).abs().max() < 1e-4


def test_a_real_csv_file_of_words_is_refused_by_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(
        DataCorrupt, match=r"german.csv.gz: line 1, column 1: 'A11' is not a number"
    ):
        load("csv:german.csv.gz", real("csv"), tmp_path)
