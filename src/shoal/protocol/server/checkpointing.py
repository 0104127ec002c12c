"""Saving: when a server writes down which of its rows, so that all files of a clock are one cut.

A checkpoint of clock d has, of every arc, what is in its rows when all rounds below d are and no
other. Its tail takes it, before it does a later round or when it hears that d is reached, whichever
comes first. So nobody stops, and nobody has to agree on a moment.

Under `ssp` pushes reach the rows on arrival, so there d is a *marker*: a push of d or later waits
at its head until every worker has reached d, and d's rows are taken before it is let in. Under
`asp` nobody waits for anybody: of these a checkpoint has a prefix of each arc's updates, no cut.

Checkpoints are the first group's, and have what goes by its clocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import Effects, Save
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.shard_store import ShardStore
from shoal.protocol.views import FOREVER, View
from shoal.tables.spec import TableSpec

IN_A_ROW = 16  # a file with all rows, and those of what has changed since, one after the other


class Checkpointer:
    """Which checkpoints have been taken of the copies here.

    checkpoint_clocks:  the clocks that have one
    active:             whether there are any
    """

    def __init__(
        self,
        checkpoint_clocks: CheckpointClocks,
        shards: Mapping[int, ShardStore],
        clocks: Clocks,
        replication: Replication,
    ) -> None:
        self._checkpoint_clocks = checkpoint_clocks
        self._shards = shards
        self._clocks = clocks
        self._replication = replication
        self.active = bool(checkpoint_clocks)
        self._tables: tuple[str, ...] = ()
        self._failures = 0
        self._taken: dict[int, int] = {}  # by copy: the latest clock that was passed
        self._latest: dict[int, tuple[int, int]] = {}  # ... that was taken here; since all was: n

    def adopt(self, view: View) -> None:
        """Copies that have come here go on where those before them stopped."""
        self._tables = tuple(spec.name for spec in view.tables if not spec.group)
        self._checkpoint_clocks.adopt(view)
        self.active = bool(self._checkpoint_clocks)
        if self.active:
            clock = self._clocks.of("").minimum
            saved = [replica.number for replica in self._replication.of("")]
            reached = {n: self._replication.reached(n, clock) for n in saved}
            self._taken = {
                n: self._taken.get(n, self._checkpoint_clocks.latest(at))
                for n, at in reached.items()
            }

    def checkpoint_clock(self, spec: TableSpec, clock: int) -> int:
        """The latest marker that is passed at `clock`; 0 where the table has none."""
        rule = spec.consistency
        if (
            rule.name != "ssp"
            or rule.apply_at == "round_end"
            or spec.kind == "custom"
            or spec.group
        ):
            return 0
        return self._checkpoint_clocks.latest(clock)

    def latest(self, clock: int) -> int:
        """The latest clock of a checkpoint that is passed at `clock`."""
        return self._checkpoint_clocks.latest(clock)

    def holds(self, spec: TableSpec, clock: int) -> bool:
        """Whether a push of `clock` has to wait for a marker."""
        return self.checkpoint_clock(spec, clock) > self._clocks.of(spec.group).minimum

    def past(self, number: int, clock: int) -> None:
        """A push of `clock` is applied, which is to be in no checkpoint of that clock or an earlier
        one; it may be named later."""
        replica, rule = self._replication.replicas[number], self._shards[number].spec.consistency
        if rule.name == "ssp":
            replica.close(clock + 1)

    def before(self, number: int, clock: int, out: Effects) -> None:
        """All rounds below `clock` are in a shard's rows, and it may be changed next.

        Where later ones are as well, the server that was the tail before has taken it, or nobody.
        """
        replica = self._replication.replicas[number]
        if not self.active or replica.group or clock >= FOREVER:
            return
        while (due := self._checkpoint_clocks.following(self._taken.get(number, 0))) <= clock:
            self._taken[number] = due
            if replica.tail == self._replication.rank and replica.closed <= due:
                out.append(self._taken_of(number, due))

    def _taken_of(self, number: int, clock: int) -> Save:
        """Rows as they are now: all, or what has changed since they were taken last."""
        shard, replica = self._shards[number], self._replication.replicas[number]
        failures = self._failures
        since, in_a_row = self._latest.get(number, (-1, 0))
        changes = shard.changes() if 0 < in_a_row < IN_A_ROW else None
        if changes is None:
            since, in_a_row = -1, 0
        state = shard.state(copied=True) if changes is None else changes
        self._latest[number] = clock, in_a_row + 1
        if self._failures != failures:  # perhaps of the file that this one goes on from
            self._latest.clear()
        return Save(clock, replica.table, shard.spec, replica.rows, state, self._tables, since)

    def begin_anew(self) -> None:
        """A file was not written: the next ones have all rows. (Called from any thread.)"""
        self._failures += 1
        self._latest.clear()

    def reached(self, out: Effects) -> None:
        """This server has come to another clock, as a head; others' rows to what it was told."""
        if self.active:
            clock = self._clocks.of("").minimum
            for replica in self._replication.of(""):
                self.before(replica.number, self._replication.reached(replica.number, clock), out)
