"""What servers do for other servers: changes on their way there, and those that come from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from shoal.errors import AccessFailed, InvariantBroken
from shoal.keys import KeyRange
from shoal.protocol.links import Change, Check, Operation, Origin, What, nothing
from shoal.protocol.machine import Buffers, Effects, Note
from shoal.protocol.messages import KEY_BYTES, Part, Replicate, State
from shoal.protocol.replication import Replication, Stage
from shoal.protocol.rounds import Contribution
from shoal.protocol.shards import Loads, MovableShard, Shard, Staged, Update
from shoal.protocol.windows import NOT_BEGUN, Copy, Taking

if TYPE_CHECKING:
    from shoal.protocol.execution import Execution
    from shoal.protocol.gate import Gate
    from shoal.protocol.handover import Handover
    from shoal.protocol.intake import Intake


class Made:
    """What is being done to shards at once, for other servers to do as well."""

    def __init__(self, replication: Replication, shards: Mapping[int, Shard]) -> None:
        self.changes: list[Change] = []
        self.takings: list[Taking] = []
        self._replication = replication
        self._shards = shards
        self._retained: list[tuple[int, Staged]] = []

    def about_to(self, number: int, *staged: Staged) -> None:
        """A shard is to be changed by these, which other servers are to have as well."""
        if not self._replication.alone(number):
            for each in staged:
                each.retained = True
                self._retained.append((number, each))

    def in_round(self, number: int, part: Part) -> None:
        """A part of a push waits for its round."""
        self.takings.append(Taking(part, self._replication.copies[number], -1))

    def changed(self, number: int, part: Part, lr: float | None, buffers: Buffers) -> None:
        """A shard has been."""
        change = self._replication.change(number, part, lr, buffers)
        self.changes.append(change)
        self.takings.append(Taking(part, change.copy, change.version))

    def merged(
        self, number: int, updates: Sequence[Update], entries: Sequence[Contribution]
    ) -> None:
        """... by what a round came to."""
        copy = self._replication.copies[number]
        for update in updates:
            views = update.views
            keys = -1 if len(views) == 1 else views[0].nbytes // KEY_BYTES
            part = Part(copy.table, update.rows.start, update.rows.stop, keys)
            self.changed(number, part, update.lr, views)
        for entry in entries:
            _settled(entry, copy)

    def applied(self, entry: Contribution, number: int, staged: Staged) -> None:
        """... by a part of a push that had to wait."""
        copy = self._replication.copies[number]
        views = tuple(staged.views)
        change = self._replication.change(number, copy.part(staged), entry.lr, views)
        self.changes.append(change)

    def all_applied(self, entry: Contribution) -> None:
        """All parts of it have been."""
        for number, _ in entry.parts:
            _settled(entry, self._replication.copies[number])

    def operation(
        self,
        what: What,
        group: str,
        clock: int,
        origins: tuple[Origin, ...],
        round: int = -1,
        weight: float = 0.0,
        pushed: int = -1,
    ) -> Operation:
        """All of it, at the head, for the rest of the chains: the fields of an `Operation`."""
        path = (self._replication.rank,)
        return Operation(
            what,
            path,
            clock,
            self.changes,
            origins,
            self.release,
            round,
            weight,
            pushed=pushed,
            group=group,
        )

    def release(self) -> None:
        """They have it."""
        for number, staged in self._retained:
            staged.retained = False
            self._shards[number].release(staged)


def _settled(entry: Contribution, copy: Copy) -> None:
    """What waited of a push is in an arc's rows."""
    for taking in entry.window.taken.get(entry.seq, ()):
        if taking.copy is copy and taking.version < 0:
            taking.version = copy.version


class Replay:
    """Does here what the heads of some arcs have done."""

    def __init__(
        self,
        gate: Gate,
        intake: Intake,
        shards: Mapping[int, Shard],
        execution: Execution,
        replication: Replication,
        handover: Handover,
    ) -> None:
        self._gate = gate
        self._intake = intake
        self._shards = shards
        self._execution = execution
        self._handover = handover
        self._replication = replication

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
                self._execution.saving.before(copy.number, message.round, out)
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
                    self._execution.saving.before(copy.number, message.round + 1, out)
                    self._execution.saving.past(copy.number, message.pushed)
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
        return Operation(
            message.what,
            (*message.path, self._replication.rank),
            message.clock,
            made.changes,
            message.origins,
            made.release,
            message.round,
            message.weight,
            pushed=message.pushed,
            group=message.group,
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
                self._execution.forget_below(window)
            if seq >= window.settled_below:
                window.taken.setdefault(seq, []).extend(takings)
        if message.what == "round" and message.round >= 0:
            self._execution.rounds.weigh(message.group, message.round, message.weight)
