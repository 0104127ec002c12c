"""Application of replicated operations: the replicas after the head repeat its changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from shoal.errors import AccessFailed, InvariantBroken
from shoal.keys import KeyRange
from shoal.protocol.machine import Effects, Note
from shoal.protocol.messages import Replicate, StateChunk
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.server.replica import NOT_BEGUN, AppliedPart, Replica
from shoal.protocol.server.replication.chain import Replication, Stage
from shoal.protocol.server.replication.link import Change, Check, Operation, nothing
from shoal.protocol.server.replication.operations import OperationBuilder
from shoal.protocol.server.replication.takeover import Takeover
from shoal.protocol.server.rounds import Contribution, Rounds
from shoal.protocol.server.shard_store import Loads, MovableStore, ShardStore, Staged
from shoal.protocol.server.staging import RequestStaging
from shoal.protocol.server.wait_queue import WaitQueue


class OperationApplier:
    """Applies the operations that come down the chains to this server's replicas."""

    def __init__(
        self,
        admission: Admission,
        staging: RequestStaging,
        shards: Mapping[int, ShardStore],
        replication: Replication,
        checkpointer: Checkpointer,
        rounds: Rounds,
        wait_queue: WaitQueue,
        takeover: Takeover,
    ) -> None:
        self._admission = admission
        self._staging = staging
        self._shards = shards
        self._replication = replication
        self._checkpointer = checkpointer
        self._rounds = rounds
        self._wait_queue = wait_queue
        self._takeover = takeover

    def stage(self, message: Replicate | StateChunk) -> Stage:
        """Return a function that makes staging memory for the parts of a message."""

        def room(number: int, rows: KeyRange, keys: int) -> Staged:
            shard = cast(MovableStore, self._shards[number])
            if isinstance(message, StateChunk):
                staged: Staged = shard.stage_snapshot(rows, keys)
            elif message.what in ("check", "call"):
                staged = shard.stage_keys(rows, max(keys, 0))
            elif message.what == "accept":
                staged = shard.stage(rows, keys)
            else:
                staged = shard.stage_told(rows, keys)
            return staged

        return room

    def do(
        self, message: Replicate, replicas: list[Replica], loads: Loads, out: Effects
    ) -> Operation:
        """Apply an operation to the replicas that do not have its version yet."""
        if message.what == "check":
            return self._check(message, replicas, loads, out)
        if message.what == "round":
            for replica in replicas:
                self._checkpointer.before(replica.number, message.round, out)
                replica.close(message.round + 1)
        if self._staging.guard.borrowers:
            self._staging.guard.recall()
        builder = OperationBuilder(self._replication, self._shards)
        by_round: dict[int, list[tuple[float | None, Staged]]] = {}
        fresh = []
        for replica, part, version, lr, staged in zip(
            replicas, message.parts, message.versions, message.rates, loads, strict=True
        ):
            shard = self._shards[replica.number]
            if version <= replica.version or replica.version == NOT_BEGUN:
                shard.release(staged)
                continue
            fresh.append((replica, part, version, lr, staged))
            if message.what != "accept":
                builder.about_to(replica.number, staged)
            if message.what == "round":
                by_round.setdefault(replica.number, []).append((lr, staged))
            elif message.what == "push":
                if replica.group == message.group:
                    self._checkpointer.before(replica.number, message.round + 1, out)
                    self._checkpointer.past(replica.number, message.pushed)
                shard.apply(staged, lr)
            elif message.what == "write":
                shard.write(staged)
            elif message.what == "call":
                with suppress(AccessFailed):  # as at the head; the shard remembers the answer
                    shard.read_keys(staged)
            else:
                self._accept(message, replica, staged, lr)
        for number, updates in by_round.items():
            self._shards[number].apply_round(updates)
        for replica, part, version, lr, staged in fresh:
            builder.changed(replica.number, part, lr, tuple(staged.views))
            if replica.version != version:
                raise InvariantBroken(
                    f"version {version} of {replica.rows} came at {replica.version}"
                )
        if message.what == "push" and self._takeover.copied.open:
            for incarnation, seq, _ in message.origins:  # it may have waited here
                self._takeover.copied.remove(
                    incarnation, seq, [replica.number for replica in replicas]
                )
        self._remember(message, builder)
        return builder.operation(
            message.what,
            message.group,
            message.clock,
            message.origins,
            message.round,
            message.weight,
            message.pushed,
            message.path,
        )

    def _check(
        self, message: Replicate, replicas: list[Replica], loads: Loads, out: Effects
    ) -> Operation:
        """Compare the checksum of some rows with the head's, and note the result."""
        changes: list[Change] = []
        for replica, part, version, staged in zip(
            replicas, message.parts, message.versions, loads, strict=True
        ):
            shard = cast(MovableStore, self._shards[replica.number])
            keys = staged.keys if part.keys >= 0 else None
            rows = KeyRange(part.start, part.stop)
            if replica.version == version and not shard.syncing:
                same = shard.digest(rows, keys) == message.digest
                fields = {"table": shard.spec.name, "rows": rows, "version": version}
                out.append(Note("compared" if same else "differs", fields))
            if replica.chain[-1] != self._replication.rank:  # not the last of the chain
                views = tuple(memoryview(bytes(view)) for view in staged.views)
                changes.append(Check(replica, part, version, None, views))
            shard.release(staged)
        path = *message.path, self._replication.rank
        return Operation("check", path, 0, changes, (), nothing, digest=message.digest)

    def _accept(
        self, message: Replicate, replica: Replica, staged: Staged, lr: float | None
    ) -> None:
        """Keep a push that waits for a round at the head, in case this server takes over."""
        parts, clock, weight = [(replica.number, staged)], message.round, message.weight
        for incarnation, seq, _ in message.origins:  # exactly one
            found = self._admission.log_of(incarnation)
            if found is not None:
                entry = Contribution(*found, seq, clock, weight, lr, parts, message.pushed)
                self._takeover.copied.add(entry)

    def _remember(self, message: Replicate, builder: OperationBuilder) -> None:
        """Record the pushes of an operation in the request logs, in case workers resend them."""
        if message.what == "accept":
            return
        parts_of_push = builder.parts_of_push
        if message.what == "round":  # contains every part of a push to a shard
            latest = {part.replica.number: part for part in parts_of_push}
            parts_of_push = [
                AppliedPart(part.replica.whole, part.replica, part.version)
                for part in latest.values()
            ]
        logs = {log.incarnation: log for log in self._admission.logs.values()}
        for incarnation, seq, below in message.origins:
            log = logs.get(incarnation)
            if log is None:
                continue
            if below > log.forget_below:
                log.forget(below)
                if self._wait_queue.pulls or self._wait_queue.pushes:
                    self._wait_queue.forget(log)
            if seq >= log.forget_below:
                log.add_parts(seq, parts_of_push)
        if message.what == "round" and message.round >= 0:
            self._rounds.weigh(message.group, message.round, message.weight)
