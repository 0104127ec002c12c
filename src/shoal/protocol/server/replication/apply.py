"""Replay: what other servers have done, done here as well."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from shoal.errors import AccessFailed, InvariantBroken
from shoal.keys import KeyRange
from shoal.protocol.machine import Effects, Note
from shoal.protocol.messages import Replicate, State
from shoal.protocol.server.admission import Gate
from shoal.protocol.server.checkpointing import Saving
from shoal.protocol.server.replication.chain import Replication, Stage
from shoal.protocol.server.replication.link import Change, Check, Operation, nothing
from shoal.protocol.server.replication.operations import Made
from shoal.protocol.server.replication.takeover import Handover
from shoal.protocol.server.request_log import NOT_BEGUN, Copy, Taking
from shoal.protocol.server.rounds import Contribution, Rounds
from shoal.protocol.server.shards import Loads, MovableShard, Shard, Staged
from shoal.protocol.server.staging import Intake
from shoal.protocol.server.wait_queue import Parking


class Replay:
    """Does here what the heads of some arcs have done."""

    def __init__(
        self,
        gate: Gate,
        intake: Intake,
        shards: Mapping[int, Shard],
        replication: Replication,
        saving: Saving,
        rounds: Rounds,
        parking: Parking,
        handover: Handover,
    ) -> None:
        self._gate = gate
        self._intake = intake
        self._shards = shards
        self._replication = replication
        self._saving = saving
        self._rounds = rounds
        self._parking = parking
        self._handover = handover

    def stage(self, message: Replicate | State) -> Stage:
        """What gives room for the parts of what another server says."""

        def room(number: int, rows: KeyRange, keys: int) -> Staged:
            shard = cast(MovableShard, self._shards[number])
            if isinstance(message, State):
                staged: Staged = shard.stage_snapshot(rows, keys)
            elif message.what in ("check", "call"):
                staged = shard.stage_keys(rows, max(keys, 0))
            elif message.what == "accept":
                staged = shard.stage(rows, keys)
            else:
                staged = shard.stage_told(rows, keys)
            return staged

        return room

    def do(self, message: Replicate, copies: list[Copy], loads: Loads, out: Effects) -> Operation:
        """Do what the head of some arcs has done, where that is not done here already."""
        if message.what == "check":
            return self._check(message, copies, loads, out)
        if message.what == "round":
            for copy in copies:
                self._saving.before(copy.number, message.round, out)
                copy.closed = max(copy.closed, message.round + 1)
        self._intake.loan.recall()
        made = Made(self._replication, self._shards)
        settled: dict[int, list[tuple[float | None, Staged]]] = {}
        fresh = []
        for copy, part, version, lr, staged in zip(
            copies, message.parts, message.versions, message.rates, loads, strict=True
        ):
            shard = self._shards[copy.number]
            if version <= copy.version or copy.version == NOT_BEGUN:
                shard.release(staged)
                continue
            fresh.append((copy, part, version, lr, staged))
            if message.what != "accept":
                made.about_to(copy.number, staged)
            if message.what == "round":
                settled.setdefault(copy.number, []).append((lr, staged))
            elif message.what == "push":
                if copy.group == message.group:
                    self._saving.before(copy.number, message.round + 1, out)
                    self._saving.past(copy.number, message.pushed)
                shard.apply(staged, lr)
            elif message.what == "write":
                shard.write(staged)
            elif message.what == "call":
                with suppress(AccessFailed):  # as at its head: the answer is remembered, if need be
                    shard.read_keys(staged)
            else:
                self._accept(message, copy, staged, lr)
        for number, updates in settled.items():
            self._shards[number].settle(updates)
        for copy, part, version, lr, staged in fresh:
            made.changed(copy.number, part, lr, tuple(staged.views))
            if copy.version != version:
                raise InvariantBroken(f"version {version} of {copy.rows} came at {copy.version}")
        if message.what == "push":
            for incarnation, seq, _ in message.origins:  # it may have waited for a marker
                self._handover.copied.remove(incarnation, seq, [copy.number for copy in copies])
        self._remember(message, made)
        return made.operation(
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
        self, message: Replicate, copies: list[Copy], loads: Loads, out: Effects
    ) -> Operation:
        """Say so where some rows are not what they are at their head."""
        changes: list[Change] = []
        for copy, part, version, staged in zip(
            copies, message.parts, message.versions, loads, strict=True
        ):
            shard = cast(MovableShard, self._shards[copy.number])
            keys = staged.keys if part.keys >= 0 else None
            rows = KeyRange(part.start, part.stop)
            if copy.version == version and not shard.learning:
                same = shard.digest(rows, keys) == message.digest
                fields = {"table": shard.spec.name, "rows": rows, "version": version}
                out.append(Note("compared" if same else "differs", fields))
            if copy.chain[-1] != self._replication.rank:  # there are others after this one
                views = tuple(memoryview(bytes(view)) for view in staged.views)
                changes.append(Check(copy, part, version, None, views))
            shard.release(staged)
        path = *message.path, self._replication.rank
        return Operation("check", path, 0, changes, (), nothing, digest=message.digest)

    def _accept(self, message: Replicate, copy: Copy, staged: Staged, lr: float | None) -> None:
        """Keep what the head has for a round, should this server become the head."""
        parts, clock, weight = [(copy.number, staged)], message.round, message.weight
        for incarnation, seq, _ in message.origins:  # it is one
            found = self._gate.window_of(incarnation)
            if found is not None:
                entry = Contribution(*found, seq, clock, weight, lr, parts, message.pushed)
                self._handover.copied.add(entry)

    def _remember(self, message: Replicate, made: Made) -> None:
        """The pushes in it are here, should their workers send them again."""
        if message.what == "accept":
            return
        takings = made.takings
        if message.what == "round":  # in which all of a push to an arc is
            latest = {taking.copy.number: taking for taking in takings}
            takings = [Taking(t.copy.whole, t.copy, t.version) for t in latest.values()]
        windows = {window.incarnation: window for window in self._gate.windows.values()}
        for incarnation, seq, below in message.origins:
            window = windows.get(incarnation)
            if window is None:
                continue
            if below > window.settled_below:
                window.settle(below)
                self._parking.settle(window)
            if seq >= window.settled_below:
                window.taken.setdefault(seq, []).extend(takings)
        if message.what == "round" and message.round >= 0:
            self._rounds.weigh(message.group, message.round, message.weight)
