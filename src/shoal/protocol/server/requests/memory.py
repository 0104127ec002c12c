"""TableMemory: the limit of a server's memory for tables, and what they take of it.

A shard that would exceed the limit is not opened, and a sparse table gets no new rows beyond it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.server.chains.operations import Change
from shoal.protocol.server.state.replica import Replica
from shoal.protocol.server.state.rounds import Rounds
from shoal.protocol.server.state.shard_store import BytesNeeded, ShardStore, Staged
from shoal.tables.sizes import size
from shoal.tables.spec import TableSpec

Keyed = tuple[int, KeyRange, int]  # shard, rows, number of keys or -1


class MemoryOptions(msgspec.Struct, frozen=True):
    """The memory that a server has for its tables.

    limit:   the limit in bytes
    needed:  the function that returns the bytes of a shard before it is opened
    """

    limit: float = inf
    needed: BytesNeeded = lambda spec, rows: 0


class TableMemory:
    """The limit of a server's memory for tables, and what they take of it.

    The head of a chain refuses a push that would exceed its limit before it changes or replicates
    anything. The other replicas apply what the head has applied: their own limits stop only the
    rows that pulls would create.

    Far from the limit a push costs a subtraction: `_spare` has the bytes that are certainly free,
    from which every push subtracts the most that its keys can take. Once they are used up, the free
    memory is computed again; keys are looked up only if that is not enough.
    """

    def __init__(
        self, options: MemoryOptions, replicas: Mapping[int, Replica], rounds: Rounds
    ) -> None:
        """Start with no memory reserved.

        replicas, rounds:  the rows, and the pushes that wait for their rounds, which take memory
        """
        self._options = options
        self._replicas = replicas
        self._rounds = rounds
        self._opening = 0
        self._spare = 0.0
        self.look_again()

    def look_again(self) -> None:
        """Make the next push compute the free memory again."""
        self._spare = -inf if self._options.limit < inf else inf

    def grow(self, changes: Sequence[Change]) -> None:
        """Count the rows that another server's changes may create: they are not refused here."""
        for each in changes:
            if each.part.keys > 0:
                self._spare -= each.part.keys * each.replica.shard.new_row_bytes

    def reserve(self, nbytes: int) -> None:
        """Set the bytes that all shards in no view yet take together."""
        self._opening = nbytes
        self.look_again()

    @property
    def reserved(self) -> int:
        """The bytes of the shards that are in no view yet."""
        return self._opening

    @property
    def free(self) -> float:
        """The bytes that are left; negative where tables take more than the limit."""
        if self._options.limit == inf:
            return inf
        taken = sum(replica.shard.nbytes for replica in self._replicas.values())
        return self._options.limit - taken - self._opening

    def needed(self, spec: TableSpec, rows: KeyRange) -> int:
        """Return the bytes that a shard will take, before it is opened."""
        return self._options.needed(spec, rows)

    def takes(self, shard: ShardStore) -> int:
        """Return the bytes that an opened shard takes; 0 if there is no limit."""
        return shard.nbytes if self._options.limit < inf else 0

    def too_large(self, spec: TableSpec, rows: KeyRange, nbytes: int, free: float) -> str:
        """Return why a shard cannot be opened; empty if it needs no more than is free."""
        if nbytes <= free:
            return ""
        return (
            f"table {spec.name!r} needs {size(nbytes)} here, for {rows}, and {size(free)} of "
            f"{size(self._options.limit)} are free; give servers more with --memory, or add servers"
        )

    def has_room(self, named: Sequence[Keyed]) -> bool:
        """Return whether rows for so many keys certainly fit, without a look at any shard."""
        more = self._most(named)
        return not more or more <= self._spare

    def _most(self, named: Sequence[Keyed]) -> int:
        """Return the bytes that rows for all of these keys would take."""
        more = 0
        for number, _, keys in named:
            if keys > 0:
                more += keys * self._replicas[number].shard.new_row_bytes
        return more

    def problem(self, pushes: Sequence[Keyed], loads: Sequence[Staged]) -> str:
        """Return why the keys of pushes (or of a pull) get no rows; empty if they may have them."""
        more = self._most(pushes)
        if more <= self._spare:
            self._spare -= more
            return ""
        return self._look(pushes, loads, more) if more else ""

    def _look(self, pushes: Sequence[Keyed], loads: Sequence[Staged], more: int) -> str:
        """Return why keys get no rows, by the memory that is free now.

        Only if that is too little for all keys, look up which of them are new.
        """
        waiting: defaultdict[int, list[Staged]] = defaultdict(list)
        for entry in self._rounds.entries():
            for part in entry.parts:
                if part.staged.keys is not None:
                    waiting[part.number].append(part.staged)
        free = spare = self.free
        for number, pushed in waiting.items():
            each = self._replicas[number].shard.new_row_bytes
            spare -= each * sum(len(staged.keys) for staged in pushed)
        if more <= spare:
            # rows that come to a syncing replica are not counted one by one
            syncing = any(replica.syncs for replica in self._replicas.values())
            self._spare = 0 if syncing else spare - more
            return ""
        self._spare = 0
        for number, pushed in waiting.items():
            shard = self._replicas[number].shard
            free -= shard.new_row_bytes and shard.new_row_bytes * _new_keys(shard, pushed)
        for (number, _, keys), staged in zip(pushes, loads, strict=False):
            shard = self._replicas[number].shard
            if keys <= 0 or not shard.new_row_bytes:
                continue
            known = _new_keys(shard, waiting[number])
            waiting[number].append(staged)
            new = _new_keys(shard, waiting[number]) - known
            if new and new * shard.new_row_bytes > free:
                return self._full(shard, new, free)
            free -= new * shard.new_row_bytes
        return ""

    def _full(self, shard: ShardStore, new: int, free: float) -> str:
        name, needed = shard.spec.name, size(new * shard.new_row_bytes)
        return (
            f"table {name!r} has {len(shard)} rows in {shard.held} here, which take "
            f"{size(shard.nbytes)}; {new} new keys need up to {needed}, and {size(free)} of "
            f"{size(self._options.limit)} are free. Bound the table with max_rows, add servers, or "
            "give them more with --memory"
        )


def _new_keys(shard: ShardStore, pushes: Sequence[Staged]) -> int:
    """Return the number of rows that pushes would create; an upper bound while a shard is lent."""
    return sum(len(each.keys) for each in pushes) if shard.lent else shard.new_keys(pushes)
