"""Application of operations to the replicas on this server, in the order of their versions.

Whatever changes rows is an operation: a push, a closed round, a call, and what comes down a chain
from its head.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from shoal.errors import AccessFailed, InvariantBroken
from shoal.protocol.machine import CopyOnWriteGuard, Effects
from shoal.protocol.messages import KEY_BYTES, What
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.server.long_work.coroutine import LongWork
from shoal.protocol.server.replica import NONE, AppliedPart, Replica
from shoal.protocol.server.replication.chain import Chains
from shoal.protocol.server.replication.operations import NEW, Change, Operation, RoundPushes
from shoal.protocol.server.rounds import Rounds
from shoal.protocol.server.shard_store import ShardStore, Staged


class Applier:
    """Applies operations, and sends them down the chains.

    copied:  pushes that the heads of other chains have accepted into rounds
    """

    def __init__(
        self,
        guard: CopyOnWriteGuard,
        replicas: Mapping[int, Replica],
        chains: Chains,
        checkpointer: Checkpointer,
        long_work: LongWork,
    ) -> None:
        self.copied = Rounds()
        self._guard = guard
        self._replicas = replicas
        self._chains = chains
        self._checkpointer = checkpointer
        self._long_work = long_work

    def apply(self, operation: Operation, out: Effects) -> dict[int, str]:
        """Apply an operation to the replicas here, record its pushes, and send it down the chains.

        Returns:
            By replica, why a part was refused: its access method has failed.

        Raises:
            InvariantBroken: another server has counted other versions for its changes
        """
        replicas = operation.replicas() if operation.round >= 0 or operation.pushed >= 0 else []
        if replicas:
            self._checkpointer.before_operation(operation, replicas, out)
        failed: dict[int, str] = {}
        parts, onward = [], []
        for change in self._changed(operation, failed):
            replica = change.replica
            version = replica.count()
            if change.version not in (NEW, version):
                told = f"version {change.version} of {replica.rows} came at {version - 1}"
                raise InvariantBroken(told)
            parts.append(AppliedPart(change.part, replica, version))
            if replica.following != NONE:
                onward.append(change.counted(version))
        if operation.what == "round":  # it contains every part of a push to a shard
            parts = [each.applied for each in replicas if each.number not in failed]
        for log, seq in operation.logs:
            log.apply(seq, parts)
            for number in failed:
                log.refuse(seq, number)
        if operation.what == "push" and self.copied.open:  # it may have waited here
            numbers = [each.replica.number for each in parts]
            for incarnation, seq, _ in operation.origins:
                self.copied.remove(incarnation, seq, numbers)
        if onward:
            operation.keep(onward)
            self._chains.carry(operation, out)
        return failed

    def _changed(self, operation: Operation, failed: dict[int, str]) -> list[Change]:
        """Change the rows, outside of the loop if that takes long; return what was changed."""
        if operation.what == "accept":  # an accepted push changes them with its round
            return operation.changes
        if self._guard.borrowers and (operation.changes or operation.merges):
            self._guard.recall()
        for change in operation.changes:
            if change.replica.following != NONE:
                operation.retain(change.replica, change.staged)
        for merge in operation.merges:
            if merge.replica.following != NONE:
                for _, _, staged in merge.pushes:
                    operation.retain(merge.replica, staged)
        work = self._change_round if operation.what == "round" else _change_rows
        if operation.what == "call" or not self._long_work.running:
            return work(operation, failed)  # a handler may be bound to the loop's thread
        done = partial(work, operation, failed)
        return self._long_work.do(operation.replicas(), operation.nbytes, done)

    def _change_round(self, operation: Operation, failed: dict[int, str]) -> list[Change]:
        """Apply a round to the rows: merged here at the head, or as its head has merged it."""
        changes = []
        for each in operation.merges:
            try:
                changes += _merged(each)
            except AccessFailed as error:
                failed[each.replica.number] = error.message
        updates = defaultdict(list)
        for change in operation.changes:
            updates[change.replica.number].append((change.lr, change.staged))
        for number, some in updates.items():
            self._replicas[number].shard.apply_round(some)
        return [*changes, *operation.changes]


def _merged(merge: RoundPushes) -> list[Change]:
    replica, changes = merge.replica, []
    for update in replica.shard.merge(merge.pushes):
        views = update.views if replica.following != NONE else ()
        keys = views[0].nbytes // KEY_BYTES if len(views) > 1 else -1
        part = replica.part(update.rows, keys)
        changes.append(Change(replica, part, update.lr, buffers=views))
    return changes


def _change_rows(operation: Operation, failed: dict[int, str]) -> list[Change]:
    changed = []
    for change in operation.changes:
        try:
            if change.staged is not None:
                _change(change.replica.shard, operation.what, change.staged, change.lr)
        except AccessFailed as error:
            failed[change.replica.number] = error.message
        else:
            changed.append(change)
    return changed


def _change(shard: ShardStore, what: What, staged: Staged, lr: float | None) -> None:
    if what == "push":
        shard.apply(staged, lr)
    elif what == "write":
        shard.write(staged)
    else:
        with suppress(AccessFailed):  # the answer of a call may be an error
            shard.read_keys(staged)
