"""Checkpoints: a server saves its shards so that the files of a clock are a consistent cut.

The checkpoint of clock d contains, for every shard, the rows after all rounds below d and before
any later round. The tail of the shard's chain takes it: before it applies a later round, or when it
hears that the head has reached d, whichever comes first. No worker stops for a checkpoint, and the
servers need no agreement on a moment.

Under `ssp`, pushes are applied on arrival. There a push of clock d or later waits at the head until
every worker has reached the checkpoint clock d; the rows are saved before that push is applied.
Under `asp` no push waits: a checkpoint contains a prefix of each shard's updates, and is not a
consistent cut.

Checkpoints belong to the first worker group, and contain the tables that use its clocks.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from shoal.errors import AccessFailed
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import Effects, Save
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.operations import Operation
from shoal.protocol.server.notes import Unsaved
from shoal.protocol.server.requests.long_work import LongWork
from shoal.protocol.server.state.replica import Replica
from shoal.protocol.server.state.shard_store import ShardStore
from shoal.protocol.views import FOREVER, View
from shoal.tables.spec import TableSpec

CHAIN_MAX = 16  # files: one with all rows, and those with changed rows that build on it


class Checkpointer:
    """Takes the checkpoints of a server's replicas.

    active:  whether any clock has a checkpoint
    """

    def __init__(
        self,
        checkpoint_clocks: CheckpointClocks,
        clocks: Clocks,
        chains: Chains,
        long_work: LongWork,
    ) -> None:
        self._long_work = long_work
        self._checkpoint_clocks = checkpoint_clocks
        self._clocks = clocks
        self._chains = chains
        self.active = bool(checkpoint_clocks)
        self._over = False
        self._tables: tuple[str, ...] = ()
        self._failures = 0
        self._taken: dict[int, int] = {}  # by replica: the latest checkpoint clock passed
        self._latest: dict[int, tuple[int, int]] = {}  # by replica: (clock saved, files)

    def adopt(self, view: View) -> None:
        """Adopt a view: a replica that is new here continues after its latest checkpoint clock."""
        self._tables = tuple(spec.name for spec in view.tables if not spec.group)
        self._checkpoint_clocks.adopt(view)
        if any(not member.group for member in view.workers):
            self._over = False
        self.active = bool(self._checkpoint_clocks)
        if self.active:
            clock = self._clocks.of("").closed
            self._taken = {
                replica.number: self._taken.get(
                    replica.number,
                    self._checkpoint_clocks.latest(self._chains.reached(replica, clock)),
                )
                for replica in self._chains.of("")
            }

    def checkpoint_clock(self, spec: TableSpec, clock: int) -> int:
        """Return the latest checkpoint clock <= `clock` that pushes to the table wait for, or 0."""
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
        """Return the latest checkpoint clock <= `clock`, or 0."""
        return self._checkpoint_clocks.latest(clock)

    def holds(self, spec: TableSpec, clock: int) -> bool:
        """Return whether a push of `clock` has to wait for a checkpoint clock."""
        return self.checkpoint_clock(spec, clock) > self._clocks.of(spec.group).closed

    def is_due(self, replica: Replica) -> bool:
        """Return whether a checkpoint of a shard is to be taken before its rows change.

        The handler that is suspended will take it.
        """
        if not self.active or replica.group or self._deserted:
            return False
        reached = self._chains.reached(replica, self._clocks.of("").closed)
        clock = self._checkpoint_clocks.due_by(reached)
        taken = max(self._taken.get(replica.number, 0), self._checkpoint_clocks.skip_to(clock))
        return self._checkpoint_clocks.following(taken) <= clock

    def before_operation(self, operation: Operation, replicas: list[Replica], out: Effects) -> None:
        """Take the checkpoints that must not contain an operation, before it changes any rows.

        A round belongs to its clock, and so does a push under `ssp`.
        """
        for replica in replicas:
            if operation.what == "round":
                self.before(replica, operation.round, out)
                replica.close(operation.round + 1)
            elif operation.what == "push" and replica.group == operation.group:
                self.before(replica, operation.round + 1, out)
                self.contain(replica, operation.pushed)

    def contain(self, replica: Replica, clock: int) -> None:
        """Record that rows contain a push of `clock`.

        Under `ssp` no checkpoint of that clock or of an earlier one may contain it, even if a later
        view makes that clock a checkpoint clock.
        """
        if replica.shard.spec.consistency.name == "ssp":
            replica.close(clock + 1)

    def before(self, replica: Replica, clock: int, out: Effects) -> None:
        """Save the rows of a shard whose rounds below `clock` are applied, if a checkpoint is due.

        Call this before the shard changes. If later rounds are applied already, the former tail
        has taken the checkpoint, or no server has.
        """
        if not self.active or replica.group:
            return
        number, clock = replica.number, self._checkpoint_clocks.due_by(clock)
        skipped = self._checkpoint_clocks.skip_to(clock)
        self._taken[number] = max(self._taken.get(number, 0), skipped)
        while (due := self._checkpoint_clocks.following(self._taken[number])) <= clock:
            self._taken[number] = due
            if replica.tail == self._chains.rank and replica.closed <= due:
                self._save(replica, due, out)

    def _save(self, replica: Replica, clock: int, out: Effects) -> None:
        """Save the rows: all, or those changed since the last save."""
        shard, number = replica.shard, replica.number
        failures = self._failures
        since, files = self._latest.get(number, (-1, 0))
        copy = partial(_copied, shard, 0 < files < CHAIN_MAX)
        try:
            state, whole = self._long_work.do([replica], shard.copy_bytes, copy)
        except AccessFailed as error:  # a user's handler failed: that checkpoint stays incomplete
            out.append(Unsaved(replica.rows, clock, error.message))
            return
        if whole:
            since, files = -1, 0
        self._latest[number] = clock, files + 1
        if self._failures != failures:  # perhaps of the file that this one builds on
            self._latest.clear()
        rows, tables = replica.rows, self._tables
        out.append(Save(clock, replica.table, shard.spec, rows, state, tables, since))

    def begin_anew(self) -> None:
        """Save all rows next, because a file was not written. Called from any thread."""
        self._failures += 1
        self._latest.clear()

    def reached(self, out: Effects) -> None:
        """Take the checkpoints that are due, after the clock of a head has moved.

        Nothing is taken while long work is under way, which may be on any of the rows.
        """
        if self.active and not self._long_work.suspended and not self._deserted:
            clock = self._clocks.of("").closed
            for replica in self._chains.of(""):
                self.before(replica, self._chains.reached(replica, clock), out)

    def end(self, out: Effects) -> None:
        """Take the checkpoints that are due, because no worker will come any more."""
        self._over = True
        self.reached(out)

    @property
    def owes(self) -> bool:
        """Whether a checkpoint that a view has promised is not taken yet."""
        last = self._checkpoint_clocks.due_by(FOREVER)
        tails = [each for each in self._chains.of("") if each.tail == self._chains.rank]
        return any(self._taken.get(each.number, 0) < last for each in tails)

    @property
    def _deserted(self) -> bool:
        """Whether the last worker has gone, and the run may go on.

        All rounds are closed then. The next worker may begin with one before a checkpoint clock,
        whose checkpoint would lack its pushes.
        """
        return not len(self._clocks.of("")) and not self._over


def _copied(shard: ShardStore, changes: bool) -> tuple[dict[str, Any], bool]:
    """Return a copy of a shard's state, and whether it is the whole state.

    changes:  whether the changes since the last copy are enough
    """
    found = shard.changes() if changes else None
    return (shard.state(copied=True), True) if found is None else (found, False)
