"""Closing: what becomes of the pushes that wait for a clock, when every worker has reached it.

Those of a round are merged in rank order and applied as one. Those that waited for a marker are
applied after that, each by itself, once the marker's rows are taken.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import AccessFailed
from shoal.protocol.machine import Effects, Note
from shoal.protocol.server.admission import Gate
from shoal.protocol.server.checkpointing import Saving
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.operations import Made
from shoal.protocol.server.replies import Answers
from shoal.protocol.server.rounds import Contribution, Rounds
from shoal.protocol.server.shards import Shard
from shoal.protocol.server.staging import Intake
from shoal.protocol.server.wait_queue import Parking


class Closing:
    """Closes the rounds of a server.

    parking: of requests that are answered by being refused
    """

    def __init__(
        self,
        gate: Gate,
        intake: Intake,
        shards: Mapping[int, Shard],
        answers: Answers,
        replication: Replication,
        saving: Saving,
        rounds: Rounds,
        parking: Parking,
    ) -> None:
        self._gate = gate
        self._intake = intake
        self._shards = shards
        self._answers = answers
        self._replication = replication
        self._saving = saving
        self._rounds = rounds
        self._parking = parking

    def close(self, group: str, clock: int, out: Effects) -> None:
        """Every worker of a group has passed that clock."""
        entries = self._rounds.close(group, clock)
        self._intake.loan.recall()
        held = [entry for entry in entries if any(self._is_single(n) for n, _ in entry.parts)]
        merged = [entry for entry in entries if entry not in held]
        failed: dict[int, str] = {}
        if merged:
            # whoever reads goes by the clock, and has to find what waited for the marker as well
            failed = self._merge(merged, group, clock, clock if held else clock + 1, out)
        for entry in merged:
            self._acknowledge(entry, [failed[n] for n, _ in entry.parts if n in failed], out)
        for entry in held:
            self._acknowledge(entry, self._apply(entry, out), out)

    def _is_single(self, number: int) -> bool:
        return self._shards[number].spec.consistency.settles == "now"

    def _made(self) -> Made | None:
        return Made(self._replication, self._shards) if self._gate.replicated else None

    def _merge(
        self, entries: list[Contribution], group: str, clock: int, reached: int, out: Effects
    ) -> dict[int, str]:
        """Merge the round's pushes, apply them once; which shards have refused to, and why."""
        made, failed = self._made(), {}
        for shard in sorted({number for entry in entries for number, _ in entry.parts}):
            parts = [
                (entry.weight, entry.lr, staged)
                for entry in entries
                for number, staged in entry.parts
                if number == shard
            ]
            self._saving.before(shard, clock, out)
            self._replication.copies[shard].closed = clock + 1
            if made is not None:
                made.about_to(shard, *(staged for _, _, staged in parts))
            try:
                updates = self._shards[shard].merge(parts)
            except AccessFailed as error:
                failed[shard] = error.message
                updates = []
            if made is not None:
                made.merged(shard, updates, entries)
        out.append(Note("closed", {"clock": clock, "pushes": len(entries)}))
        if made is not None:
            origins = tuple(
                (each.window.incarnation, each.seq, each.window.settled_below) for each in entries
            )
            weight = self._rounds.weight(group, clock)
            operation = made.operation("round", group, reached, origins, clock, weight)
            self._replication.carry(operation, out)
        return failed

    def _apply(self, entry: Contribution, out: Effects) -> list[str]:
        """A push that has waited for a marker; what its tables have against it."""
        made, problems = self._made(), []
        for number, staged in entry.parts:
            self._saving.before(number, entry.clock + 1, out)
            self._saving.past(number, entry.pushed)
            if made is not None:
                made.about_to(number, staged)
            try:
                self._shards[number].apply(staged, entry.lr)
            except AccessFailed as error:
                problems.append(error.message)
                continue
            if made is not None:
                made.applied(entry, number, staged)
        if made is not None:
            made.all_applied(entry)  # or refused
            origin = entry.window.incarnation, entry.seq, entry.window.settled_below
            group, clock = entry.window.group, entry.clock
            operation = made.operation("push", group, clock, (origin,), clock, pushed=entry.pushed)
            self._replication.carry(operation, out)
        return problems

    def _acknowledge(self, entry: Contribution, problems: list[str], out: Effects) -> None:
        """Say of a push what became of it, where nothing else does."""
        window, code = entry.window, entry.window.codes.get(entry.seq)
        if self._gate.windows.get(entry.sender) is not window:
            return  # it has left
        key = window.incarnation, entry.seq
        open_ = self._rounds.entries()
        if any(each.window is window and each.seq == entry.seq for each in open_) and not problems:
            return  # other parts of it still wait
        if problems:
            self._parking.leave(key)
        elif code != "accepted" or self._gate.replicated:
            return  # its pull in the same request answers for both; or others are to have it too
        code = window.codes[entry.seq] = "refused" if problems else "applied"
        self._answers.settled(out, entry.sender, *key, code, "; ".join(problems))
