"""Takeover: open rounds and request logs when a view changes the chains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import cast

import msgspec

from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import Effects
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.replica import AppliedPart, Cut
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.link import Operation, nothing
from shoal.protocol.server.rounds import Rounds
from shoal.protocol.server.shard_store import MovableStore, ShardStore, Staged


class Takeover:
    """Moves pushes that wait for rounds from the old head of a chain to the new one.

    copied:  pushes that the heads of other chains have accepted into rounds
    """

    def __init__(
        self,
        admission: Admission,
        shards: Mapping[int, ShardStore],
        clocks: Clocks,
        replication: Replication,
        rounds: Rounds,
    ) -> None:
        self.copied = Rounds()
        self._admission = admission
        self._shards = shards
        self._clocks = clocks
        self._replication = replication
        self._rounds = rounds

    def begin_to_replicate(self) -> None:
        """Begin to replicate: record which pushes are in the rows already."""
        self._admission.replicate()
        replicas = list(self._replication.replicas.values())
        in_rounds: defaultdict[tuple[int, int], list[tuple[int, Staged]]] = defaultdict(list)
        for each in self._rounds.entries():
            in_rounds[id(each.log), each.seq] += each.parts
        for log in self._admission.logs.values():
            for seq, code in log.outcomes.items():
                waiting = in_rounds.get((id(log), seq), [])
                for replica in replicas:
                    waits = [staged for number, staged in waiting if number == replica.number]
                    log.add_parts(seq, [replica.open_part(staged.rows) for staged in waits])
                    if not waits and code not in ("refused", "round_closed"):
                        whole = AppliedPart(replica.whole, replica, replica.version)
                        log.add_parts(seq, [whole])

    def flush(self, out: Effects) -> None:
        """Replicate the pushes that wait for rounds, so that any replica can take over."""
        for entry in self._rounds.entries():
            changes = [
                self._replication.change(
                    number,
                    self._replication.replicas[number].part(staged),
                    entry.lr,
                    tuple(memoryview(bytes(view)) for view in staged.views),
                )
                for number, staged in entry.parts
                if not self._replication.alone(number)
            ]
            if changes:
                log = entry.log
                minimum = self._clocks.of(log.group).minimum
                origin = log.incarnation, entry.seq, log.forget_below
                path, clock, weight = (self._replication.rank,), entry.clock, entry.weight
                accepted = Operation(
                    "accept",
                    path,
                    minimum,
                    changes,
                    (origin,),
                    nothing,
                    clock,
                    weight,
                    pushed=entry.pushed,
                    group=log.group,
                )
                self._replication.carry(accepted, out)

    def recut(self, cut: Cut) -> None:
        """Cut waiting pushes like the replicas that they are for."""

        def pieces(number: int, staged: Staged) -> list[tuple[int, Staged]]:
            if number not in cut:
                return [(number, staged)]
            found = []
            for piece in cut[number][1]:
                if len(staged.rows & piece.rows):
                    shard = cast(MovableStore, self._shards[piece.number])
                    found.append((piece.number, shard.part_of(staged)))
            return found

        self._rounds.recut(pieces)
        self.copied.recut(pieces)

    def take_over(self) -> None:
        """Add the pushes that the old heads had accepted, for shards that this server heads now."""
        replicas, rank = self._replication.replicas, self._replication.rank
        for entry in self.copied.take():
            mine = [
                (number, staged)
                for number, staged in entry.parts
                if replicas[number].placement.head == rank
                and (self._waits_for_checkpoint(number) or replicas[number].closed <= entry.clock)
            ]
            if mine and self._admission.counts(entry.sender, entry.log, entry.clock):
                self._rounds.add(msgspec.structs.replace(entry, parts=mine))
                open_parts = [replicas[number].open_part(staged.rows) for number, staged in mine]
                entry.log.add_parts(entry.seq, open_parts)

    def _waits_for_checkpoint(self, number: int) -> bool:
        """Return whether a shard's pushes wait for checkpoint clocks; applied ones are removed."""
        return self._shards[number].spec.consistency.apply_at == "arrival"
