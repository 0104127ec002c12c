"""`shoal export`: the tables that a run has left, in one file or as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from shoal.errors import InvalidValue
from shoal.storage.files import make_folder, write_whole
from shoal.storage.shards import SavedShards
from shoal.tables.custom.calls import Pairs


def export(run: Path, form: str, out: Path | None) -> list[Path]:
    """Write a run's tables; returns the files.

    form:  `safetensors`, one file: a dense table by its name, a sparse one as NAME.keys (uint64
           bits as int64) and NAME.rows, a custom one as NAME.keys, .values and .lens; or `text`,
           a file per table: a key and its row in a line
    out:   the file, or the folder of text files; in the run's folder by default

    Raises:
        DataMissing, DataCorrupt: no run that has left its shards
        InvalidValue: a file that cannot be written
    """
    saved = SavedShards(run)
    try:
        if form == "safetensors":
            return [_as_tensors(saved, out or run / "export.safetensors")]
        folder = out or run / "export"
        make_folder(folder)
        return [_as_text(saved, name, folder / f"{_plain(name)}.txt") for name in saved.tables]
    except OSError as error:
        raise InvalidValue(f"cannot write there: {error}") from None


def _plain(name: str) -> str:
    """A table's name as a file's: it may hold anything, and the file stays in its folder."""
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
    """Keys with their values."""
    keys = table["keys"].numpy().view("uint64") if "keys" in table else None
    if keys is not None and "lens" in table:
        pairs = Pairs(keys, table["values"].numpy(), table["lens"].numpy())
        yield from ((key, values.tolist()) for key, values in pairs)
        return
    rows = table["rows"].reshape(len(table["rows"]), -1).tolist()
    yield from zip(range(len(rows)) if keys is None else keys.tolist(), rows, strict=True)
