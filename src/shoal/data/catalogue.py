"""The data sets by name; importable without torch, as names are checked before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from shoal.errors import InvalidValue
from shoal.registry import Registry

if TYPE_CHECKING:
    from shoal.data.datasets import Dataset

CSV_SUFFIXES = (".csv", ".csv.gz")
KINDS = ("csv", "images")  # of data sets that are named by a path, KIND:PATH


@dataclass(frozen=True)
class DatasetSource:
    """A data set that can be loaded, and the model that suits it by name.

    loader:  the "module:function" that is imported when it is needed; it is called with the path of
             the file, if the name has one, and with the folders to look in
    """

    name: str
    summary: str
    loader: str
    default_model: str
    path: str = ""

    def load(self, data_dirs: Sequence[Path], seed: int = 0, *, offline: bool = False) -> Dataset:
        """Find the files, or download them unless `offline`, and read them.

        data_dirs: the folders to look in, as from `places.search_path`
        """
        where = (self.path, data_dirs) if self.path else (data_dirs,)
        loaded: Dataset = resolve_name(self.loader)(*where, seed, offline=offline)
        return loaded


datasets: Registry[DatasetSource] = Registry("dataset")

for _name, _summary, _function, _model in (
    ("digits", "8x8 handwritten digits, 1438 + 359; comes with scikit-learn", "digits", "mlp"),
    ("mnist", "28x28 handwritten digits, 60000 + 10000", "mnist", "mlp"),
    ("cifar10", "32x32 colour images of 10 classes, binary layout", "cifar10", "cnn"),
    ("images:PATH", "JPEG or PNG images, a folder for each class; or a tar", "images", "cnn"),
    ("csv:PATH", "a numeric CSV file (or .csv.gz), the class last", "csv", "mlp"),
):
    datasets.add(
        _name, DatasetSource(_name, _summary, f"shoal.data.datasets:load_{_function}", _model)
    )


def find_source(name: str) -> DatasetSource:
    """Return the source that `name` means; make one for `KIND:PATH` or the path of a .csv file.

    Raises:
        UnknownName: no data set is called so; the text lists the known ones.
        InvalidValue: `csv:` or `images:` without a path, or a file of Python without a function.
    """
    if (file := name.removesuffix(":")).endswith(".py"):
        raise InvalidValue(f"{file} has functions: say which one returns the data, {file}:FUNCTION")
    kind, _, path = name.partition(":")
    if kind not in KINDS:
        if not name.endswith(CSV_SUFFIXES):
            return datasets[name]
        kind, path = "csv", name
    if path in ("", "PATH"):
        raise InvalidValue(f"{kind}:PATH: put the path after the colon")
    return replace(datasets[f"{kind}:PATH"], name=name, path=path)
