"""Shards on disk: the servers of a run write them at its end, and another run may begin with them.

A safetensors file for each server, with the specifications of its tables and its ranges of rows in
the metadata. A reader joins ranges, so that any number of servers may continue a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.errors import AccessFailed, DataCorrupt, InvalidValue
from shoal.keys import KeyRange, tiles
from shoal.protocol.server.state.shard_store import OpenStore, ShardStore
from shoal.protocol.views import NO_VIEW, ViewId
from shoal.storage.shard_files import (
    LAYOUT,
    PLACES,
    Origin,
    SavedPart,
    SavedTables,
    Tables,
    contradiction,
    with_earlier,
)
from shoal.storage.verified import read_some, read_verified, write_verified
from shoal.tables.custom.calls import elements
from shoal.tables.saved import problem_of, problem_of_changes
from shoal.tables.snapshots import overlaid
from shoal.tables.spec import TableSpec


def save_shards(
    folder: Path,
    rank: int,
    placed: Sequence[tuple[int, ShardStore]],
    view: ViewId = NO_VIEW,
    run: str = "",
) -> None:
    """Write the shards of a server, each with its place from the tail of its chain.

    All servers write their replicas: one may fail before the others know that the run is over.
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
        **Origin(run, view=view).told(),
    }
    write_verified(folder / f"server-{rank}.safetensors", tensors, told)


class SavedShards:
    """The shards of a run that has ended, or of a checkpoint.

    A file's rows are verified when they are first read.

    folder: the folder of the run, of its shards, or of the checkpoint
    fetch:  the function that returns the file to read in the place of one that may be a header
    tables: the specifications of the tables, by name
    run:    the name of the run

    Raises:
        DataMissing: it has no shards
        DataCorrupt: a file is not as it was written
        UnknownFormat: another version of Shoal has written one
    """

    def __init__(self, folder: Path, fetch: Callable[[Path], Path] = lambda path: path) -> None:
        self.folder = folder
        self._fetch = fetch
        saved = SavedTables(folder)
        self._parts = saved.parts
        self.tables = saved.specs
        self.run = saved.run
        self._verified: set[Path] = set()

    def parts(
        self, table: str, wanted: KeyRange | None = None
    ) -> Iterator[tuple[SavedPart, dict[str, Tensor]]]:
        """Yield the parts of a table, or of its wanted rows, with their state.

        Of several replicas it is the one that was nearest to the tail of its chain, in the latest
        view.

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
        """Return the `rows` of a table; of a sparse table the `keys` as well, in order.

        Of a custom table return the `keys`, in order, with their `values` and `lens`.
        """
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
        """Return a function that opens shards with the rows that they had in this run.

        It opens shards of new tables as `open_shard` does.
        """

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
                    raise contradiction(part, f"{type(error).__name__}: {error}") from None
            return shard

        return opened

    def _read(self, part: SavedPart) -> dict[str, Tensor]:
        """Read the state of a part: its changes on top of the earlier files, and verify it."""
        *later, whole = map(self._fetch, with_earlier(part.path))
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
                raise contradiction(changed, f"{problem}, as changes of {below}")
            state, below = overlaid(state, changes), each
        problem = problem_of(part.spec, part.rows, state)
        if problem:
            raise contradiction(part, problem)
        return state
