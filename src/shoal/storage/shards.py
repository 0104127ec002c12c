"""Shards on disk: the servers of a run write them at its end, and another run may begin with them.

A safetensors file for each server, with the specifications of its tables and its ranges of rows in
the metadata. A reader joins ranges, so that any number of servers may continue a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoal.errors import DataCorrupt, InvalidValue
from shoal.keys import KeyRange, tiles
from shoal.protocol.server.shard_store import OpenStore, ShardStore
from shoal.protocol.views import NO_VIEW, ViewId
from shoal.storage.files import FORMAT, FORMAT_KEY, check_format, make_folder, write_whole
from shoal.storage.run_folder import shard_files
from shoal.tables.custom.calls import elements
from shoal.tables.snapshots import overlaid
from shoal.tables.spec import TableSpec

Tables = list[tuple[TableSpec, tuple[int, int]]]
Places = tuple[ViewId, list[int]]
# In a file's metadata:
SINCE = "since"  # the folder with the file whose changes this one has
SINCE_CRC = "since_crc32"  # that file's checksum
PLACES = "places"  # the view, and of each shard its place in its chain, from the tail


def save_shards(
    folder: Path, rank: int, placed: Sequence[tuple[int, ShardStore]], view: ViewId = NO_VIEW
) -> None:
    """Write a server's shards, each with its place from the tail of its chain.

    All replicas write theirs: one may fail before the others know that the run is over.
    """
    tensors: dict[str, Tensor] = {}
    tables: Tables = []
    for number, (_, shard) in enumerate(placed):
        tables.append((shard.spec, (shard.held.start, shard.held.stop)))
        for name, tensor in shard.state().items():
            tensors[f"{number}.{name}"] = tensor
    make_folder(folder)
    places = [place for place, _ in placed]
    metadata = {
        FORMAT_KEY: str(FORMAT),
        "tables": msgspec.json.encode(tables).decode(),
        PLACES: msgspec.json.encode((view, places)).decode(),
    }
    path = folder / f"server-{rank}.safetensors"
    write_whole(path, lambda fresh: save_file(tensors, fresh, metadata))


class SavedPart(msgspec.Struct, frozen=True):
    """A shard in a file.

    number:  which of the file's shards it is
    place:   its order among replicas: latest view first, then nearest to the tail
    """

    path: Path
    number: int
    spec: TableSpec
    rows: KeyRange
    place: tuple[int, int, int]


class SavedShards:
    """The shards of a run that has ended, or of a checkpoint.

    folder: of the run, or of its shards
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts = [part for path in shard_files(folder) for part in _parts_of(path)]

    @property
    def tables(self) -> dict[str, TableSpec]:
        """The tables by name."""
        return {part.spec.name: part.spec for part in self._parts}

    @property
    def fragment_rows(self) -> dict[str, int]:
        """The tables' fragment sizes, which a run that begins with these shards keeps."""
        return {name: spec.fragment_rows for name, spec in self.tables.items()}

    def parts(self, table: str) -> Iterator[tuple[KeyRange, dict[str, Tensor]]]:
        """All parts of a table: ranges of rows and their state. Of several replicas it is the one
        that was nearest to the tail of its chain, in the latest view.

        Raises:
            DataCorrupt: no server has left some of the rows
        """
        found = [part for part in self._parts if part.spec.name == table and len(part.rows)]
        chosen: list[SavedPart] = []
        for part in sorted(found, key=lambda part: part.place):
            if not any(len(part.rows & other.rows) for other in chosen):
                chosen.append(part)
        ranges = sorted((part.rows for part in chosen), key=lambda rows: rows.start)
        if not tiles(ranges, self.tables[table].keys.stop):
            raise DataCorrupt(f"{self.folder} does not have all rows of table {table!r}")
        for part in chosen:
            yield part.rows, _read(part.path, part.number)

    def merged(self, table: str) -> dict[str, Tensor]:
        """A table's `rows`; of a sparse one its `keys` as well, in order; of a custom one its
        `keys`, `values` and `lens`."""
        spec = self.tables[table]
        parts = sorted(self.parts(table), key=lambda part: part[0].start)
        if spec.kind == "dense":
            rows = torch.cat([state["rows"] for _, state in parts])
            return {"rows": rows.reshape(-1, *spec.row_shape)}
        keys = torch.cat([state["keys"] for _, state in parts])
        order = torch.from_numpy(np.argsort(keys.numpy().view(np.uint64), kind="stable"))
        if spec.kind == "custom":
            values, lens = (torch.cat([s[what] for _, s in parts]) for what in ("values", "lens"))
            places = torch.from_numpy(elements(lens.numpy(), order.numpy()))
            return {"keys": keys[order], "values": values[places], "lens": lens[order]}
        rows = torch.cat([state["records"][:, : spec.width] for _, state in parts])
        return {"keys": keys[order], "rows": rows[order].reshape(-1, *spec.row_shape)}

    def beginning(self, open_shard: OpenStore) -> OpenStore:
        """A function that opens tables with the rows that they had in this run, and new tables as
        `open_shard` does."""

        def opened(spec: TableSpec, held: KeyRange) -> ShardStore:
            shard = open_shard(spec, held)
            saved = self.tables.get(spec.name)
            if saved is None:
                return shard
            same = saved.access.name == spec.access.name
            counted = ("fragment_rows",) if same and spec.kind == "dense" else ()
            for what in ("kind", "row_shape", "dtype", "rows", *counted):
                here, there = getattr(spec, what), getattr(saved, what)
                if here != there:
                    how = f"; declare it with {what}={there}, or start the scheduler with --resume"
                    raise InvalidValue(
                        f"table {spec.name!r} has {what} {here!r} and in {self.folder} {there!r}"
                        f"{how if what in counted else ''}"
                    )
            for range_, state in self.parts(spec.name):
                try:
                    shard.restore(range_, state, same)
                except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
                    raise DataCorrupt(
                        f"{self.folder}: its shards of table {spec.name!r} are not what their "
                        f"specification says ({type(error).__name__}: {error})"
                    ) from None
            return shard

        return opened


def _parts_of(path: Path) -> list[SavedPart]:
    try:
        metadata = metadata_of(path)
        tables = msgspec.json.decode(metadata.get("tables", ""), type=Tables)
    except (SafetensorError, OSError, msgspec.DecodeError) as error:
        raise DataCorrupt(f"{path} is no file of shards: {error}") from None
    check_format(path, metadata.get(FORMAT_KEY))
    (term, number), places = NO_VIEW, [0] * len(tables)
    if PLACES in metadata:
        (term, number), places = msgspec.json.decode(metadata[PLACES], type=Places)
    return [
        SavedPart(path, i, spec, KeyRange(*held), (-term, -number, place))
        for i, ((spec, held), place) in enumerate(zip(tables, places, strict=True))
    ]


def metadata_of(path: Path) -> dict[str, str]:
    """What a file says of its tensors.

    Raises:
        SafetensorError, OSError: it cannot be read
    """
    with safe_open(path, "pt") as file:
        return file.metadata() or {}


def with_earlier(path: Path) -> list[Path]:
    """A file, and the earlier files whose changes it has; the last has all rows, or is missing.

    Raises:
        SafetensorError, OSError: one cannot be read
        ValueError: an earlier file is not the one that the changes are of
    """
    found, crc = [path], ""
    while found[-1].exists():
        metadata = metadata_of(found[-1])
        if crc and metadata.get("crc32") != crc:  # another server has written it since
            raise ValueError(f"its changes are of another {found[-1].parent.name}/{path.name}")
        since, crc = metadata.get(SINCE, ""), metadata.get(SINCE_CRC, "")
        earlier = path.parent.parent / since / path.name
        if not since.isdigit() or earlier in found:
            break
        found.append(earlier)
    return found


def _read(path: Path, number: int) -> dict[str, Any]:
    """The state in a file, on top of the earlier files that it has the changes of."""
    try:
        *later, whole = with_earlier(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataCorrupt(f"{path} is no file of shards: {error}") from None
    state = _tensors(whole, number)
    for each in reversed(later):
        state = overlaid(state, _tensors(each, number))
    return state


def _tensors(path: Path, number: int) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as file:
            prefix = f"{number}."
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise DataCorrupt(f"{path} is no file of shards: {error}") from None
