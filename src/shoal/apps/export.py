"""`shoal export`: the tables that a run has left, in one file or as text."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from shoal.apps.ctr.columns.names import names_of, write_names
from shoal.apps.ctr.columns.values import TEXTS_MOST, merged, read_seen
from shoal.apps.ctr.spec import TABLES, CtrSpec, is_of_ctr, spec_of
from shoal.errors import InvalidValue
from shoal.storage.files import make_folder, write_whole
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import SavedShards
from shoal.tables.custom.calls import Pairs

log = logging.getLogger("shoal")
CLICKS = {"bias", "linear"}  # tables that every click-through-rate model has
KEYED = ("linear", "factors")  # the tables of such a model with a row for each key


def export(run: Path, form: str, out: Path | None) -> list[Path]:
    """Write a run's tables, and return the files.

    form:  the format: `safetensors`, one file: a dense table by its name, a sparse one as NAME.keys
           (uint64 bits as int64) and NAME.rows, a custom one as NAME.keys, .values and .lens; or
           `text`, a file per table: a key and its row in a line. For a click-through-rate model on
           named columns a CSV file as well, FILE.keys.csv or keys.csv, has the column and value of
           keys
    out:   the file, or the folder of text files; in the run's folder by default

    Raises:
        DataMissing, DataCorrupt: the folder has no shards of a run, or damaged ones
        UnknownFormat: the run's keys follow another rule than `shoal.ctr.key`
        InvalidValue: a file cannot be written
    """
    saved = SavedShards(run)
    clicks = _run_on_columns(run, saved)
    try:
        if form == "safetensors":
            path = out or run / "export.safetensors"
            found, names = [_as_tensors(saved, path)], path.with_suffix(".keys.csv")
        else:
            folder = out or run / "export"
            make_folder(folder)
            found = [_as_text(saved, name, folder / f"{_plain(name)}.txt") for name in saved.tables]
            names = folder / "keys.csv"
        if clicks is not None:
            _write_names(*clicks, saved, names)
            found.append(names)
        return found
    except OSError as error:
        raise InvalidValue(f"cannot write there: {error}") from None


def _plain(name: str) -> str:
    """Return a table's name as that of a file, without characters that lead to another folder."""
    return re.sub(r"[^\w.-]+", "_", name).lstrip(".") or "table"


def _as_tensors(saved: SavedShards, path: Path) -> Path:
    tensors: dict[str, Tensor] = {}
    for name, spec in saved.tables.items():
        table = saved.merged(name)
        if spec.hashed:
            tensors |= {f"{name}.{what}": each for what, each in table.items()}
        else:
            tensors[name] = table["rows"]
    write_whole(path, lambda fresh: save_file(tensors, fresh))
    return path


def _as_text(saved: SavedShards, name: str, path: Path) -> Path:
    with path.open("w") as file:
        for key, row in _rows(saved.merged(name)):
            file.write(f"{key} {' '.join(f'{value:.9g}' for value in row)}\n")
    return path


def _rows(table: dict[str, Tensor]) -> Iterator[tuple[int, list[float]]]:
    """Yield the keys of a table with their values."""
    keys = table["keys"].numpy().view("uint64") if "keys" in table else None
    if keys is not None and "lens" in table:
        pairs = Pairs(keys, table["values"].numpy(), table["lens"].numpy())
        yield from ((key, values.tolist()) for key, values in pairs)
        return
    count = len(table["rows"])
    rows = table["rows"].reshape(count, -1).tolist() if count else []
    yield from zip(range(len(rows)) if keys is None else keys.tolist(), rows, strict=True)


def _run_on_columns(run: Path, saved: SavedShards) -> tuple[RunFolder, CtrSpec] | None:
    """Return the folder and options of a click model on named columns; None for another run."""
    places = map(RunFolder, (run, run.parent, run.parent.parent))  # of shards or a checkpoint, too
    folder = next((each for each in places if each.job.is_file()), None)
    if folder is None or not saved.tables.keys() >= CLICKS or not is_of_ctr(folder.path):
        return None
    spec = spec_of(folder.path)
    return (folder, spec) if spec.format in TABLES else None


def _write_names(folder: RunFolder, spec: CtrSpec, saved: SavedShards, path: Path) -> None:
    """Write the column and the value of the keys of the run's tables."""
    seen = merged([read_seen(folder.values(rank)) for rank in range(spec.workers)])
    partly = ", ".join(name for name, each in seen.items() if not each.all)
    if partly:
        log.warning(
            "%s lacks values of %s: each worker keeps %d at most; shoal.ctr.key has the key of any",
            path,
            partly,
            TEXTS_MOST,
        )
    keys = [saved.merged(name)["keys"].numpy() for name in saved.tables if name in KEYED]
    known = np.unique(np.concatenate(keys).view(np.uint64))
    write_names(path, names_of(spec, seen, known))
