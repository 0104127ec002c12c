"""Execution: what a server's requests do to its tables and clocks, and which of them wait.

A request pushes, advances and pulls, in this order. A push reaches the rows at once or with its
round; an advance may close rounds; a pull is answered, or parked until the slowest worker has
reached what its tables' rules ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from shoal.errors import AccessFailed
from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import Effects, Note
from shoal.protocol.messages import Code
from shoal.protocol.server.admission import Gate
from shoal.protocol.server.checkpointing import Saving
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.link import What
from shoal.protocol.server.replication.operations import Made
from shoal.protocol.server.replies import Answers
from shoal.protocol.server.round_closing import Closing
from shoal.protocol.server.rounds import Contribution, Rounds
from shoal.protocol.server.shards import Shard, Staged
from shoal.protocol.server.staging import Intake, Taken
from shoal.protocol.server.wait_queue import Parking, read_clock
from shoal.protocol.views import FOREVER


class Execution:
    """Carries out what the gate has let in."""

    def __init__(
        self,
        gate: Gate,
        intake: Intake,
        shards: dict[int, Shard],
        clocks: Clocks,
        answers: Answers,
        replication: Replication,
        saving: Saving,
    ) -> None:
        self.rounds = Rounds()
        self.saving = saving
        self.parking = Parking(gate, shards, clocks, answers, replication, saving)
        self._replication = replication
        self._gate = gate
        self._intake = intake
        self._shards = shards
        self._clocks = clocks
        self._answers = answers
        self._closing = Closing(
            gate, intake, shards, answers, replication, saving, self.rounds, self.parking
        )

    def carry_out(self, taken: Taken, out: Effects) -> None:
        """Push, advance, pull: what of these it asks, or a refusal."""
        window, below = taken.window, taken.request.settled_below
        if below > window.settled_below:
            window.settle(below)
            self.parking.settle(window)
        for load in taken.loads:
            problem = load.problem()
            if problem:
                self._refuse(taken, problem, out)
                return
        try:
            self._do(taken, out)
        except AccessFailed as error:
            self._refuse(taken, error.message, out)

    def drop_worker(self, worker: int, last_clock: int) -> None:
        """It has left; it counts in the rounds below its last clock."""
        self.rounds.drop(worker, last_clock)
        self.parking.drop_worker(worker)

    def problems(self) -> Iterator[str]:
        """No closed round is kept, and nobody waits for what has come."""
        yield from self.parking.problems()
        for group in self._clocks.groups():
            minimum = self._clocks.of(group).minimum
            for clock in self.rounds.below(group, minimum):
                yield f"round {clock} is open at clock {minimum}"

    # ------------------------------------------------------------------ requests

    def _refuse(self, taken: Taken, reason: str, out: Effects) -> None:
        taken.window.codes[taken.request.seq] = "refused"
        self._answers.reply(out, taken.sender, taken.request, "refused", reason)

    def _do(self, taken: Taken, out: Effects) -> None:
        """Push, advance, pull: what of these it asks, in this order."""
        request, codes, accepted = taken.request, taken.window.codes, False
        if self._gate.replicated:  # it may come again, and others than the last time wait for it
            taken.window.older.discard(request.seq)
            self.parking.leave((request.incarnation, request.seq))
        if request.pushes:
            if request.clock < self._clocks[request.incarnation] and self._comes_late(taken):
                self._close_out(taken, out)
                return
            accepted = self._push(taken, out)
        if request.advance >= 0:
            self._advance(request.incarnation, request.advance, out)
        if request.pulls:
            self._call(taken, out)
            self._pull(taken, accepted, out)
        elif not accepted and taken.window.complete(request.seq):
            codes[request.seq] = "applied"
            self._answers.reply(out, taken.sender, request, "applied")
        elif not accepted:
            codes[request.seq] = "accepted"
            self.parking.add_push(taken)
        elif codes[request.seq] == "accepted":  # and its own advance did not close it
            self._answers.reply(out, taken.sender, request, "accepted")

    def _close_out(self, taken: Taken, out: Effects) -> None:
        """Refuse a push for a round that takes no more from this worker."""
        request = taken.request
        reached = self._clocks[request.incarnation]
        taken.window.codes[request.seq] = "round_closed"
        reason = f"this worker is at clock {reached}; round {request.clock} takes no more"
        self._answers.reply(out, taken.sender, request, "round_closed", reason)

    def _push(self, taken: Taken, out: Effects) -> bool:
        """Apply the push parts, or put them into their round: then True, *accepted*."""
        request, window = taken.request, taken.window
        kept: dict[int, list[tuple[int, Staged]]] = {}  # by the clock that is to be reached
        made = Made(self._replication, self._shards) if self._gate.replicated else None
        minimum = self._clocks.of(window.group).minimum
        self._intake.loan.recall()
        try:
            for at, ((number, _, _), staged) in enumerate(
                zip(taken.footprint.pushes, taken.loads, strict=False)
            ):
                shard = self._shards[number]
                if made is not None and window.covers(request.seq, request.pushes[at]):
                    shard.release(staged)
                elif (due := self.parking.due(number, request)) > minimum:
                    kept.setdefault(due, []).append((number, staged))
                    if made is not None:
                        made.in_round(number, request.pushes[at])
                else:
                    if not request.assign:
                        self.saving.past(number, request.clock)
                    if made is not None:
                        made.about_to(number, staged)
                    if request.assign:
                        shard.write(staged)
                    elif not taken.streamed:
                        shard.apply(staged, request.lr)
                    if made is not None:
                        made.changed(number, request.pushes[at], request.lr, tuple(staged.views))
        finally:
            if made is not None:
                self._carry(taken, made, out, "write" if request.assign else "push")
        accepted = bool(kept) or any(each.version < 0 for each in window.taken.get(request.seq, ()))
        code: Code = "accepted" if accepted else "applied"
        if request.pulls:
            code = "parked"  # the answer with the rows acknowledges the push as well
        window.codes[request.seq] = code
        out.append(Note("pushed", {"request": request, "code": code}))
        for due, parts in kept.items():
            weight = request.weight if due > request.clock else 0.0
            entry = Contribution(
                taken.sender, window, request.seq, due - 1, weight, request.lr, parts, request.clock
            )
            self.rounds.add(entry)
        if accepted and made is not None:
            self.parking.add_push(taken)
        return accepted

    def _call(self, taken: Taken, out: Effects) -> None:
        """Have handlers do what they are called for, here and on other servers; their answers are
        remembered, and said when all have done it."""
        if not self._gate.replicated:
            return  # each is done when it is answered
        request, window = taken.request, taken.window
        if all(self._shards[n].spec.kind != "handled" for n, _, _ in taken.footprint.pulls):
            return
        made = Made(self._replication, self._shards)
        keyed = iter(taken.loads[len(request.pushes) :])
        for (number, _, keys), part in zip(taken.footprint.pulls, request.pulls, strict=True):
            staged = next(keyed) if keys >= 0 else None
            shard = self._shards[number]
            if staged is None or shard.spec.kind != "handled" or window.covers(request.seq, part):
                continue
            made.about_to(number, staged)
            with suppress(AccessFailed):  # which is its answer
                shard.read_keys(staged)
            made.changed(number, part, None, tuple(staged.views))
        self._carry(taken, made, out, "call")

    def _carry(self, taken: Taken, made: Made, out: Effects, what: What) -> None:
        """What a push or a call has done here is to be done on other servers as well."""
        request, window = taken.request, taken.window
        if made.takings:
            window.taken.setdefault(request.seq, []).extend(made.takings)
        if made.changes:
            origin = request.incarnation, request.seq, window.settled_below
            clock = self._clocks.of(window.group).minimum
            before = self.saving.latest(clock) - 1
            operation = made.operation(
                what, window.group, clock, (origin,), before, pushed=request.clock
            )
            self._replication.carry(operation, out)

    def _comes_late(self, taken: Taken) -> bool:
        """Whether it has a part for a round that is not in it already."""
        request, window = taken.request, taken.window
        return not request.assign and any(
            self._shards[number].spec.consistency.settles == "close"
            and window.covers(request.seq, part) is None
            for (number, _, _), part in zip(taken.footprint.pushes, request.pushes, strict=True)
        )

    def _advance(self, worker: int, to: int, out: Effects) -> None:
        group = self._clocks.group(worker)
        clocks = self._clocks.of(group)
        before = clocks.minimum
        if clocks.advance(worker, to) and clocks.minimum != before:
            self.settle(group, out)
            self.look(out)

    def _pull(self, taken: Taken, accepted: bool, out: Effects) -> None:
        """Answer with rows, now or when the slowest worker has reached what the rules ask."""
        request, pull = taken.request, self.parking.look(taken, accepted)
        if self.parking.ready(pull):
            self._serve(taken, out)
            return
        taken.window.codes[request.seq] = "parked"
        self.parking.add_pull(pull)
        reason = self.parking.reason(pull)
        out.append(Note("parked", {"worker": request.incarnation, "reason": reason}))

    def _serve(self, taken: Taken, out: Effects) -> None:
        request, buffers = taken.request, self._intake.read(taken)
        if self._gate.replicated:
            out.append(Note("served", {"copies": [n for n, _, _ in taken.footprint.pulls]}))
        taken.window.codes[request.seq] = "applied"
        weight = self.rounds.weight(taken.window.group, read_clock(request) - 1)
        self._answers.reply(out, taken.sender, request, "applied", "", buffers, weight)

    # ------------------------------------------------------------------ rounds

    def settle(self, group: str, out: Effects) -> None:
        """Close every round below a group's slowest clock. `look` is to be called after it."""
        minimum = self._clocks.of(group).minimum
        if minimum < FOREVER:
            self.rounds.reach(group, minimum)
        for clock in self.rounds.below(group, minimum):
            self._closing.close(group, clock, out)
        if not group:
            self.saving.reached(out)
        if self._gate.replicated:
            self._replication.tell(group, minimum, out)

    def look(self, out: Effects) -> None:
        """Answer what waits no longer."""
        for key, pull in list(self.parking.pulls.items()):
            if self.parking.ready(pull):
                self.parking.leave(key)
                try:
                    self._serve(pull.taken, out)
                except AccessFailed as error:
                    self._refuse(pull.taken, error.message, out)
        for key, push in list(self.parking.pushes.items()):
            taken = push.taken
            if key not in self.parking.pulls and taken.window.complete(key[1]):
                self.parking.leave(key)
                taken.window.codes[key[1]] = "applied"
                self._answers.settled(out, taken.sender, *key, "applied", "")
