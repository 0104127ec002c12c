"""Takeover: open rounds and request logs when a view changes the chains."""

from __future__ import annotations

import msgspec

from shoal.protocol.machine import Effects
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.operations import Change, Operation
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.server.requests.executor import Applier
from shoal.protocol.server.state.replica import NONE, Cut, Replica
from shoal.protocol.server.state.shard_store import Staged
from shoal.protocol.server.state.state import ServerState


class Takeover:
    """Moves pushes that wait for rounds from the old head of a chain to the new one."""

    def __init__(
        self,
        state: ServerState,
        admission: Admission,
        chains: Chains,
        applier: Applier,
    ) -> None:
        self._admission = admission
        self._replicas = state.replicas
        self._clocks = state.clocks
        self._chains = chains
        self._rounds = state.rounds
        self._applier = applier

    def flush(self, out: Effects) -> None:
        """Replicate the pushes that wait for rounds, so that any replica can take over."""
        for entry in self._rounds.entries():
            changes = []
            for part in entry.parts:
                replica, staged = self._replicas[part.number], part.staged
                if replica.following != NONE:
                    change = Change(replica, replica.part_of(staged), part.lr, staged)
                    changes.append(change.copied())
            operation = Operation(
                "accept",
                (self._chains.rank,),
                self._clocks.of(entry.log.group).closed,
                changes,
                (entry.origin,),
                round=entry.clock,
                weight=entry.weight,
                pushed=entry.pushed,
                group=entry.log.group,
            )
            self._applier.apply(operation, out)

    def recut(self, cut: Cut) -> None:
        """Cut waiting pushes like the replicas that they are for."""

        def pieces(number: int, staged: Staged) -> list[tuple[int, Staged]]:
            if number not in cut:
                return [(number, staged)]
            found = []
            for piece in cut[number][1]:
                if len(rows := staged.rows & piece.rows):
                    found.append((piece.number, piece.shard.part_of(staged, rows)))
            return found

        self._rounds.recut(pieces)
        self._applier.copied.recut(pieces)

    def take_over(self) -> None:
        """Add the pushes that the old heads had accepted, for shards that this server heads now."""
        for entry in self._applier.copied.take():
            mine = [
                part
                for part in entry.parts
                if self._waits_here(self._replicas[part.number], entry.clock)
            ]
            if mine and self._admission.counts(entry.sender, entry.log, entry.clock):
                self._rounds.add(msgspec.structs.replace(entry, parts=mine))
                waiting = [self._replicas[p.number].open_part(p.staged.rows) for p in mine]
                entry.log.wait(entry.seq, waiting)

    def _waits_here(self, replica: Replica, clock: int) -> bool:
        """Return whether a push to a shard's round still waits, and this server is the head.

        Pushes that wait for checkpoint clocks are removed when they are applied.
        """
        waits_for_checkpoint = replica.shard.spec.consistency.apply_at == "arrival"
        return replica.previous == NONE and (waits_for_checkpoint or replica.closed <= clock)
