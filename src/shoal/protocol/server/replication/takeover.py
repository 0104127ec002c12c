"""Handover: what belongs to rows besides them, where others come to have them or take them over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import cast

from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import Effects
from shoal.protocol.server.admission import Gate
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.link import Operation, nothing
from shoal.protocol.server.request_log import Cut, Taking
from shoal.protocol.server.rounds import Rounds
from shoal.protocol.server.shards import MovableShard, Shard, Staged


class Handover:
    """What waits for rounds, and which pushes are in rows, when a view changes who has them.

    copied:  what other heads have accepted for rounds
    """

    def __init__(
        self,
        gate: Gate,
        shards: Mapping[int, Shard],
        clocks: Clocks,
        replication: Replication,
        rounds: Rounds,
    ) -> None:
        self.copied = Rounds()
        self._gate = gate
        self._shards = shards
        self._clocks = clocks
        self._replication = replication
        self._rounds = rounds

    def begin_to_replicate(self) -> None:
        """Others are to have these rows from now on: write down which pushes are in them."""
        self._gate.replicated = True
        copies = list(self._replication.copies.values())
        in_rounds: defaultdict[tuple[int, int], list[tuple[int, Staged]]] = defaultdict(list)
        for each in self._rounds.entries():
            in_rounds[id(each.window), each.seq] += each.parts
        for window in self._gate.windows.values():
            for seq, code in window.codes.items():
                waiting = in_rounds.get((id(window), seq), [])
                takings = window.taken.setdefault(seq, [])
                for copy in copies:
                    waits = [staged for number, staged in waiting if number == copy.number]
                    takings += [copy.taking(staged.rows) for staged in waits]
                    if not waits and code not in ("refused", "round_closed"):
                        takings.append(Taking(copy.whole, copy, copy.version))

    def flush(self, out: Effects) -> None:
        """Whoever may take over has what waits for rounds as well."""
        for entry in self._rounds.entries():
            changes = [
                self._replication.change(
                    number,
                    self._replication.copies[number].part(staged),
                    entry.lr,
                    tuple(memoryview(bytes(view)) for view in staged.views),
                )
                for number, staged in entry.parts
                if not self._replication.alone(number)
            ]
            if changes:
                window = entry.window
                minimum = self._clocks.of(window.group).minimum
                origin = window.incarnation, entry.seq, window.settled_below
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
                    group=window.group,
                )
                self._replication.carry(accepted, out)

    def recut(self, cut: Cut) -> None:
        """Copies are in pieces: so is what waits for their rounds."""

        def pieces(number: int, staged: Staged) -> list[tuple[int, Staged]]:
            if number not in cut:
                return [(number, staged)]
            found = []
            for piece in cut[number][1]:
                if len(staged.rows & piece.rows):
                    shard = cast(MovableShard, self._shards[piece.number])
                    found.append((piece.number, shard.part_of(staged)))
            return found

        self._rounds.recut(pieces)
        self.copied.recut(pieces)

    def take_over(self) -> None:
        """What other heads had accepted waits here, where this server is the head now."""
        copies, rank = self._replication.copies, self._replication.rank
        for entry in self.copied.take():
            mine = [
                (number, staged)
                for number, staged in entry.parts
                if copies[number].arc.head == rank
                and (self._waits_for_marker(number) or copies[number].closed <= entry.clock)
            ]
            if mine and self._gate.counts(entry.sender, entry.window, entry.clock):
                entry.parts = mine
                self._rounds.add(entry)
                takings = entry.window.taken.setdefault(entry.seq, [])
                takings += [copies[number].taking(staged.rows) for number, staged in mine]

    def _waits_for_marker(self, number: int) -> bool:
        """What is no longer to wait for one was taken out when it was done."""
        return self._shards[number].spec.consistency.settles == "now"
