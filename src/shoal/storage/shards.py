"""Shards on disk: the servers of a run write them at its end, and another run may begin with them.

A safetensors file for each server, with the specifications of its tables and its ranges of rows in
the metadata. A reader joins ranges, so that any number of servers may continue a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.errors import AccessFailed, DataCorrupt, DataMissing, InvalidValue, UsageError
from shoal.keys import KeyRange, tiles
from shoal.protocol.server.shard_store import OpenStore, ShardStore
from shoal.protocol.views import NO_VIEW, ViewId
from shoal.storage.files import damaged
from shoal.storage.run_folder import shard_files
from shoal.storage.verified import CRC, read_some, read_told, read_verified, write_verified
from shoal.tables.custom.calls import elements
from shoal.tables.saved import problem_of, problem_of_changes
from shoal.tables.snapshots import overlaid
from shoal.tables.spec import TableSpec

Tables = list[tuple[TableSpec, tuple[int, int]]]
Places = tuple[ViewId, list[int]]
# In a file's metadata:
SINCE = "since"  # the folder with the file whose changes this one has
SINCE_CRC = "since_crc32"  # that file's checksum
PLACES = "places"  # the view, and of each shard its place in its chain, from the tail
LAYOUT = ("kind", "row_shape", "dtype", "rows")  # of a table, on which its tensors depend


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
    places = [place for place, _ in placed]
    told = {
        "tables": msgspec.json.encode(tables).decode(),
        PLACES: msgspec.json.encode((view, places)).decode(),
    }
    write_verified(folder / f"server-{rank}.safetensors", tensors, told)


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

    A file's rows are verified when they are first read.

    folder: of the run, or of its shards

    Raises:
        DataMissing: it has no shards
        DataCorrupt: a file is not as it was written
        UnknownFormat: another version of Shoal has written one
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts = [part for path in shard_files(folder) for part in _parts_of(path)]
        self._verified: set[Path] = set()
        first: dict[str, SavedPart] = {}
        for part in self._parts:
            other = first.setdefault(part.spec.name, part)
            if _layout(other.spec) != _layout(part.spec):
                raise _contradiction(part, f"{other.path} has another table of that name")

    @property
    def tables(self) -> dict[str, TableSpec]:
        """The tables by name."""
        return {part.spec.name: part.spec for part in self._parts}

    @property
    def fragment_rows(self) -> dict[str, int]:
        """The tables' fragment sizes, which a run that begins with these shards keeps."""
        return {name: spec.fragment_rows for name, spec in self.tables.items()}

    def parts(
        self, table: str, wanted: KeyRange | None = None
    ) -> Iterator[tuple[SavedPart, dict[str, Tensor]]]:
        """All parts of a table, or those with rows that are wanted, and their state. Of several
        replicas it is the one that was nearest to the tail of its chain, in the latest view.

        Raises:
            DataCorrupt: no server has left some of the rows, or a file is not as it was written
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
            if wanted is None or len(part.rows & wanted):
                yield part, self._read(part)

    def merged(self, table: str) -> dict[str, Tensor]:
        """A table's `rows`; of a sparse one its `keys` as well, in order; of a custom one its
        `keys`, `values` and `lens`."""
        spec = self.tables[table]
        parts = sorted(self.parts(table), key=lambda part: part[0].rows.start)
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
            for what in (*LAYOUT, *counted):
                here, there = getattr(spec, what), getattr(saved, what)
                if here != there:
                    how = f"; declare it with {what}={there}, or start the scheduler with --resume"
                    raise InvalidValue(
                        f"table {spec.name!r} has {what} {here!r} and in {self.folder} {there!r}"
                        f"{how if what in counted else ''}"
                    )
            for part, state in self.parts(spec.name, held):
                try:
                    shard.restore(part.rows, state, same)
                except AccessFailed as error:
                    raise AccessFailed(f"{part.path}: {error.message}") from None
                except (LookupError, TypeError, ValueError, RuntimeError) as error:
                    raise _contradiction(part, f"{type(error).__name__}: {error}") from None
            return shard

        return opened

    def _read(self, part: SavedPart) -> dict[str, Tensor]:
        """The state in a file, on top of the earlier files that it has the changes of."""
        *later, whole = with_earlier(part.path)
        for each in {*later, whole} - self._verified:
            read_verified(each)
            self._verified.add(each)
        prefix = f"{part.number}."
        state, below = read_some(whole, prefix), whole
        for each in reversed(later):
            changes = read_some(each, prefix)
            problem = problem_of_changes(state, changes)
            if problem:
                changed = msgspec.structs.replace(part, path=each)
                raise _contradiction(changed, f"{problem}, as changes of {below}")
            state, below = overlaid(state, changes), each
        problem = problem_of(part.spec, part.rows, state)
        if problem:
            raise _contradiction(part, problem)
        return state


def _layout(spec: TableSpec) -> list[object]:
    return [getattr(spec, what) for what in LAYOUT]


def _contradiction(part: SavedPart, problem: str) -> DataCorrupt:
    return damaged(
        part.path,
        f"its rows {part.rows} of table {part.spec.name!r} are not what their specification says "
        f"({problem})",
    )


def _parts_of(path: Path) -> list[SavedPart]:
    told = read_told(path)
    try:
        tables = msgspec.json.decode(told.get("tables", ""), type=Tables)
        (term, number), places = NO_VIEW, [0] * len(tables)
        if PLACES in told:
            (term, number), places = msgspec.json.decode(told[PLACES], type=Places)
        parts = [
            SavedPart(path, i, spec, KeyRange(*held), (-term, -number, place))
            for i, ((spec, held), place) in enumerate(zip(tables, places, strict=True))
        ]
    except (ValueError, UsageError) as error:
        raise damaged(path, f"it is no file of shards ({error})") from None
    for part in parts:
        if not part.spec.keys.covers(part.rows):
            raise damaged(path, f"table {part.spec.name!r} has no rows {part.rows}")
    return parts


def with_earlier(path: Path) -> list[Path]:
    """A file, and the earlier files whose changes it has; the last has all rows.

    Raises:
        DataMissing: an earlier file is not there
        DataCorrupt: a file is not as it was written, or an earlier one is not the one that the
            changes are of
        UnknownFormat: another version of Shoal has written one
    """
    found, crc = [path], ""
    while True:
        told = read_told(found[-1])
        if crc and told.get(CRC) != crc:  # another server has written it since
            raise damaged(found[-2], f"its changes are of another {found[-1]}")
        since, crc = told.get(SINCE, ""), told.get(SINCE_CRC, "")
        earlier = path.parent.parent / since / path.name
        if not since.isdigit() or earlier in found:
            return found
        if not earlier.exists():
            raise DataMissing(f"{found[-1]} has changes of {earlier}, which does not exist")
        found.append(earlier)
