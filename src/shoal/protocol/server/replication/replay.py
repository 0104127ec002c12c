"""Replay: the servers after the head of a chain make operations of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.errors import InvariantBroken
from shoal.keys import KeyRange
from shoal.protocol.layout import cut_evenly
from shoal.protocol.machine import Effects
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.replication import Replicate, StateChunk
from shoal.protocol.server.chains.chain import Chains, Stage
from shoal.protocol.server.chains.operations import Change, Operation
from shoal.protocol.server.notes import Replayed
from shoal.protocol.server.requests.requests import Requests
from shoal.protocol.server.state.replica import NOT_BEGUN, Replica
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.server.state.rounds import Contribution, PushPart
from shoal.protocol.server.state.shard_store import Encoded, Loads, Staged
from shoal.protocol.server.state.state import ServerState


class RoundLoad(msgspec.Struct):
    """The encoded pushes of a round, as staged memory of one part of a message."""

    rows: KeyRange
    pushes: list[Staged]
    views: list[memoryview]
    keys: Any = None
    kept: bool = False
    retained: bool = False
    encoded: Encoded | None = None

    def with_ways(
        self, ways: Sequence[tuple[float, float | None]]
    ) -> list[tuple[float, float | None, Staged]]:
        """Return (weight, rate, staged) of each push."""
        return [(*how, staged) for how, staged in zip(ways, self.pushes, strict=True)]

    def problem(self) -> str:
        return ""


class Replayer:
    """Makes the operations that come down the chains, and has them applied."""

    def __init__(
        self,
        state: ServerState,
        chains: Chains,
        requests: Requests,
    ) -> None:
        self._rounds = state.rounds
        self._chains = chains
        self._admission = requests.admission
        self._executor = requests.executor
        self._applier = requests.applier
        self._memory = requests.memory
        self._decoder = requests.decoder

    def stage(self, message: Replicate | StateChunk) -> Stage:
        """Return a function that makes staging memory for the parts of a message."""

        def room(replica: Replica, number: int) -> Staged:
            part: Part = message.parts[number]
            shard, rows, keys = replica.shard, KeyRange(part.start, part.stop), part.keys
            sizes = message.sizes[number] if message.sizes else ()
            pushes = len(message.merges[number]) if message.merges else 0
            if pushes:
                cut = cut_evenly(sizes, len(sizes) // pushes)
                made = [shard.stage_encoded(rows, some) for some in cut]
                return RoundLoad(rows, made, [view for each in made for view in each.views])
            if sizes:
                staged: Staged = shard.stage_encoded(rows, sizes)
            elif isinstance(message, StateChunk):
                staged = shard.stage_snapshot(rows, keys)
            elif message.what in ("check", "call"):
                staged = shard.stage_keys(rows, max(keys, 0))
            elif part.slots:
                staged = shard.stage_state(rows)
            elif message.what == "accept":
                staged = shard.stage(rows, keys)
            else:
                staged = shard.stage_told(rows, keys)
            return staged

        return room

    def replay(
        self, message: Replicate, replicas: list[Replica], loads: Loads, out: Effects
    ) -> None:
        """Apply a message's changes to the replicas that do not have their versions yet."""
        changes = []
        merges = message.merges or ((),) * len(loads)
        for replica, part, version, lr, staged, merged in zip(
            replicas, message.parts, message.versions, message.rates, loads, merges, strict=True
        ):
            if isinstance(staged, RoundLoad):
                change = Change(replica, part, lr, version=version, pushes=staged.with_ways(merged))
            else:
                change = Change(replica, part, lr, staged, version)
            if version <= replica.version or replica.version == NOT_BEGUN:
                for each in change.all_staged:
                    replica.shard.release(each)
            else:
                changes.append(change)
        if message.sizes:
            self._decode(changes)
        if message.what == "accept":
            changes = [self._accept(message, each) for each in changes]
        self._memory.grow(changes)
        self._chains.reach(message)
        operation = Operation(
            message.what,
            (*message.path, self._chains.rank),
            message.clock,
            changes,
            message.origins,
            self._logs(message),
            round=message.round,
            weight=message.weight,
            pushed=message.pushed,
            group=message.group,
            updates=message.updates,
        )
        self._applier.apply(operation, out)
        if message.what == "round" and message.round >= 0:
            self._rounds.weigh(message.group, message.round, message.weight)
        self._chains.pass_on(message, out)
        out.append(Replayed(message))

    def _decode(self, changes: list[Change]) -> None:
        """Decode the pushes of a message, which the server before this one has decoded.

        Raises:
            InvariantBroken: they have been damaged since. This server stops, to be synced anew.
        """
        staged = [(change.replica, each) for change in changes for each in change.all_staged]
        if problem := self._decoder.problem(staged):
            raise InvariantBroken(f"what the server before this one has decoded: {problem}")

    def _logs(self, message: Replicate) -> list[tuple[RequestLog, int]]:
        """Return the pushes of an operation that workers may send again."""
        if message.what == "accept":
            return []
        logs = {log.incarnation: log for log in self._admission.logs.values()}
        found = []
        for incarnation, seq, below in message.origins:
            log = logs.get(incarnation)
            if log is None:
                continue
            if below > log.forget_below:
                self._executor.forget(log, below)
            if seq >= log.forget_below:
                found.append((log, seq))
        return found

    def _accept(self, message: Replicate, change: Change) -> Change:
        """Keep a push that waits for a round at the head, in case this server takes over.

        Return the change for the next server, with a copy of the payload: the push that is kept
        here may be applied, and its memory reused, before the change is sent.
        """
        replica, staged = change.replica, change.staged
        assert staged is not None
        for incarnation, seq, _ in message.origins:  # exactly one
            found = self._admission.log_of(incarnation)
            if found is not None:
                parts, weight = [PushPart(replica.number, staged, change.lr)], message.weight
                entry = Contribution(*found, seq, message.round, weight, parts, message.pushed)
                self._applier.copied.add(entry)
        return change.copied()
