"""Closing of rounds: merge and apply the pushes of a clock when every worker has passed it.

The pushes of a round are merged in rank order and applied as one update. Pushes that waited for a
checkpoint clock are applied after that, one by one, once the rows of that checkpoint are saved.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import AccessFailed
from shoal.protocol.machine import Effects, Note
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.operations import OperationBuilder
from shoal.protocol.server.replies import Replies
from shoal.protocol.server.rounds import Contribution, Rounds
from shoal.protocol.server.shard_store import ShardStore
from shoal.protocol.server.staging import RequestStaging
from shoal.protocol.server.wait_queue import WaitQueue


class RoundCloser:
    """Closes a server's rounds."""

    def __init__(
        self,
        admission: Admission,
        staging: RequestStaging,
        shards: Mapping[int, ShardStore],
        replies: Replies,
        replication: Replication,
        checkpointer: Checkpointer,
        rounds: Rounds,
        wait_queue: WaitQueue,
    ) -> None:
        self._admission = admission
        self._staging = staging
        self._shards = shards
        self._replies = replies
        self._replication = replication
        self._checkpointer = checkpointer
        self._rounds = rounds
        self._wait_queue = wait_queue

    def close(self, group: str, clock: int, out: Effects) -> None:
        """Close the round of a clock that every worker of the group has passed."""
        entries = self._rounds.close(group, clock)
        self._staging.guard.recall()
        delayed = [entry for entry in entries if any(self._is_single(n) for n, _ in entry.parts)]
        merged = [entry for entry in entries if entry not in delayed]
        failed: dict[int, str] = {}
        if merged:
            # a reader that sees the new clock must also find the delayed pushes in the rows
            failed = self._merge(merged, group, clock, clock if delayed else clock + 1, out)
        for entry in merged:
            self._acknowledge(entry, [failed[n] for n, _ in entry.parts if n in failed], out)
        for entry in delayed:
            self._acknowledge(entry, self._apply(entry, out), out)

    def _is_single(self, number: int) -> bool:
        return self._shards[number].spec.consistency.apply_at == "arrival"

    def _builder(self) -> OperationBuilder | None:
        return (
            OperationBuilder(self._replication, self._shards)
            if self._admission.replicated
            else None
        )

    def _merge(
        self, entries: list[Contribution], group: str, clock: int, reached: int, out: Effects
    ) -> dict[int, str]:
        """Merge and apply a round's pushes; return the reason for each shard that refused."""
        builder, failed = self._builder(), {}
        for shard in sorted({number for entry in entries for number, _ in entry.parts}):
            parts = [
                (entry.weight, entry.lr, staged)
                for entry in entries
                for number, staged in entry.parts
                if number == shard
            ]
            self._checkpointer.before(shard, clock, out)
            self._replication.replicas[shard].close(clock + 1)
            if builder is not None:
                builder.about_to(shard, *(staged for _, _, staged in parts))
            try:
                updates = self._shards[shard].merge(parts)
            except AccessFailed as error:
                failed[shard] = error.message
                updates = []
            if builder is not None:
                builder.merged(shard, updates, entries)
        out.append(Note("closed", {"clock": clock, "pushes": len(entries)}))
        if builder is not None:
            origins = tuple(
                (each.log.incarnation, each.seq, each.log.forget_below) for each in entries
            )
            weight = self._rounds.weight(group, clock)
            operation = builder.operation("round", group, reached, origins, clock, weight)
            self._replication.carry(operation, out)
        return failed

    def _apply(self, entry: Contribution, out: Effects) -> list[str]:
        """Apply a push that waited for a checkpoint clock; return the reasons of refusals."""
        builder, problems = self._builder(), []
        for number, staged in entry.parts:
            self._checkpointer.before(number, entry.clock + 1, out)
            self._checkpointer.past(number, entry.pushed)
            if builder is not None:
                builder.about_to(number, staged)
            try:
                self._shards[number].apply(staged, entry.lr)
            except AccessFailed as error:
                problems.append(error.message)
                continue
            if builder is not None:
                builder.applied(entry, number, staged)
        if builder is not None:
            builder.all_applied(entry)  # or refused
            origin = entry.log.incarnation, entry.seq, entry.log.forget_below
            group, clock = entry.log.group, entry.clock
            operation = builder.operation(
                "push", group, clock, (origin,), clock, pushed=entry.pushed
            )
            self._replication.carry(operation, out)
        return problems

    def _acknowledge(self, entry: Contribution, problems: list[str], out: Effects) -> None:
        """Answer a push, unless something else answers it."""
        log, code = entry.log, entry.log.outcomes.get(entry.seq)
        if self._admission.logs.get(entry.sender) is not log:
            return  # its worker has left
        key = log.incarnation, entry.seq
        open_ = self._rounds.entries()
        if any(each.log is log and each.seq == entry.seq for each in open_) and not problems:
            return  # other parts of the push still wait
        if problems:
            self._wait_queue.leave(key)
        elif code != "accepted" or self._admission.replicated:
            return  # its pull answers, or its replication is not finished
        code = "refused" if problems else "applied"
        log.record(entry.seq, code)
        self._replies.acknowledge(out, entry.sender, *key, code, "; ".join(problems))
