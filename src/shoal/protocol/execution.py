"""Execution: what a server's requests do to its tables and clocks, and which of them wait.

A request pushes, advances and pulls, in this order. A push reaches the rows at once or with its
round; an advance may close rounds; a pull is answered, or parked until the slowest worker has
reached what its tables' rules ask.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.errors import AccessFailed
from shoal.protocol.answers import Answers
from shoal.protocol.consistency import NOW, VectorClock, needed, settles
from shoal.protocol.describing import describe
from shoal.protocol.gate import Gate
from shoal.protocol.intake import Intake, Taken
from shoal.protocol.machine import Effects, Note
from shoal.protocol.messages import FOREVER, Code, Probe, Request
from shoal.protocol.rounds import Contribution, Rounds
from shoal.protocol.shards import Shard, Staged
from shoal.protocol.windows import Window


class Parked(msgspec.Struct, frozen=True, eq=False):
    """A pull that waits until every worker has reached `clock`."""

    taken: Taken
    clock: int


class Execution:
    """Carries out what the gate has let in.

    parked: pulls that wait, by request id
    """

    def __init__(
        self,
        gate: Gate,
        intake: Intake,
        shards: list[Shard],
        clocks: VectorClock,
        answers: Answers,
    ) -> None:
        self.rounds = Rounds()
        self.parked: dict[tuple[int, int], Parked] = {}
        self._gate = gate
        self._intake = intake
        self._shards = shards
        self._clocks = clocks
        self._answers = answers

    def carry_out(self, taken: Taken, out: Effects) -> None:
        """Push, advance, pull: what of these it asks, or a refusal."""
        window, below = taken.window, taken.request.settled_below
        if below > window.settled_below:
            window.settle(below)
            if self.parked:
                self._forget_below(window)
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
        for key in [key for key in self.parked if key[0] == worker]:
            del self.parked[key]

    def waiting(self) -> list[tuple[str, str]]:
        """(request, reason) of everything parked."""
        return [
            (describe(each.taken.request), self._answers.absent(each.clock))
            for each in self.parked.values()
        ]

    def waits_for(self, request: Request | Probe, code: Code) -> int:
        """The clock that a request of that code waits for; -1 where it waits for none."""
        parked = self.parked.get((request.incarnation, request.seq))
        if parked is not None:
            return parked.clock
        return self._clocks.minimum + 1 if code == "accepted" else -1

    def problems(self) -> Iterator[str]:
        """Every parked pull has a reason that is still true; no closed round is kept."""
        minimum = self._clocks.minimum
        for parked in self.parked.values():
            if minimum >= parked.clock:
                yield (
                    f"{describe(parked.taken.request)} is parked although every worker has reached "
                    f"clock {parked.clock}"
                )
        for clock in self.rounds.below(minimum):
            yield f"round {clock} is open at clock {minimum}"

    # ------------------------------------------------------------------ requests

    def _refuse(self, taken: Taken, reason: str, out: Effects) -> None:
        taken.window.codes[taken.request.seq] = "refused"
        self._answers.reply(out, taken.sender, taken.request, "refused", reason)

    def _do(self, taken: Taken, out: Effects) -> None:
        """Push, advance, pull: what of these it asks, in this order."""
        request, codes, accepted = taken.request, taken.window.codes, False
        if request.pushes:
            if request.clock < self._clocks[request.incarnation] and self._closing(taken):
                self._close_out(taken, out)
                return
            accepted = self._push(taken, out)
        if request.advance >= 0:
            self._advance(request.incarnation, request.advance, out)
        if request.pulls:
            self._pull(taken, accepted, out)
        elif not accepted:
            codes[request.seq] = "applied"
            self._answers.reply(out, taken.sender, request, "applied")
        elif codes[request.seq] == "accepted":  # and its own advance did not close it
            self._answers.reply(out, taken.sender, request, "accepted")

    def _forget_below(self, window: Window) -> None:
        """What its worker has given up is not answered any more."""
        worker, below = window.incarnation, window.settled_below
        for key in [key for key in self.parked if key[0] == worker and key[1] < below]:
            del self.parked[key]

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
        kept: list[tuple[int, Staged]] = []
        self._intake.loan.recall()
        for (number, _, _), staged in zip(taken.footprint.pushes, taken.loads, strict=False):
            shard = self._shards[number]
            if request.assign:
                shard.write(staged)
            elif settles(shard.spec.consistency, request.clock) is NOW:
                if not taken.streamed:
                    shard.apply(staged, request.lr)
            else:
                kept.append((number, staged))
        code: Code = "accepted" if kept else "applied"
        if request.pulls:
            code = "parked"  # the answer with the rows acknowledges the push as well
        window.codes[request.seq] = code
        out.append(Note("pushed", {"request": request, "code": code}))
        if kept:
            weight, lr = request.weight, request.lr
            entry = Contribution(taken.sender, window, request.seq, weight, lr, kept)
            self.rounds.add(request.clock, entry)
        return bool(kept)

    def _closing(self, taken: Taken) -> bool:
        return not taken.request.assign and any(
            self._shards[number].spec.consistency.settles == "close"
            for number, _, _ in taken.footprint.pushes
        )

    def _advance(self, worker: int, to: int, out: Effects) -> None:
        before = self._clocks.minimum
        if self._clocks.advance(worker, to) and self._clocks.minimum != before:
            self.settle(out)

    def _pull(self, taken: Taken, accepted: bool, out: Effects) -> None:
        """Answer with rows, now or when the slowest worker has reached what the rules ask.

        The answer acknowledges the request's own push too, so it also waits for that round.
        """
        request = taken.request
        clock = _read_clock(request)
        need = request.clock + 1 if accepted else 0
        for number, _, _ in taken.footprint.pulls:
            need = max(need, needed(self._shards[number].spec.consistency, clock))
        if need <= self._clocks.minimum:
            self._serve(taken, out)
            return
        taken.window.codes[request.seq] = "parked"
        self.parked[request.incarnation, request.seq] = Parked(taken, need)
        out.append(
            Note("parked", {"worker": request.incarnation, "reason": self._answers.absent(need)})
        )

    def _serve(self, taken: Taken, out: Effects) -> None:
        request, buffers = taken.request, self._intake.read(taken)
        taken.window.codes[request.seq] = "applied"
        weight = self.rounds.weight(_read_clock(request) - 1)
        self._answers.reply(out, taken.sender, request, "applied", "", buffers, weight)

    # ------------------------------------------------------------------ rounds

    def settle(self, out: Effects) -> None:
        """Close every round below the slowest clock, then look at the parked pulls again."""
        minimum = self._clocks.minimum
        if minimum < FOREVER:
            self.rounds.reach(minimum)
        for clock in self.rounds.below(minimum):
            self._close(clock, out)
        for key, parked in list(self.parked.items()):
            if parked.clock <= minimum:
                del self.parked[key]
                try:
                    self._serve(parked.taken, out)
                except AccessFailed as error:
                    self._refuse(parked.taken, error.message, out)

    def _close(self, clock: int, out: Effects) -> None:
        """Merge the round's pushes in rank order, apply them once, acknowledge them."""
        entries = self.rounds.close(clock)
        self._intake.loan.recall()
        failed: dict[int, str] = {}
        for shard in sorted({number for entry in entries for number, _ in entry.parts}):
            parts = [
                (entry.weight, entry.lr, staged)
                for entry in entries
                for number, staged in entry.parts
                if number == shard
            ]
            try:
                self._shards[shard].merge(parts)
            except AccessFailed as error:
                failed[shard] = error.message
        out.append(Note("closed", {"clock": clock, "pushes": len(entries)}))
        for entry in entries:
            self._acknowledge(entry, [failed[n] for n, _ in entry.parts if n in failed], out)

    def _acknowledge(self, entry: Contribution, problems: list[str], out: Effects) -> None:
        """A round has closed with this push in it, or without where its table's method failed."""
        window, code = entry.window, entry.window.codes.get(entry.seq)
        if self._gate.windows.get(entry.sender) is not window:
            return  # it has left
        if problems:
            self.parked.pop((window.incarnation, entry.seq), None)
        elif code != "accepted":
            return  # its pull in the same request answers for both
        code = window.codes[entry.seq] = "refused" if problems else "applied"
        self._answers.settled(
            out, entry.sender, window.incarnation, entry.seq, code, "; ".join(problems)
        )


def _read_clock(request: Request) -> int:
    return request.advance if request.advance >= 0 else request.clock
