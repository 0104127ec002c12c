"""The server's machine: arrival, push, advance, pull, rounds, and what waits.

Architecture invariant: absent here are tensors (a `Shard` does the arithmetic), replication (one
replica a fragment, so *acknowledged* means applied here), and any clock but `now`.
"""

from __future__ import annotations

import msgspec

from shoal.errors import AccessFailed, InvariantBroken, ShoalError
from shoal.protocol.answers import Answers
from shoal.protocol.consistency import NOW, VectorClock, needed, settles
from shoal.protocol.describing import describe
from shoal.protocol.gate import TAKEN, Gate, Verdict
from shoal.protocol.intake import Intake, Taken
from shoal.protocol.machine import (
    Arrival,
    Asked,
    Effects,
    Event,
    Note,
    Received,
    Send,
    Sink,
    Story,
    Ticked,
)
from shoal.protocol.messages import (
    FOREVER,
    SCHEDULER,
    Code,
    Freeze,
    Frozen,
    Member,
    Message,
    NodeId,
    Probe,
    Reply,
    Request,
    View,
)
from shoal.protocol.rounds import Contribution, Rounds
from shoal.protocol.session import Session
from shoal.protocol.shards import OpenShard, Shard, Staged
from shoal.protocol.windows import WINDOW, Window
from shoal.tables.spec import TableSpec


class Parked(msgspec.Struct, frozen=True, eq=False):
    """A pull that waits until every worker has reached `clock`."""

    taken: Taken
    clock: int


class ServerMachine:
    """Holds shards, applies pushes, answers pulls when their consistency admits them."""

    def __init__(self, session: Session, open_shard: OpenShard) -> None:
        self.session = session
        self.shards: list[Shard] = []
        self.clocks = VectorClock()
        self._open_shard = open_shard
        self._unopened = ""  # why a table of the view is not here; the run is being aborted
        self.gate = Gate()
        self.intake = Intake(self.gate, self.shards)
        self._workers: dict[int, Member] = {}  # the view's, by incarnation
        self._rounds = Rounds()
        self.answers = Answers(session, self.clocks, self._workers, self.intake.loan)
        self._parked: dict[tuple[int, int], Parked] = {}  # by request id
        self._story = Story()

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        return self.intake.arriving(sender, message, nbytes)

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        if isinstance(event, Received):
            self._received(event, now, out)
        elif isinstance(event, Ticked):
            self.session.tick(now, out)
        elif isinstance(event, Asked):
            name, groups = event.request
            self.session.enter_barrier(event.request_id, name, groups, now, out)
        # a lost peer changes nothing: views say who is gone; a broken connection may come back
        self.session.progress += 1
        return out

    def _received(self, event: Received, now: float, out: Effects) -> None:
        sender, message = event.sender, event.message
        if event.payload is not None and not event.payload.whole:
            if self.intake.land(event.payload):
                out.append(Note("landed", {"request": message}))
            return
        self._story.add(now, sender, message)
        if isinstance(message, Request):
            self._request(sender, message, event.payload, out)
        elif isinstance(message, Probe):
            self._probe(sender, message, out)
        elif sender != SCHEDULER:
            self.answers.count(out, "unexpected", sender, type(message).__name__)
        elif isinstance(message, Freeze):
            self._freeze(message, out)
        else:
            view = self.session.handle(message, now, out)
            if view is not None:
                self._adopt(view, out)

    def deadline(self) -> float | None:
        return self.session.deadline()

    def address_of(self, node: NodeId) -> str | None:
        member = self.session.view.member(node) if self.session.view else None
        return member.address if member and member.role == "server" else None

    def check(self) -> None:
        """Every parked pull has a reason that is still true; no closed round is kept."""
        if self.frozen:
            return
        for parked in self._parked.values():
            if self.clocks.minimum >= parked.clock:
                raise self._broken(
                    f"{self.session.name}: {describe(parked.taken.request)} is parked although "
                    f"every worker has reached clock {parked.clock}"
                )
        for clock in self._rounds.below(self.clocks.minimum):
            raise self._broken(
                f"{self.session.name}: round {clock} is open at clock {self.clocks.minimum}"
            )

    @property
    def frozen(self) -> bool:
        """Between the promise of a view and the view itself, nothing is applied or answered."""
        return self.gate.frozen

    def sizes(self) -> list[tuple[TableSpec, dict[str, int]]]:
        """What each shard holds: its rows, and how many have made room for others."""
        return [(each.spec, {"rows": len(each), "evicted": each.evicted}) for each in self.shards]

    def waiting(self) -> list[tuple[str, str]]:
        """(request, reason) of everything parked."""
        return [
            (describe(p.taken.request), self.answers.absent(p.clock)) for p in self._parked.values()
        ]

    # ------------------------------------------------------------------ views

    def _freeze(self, message: Freeze, out: Effects) -> None:
        if message.view <= self.session.view_id:
            return
        self.gate.promise(message.view)
        if message.view == self.gate.promised:
            clocks = tuple(self.clocks.items())
            out.append(Send(SCHEDULER, Frozen(message.view, clocks, self._rounds.first_open)))

    def _adopt(self, view: View, out: Effects) -> None:
        self.gate.adopt(view)
        self._open_tables(view, out)
        self._workers.clear()
        self._workers.update((m.incarnation, m) for m in view.workers)
        last_clocks = {m.incarnation: m.last_clock for m in view.departed}
        for worker, _ in list(self.clocks.items()):
            if worker not in self._workers:
                self.clocks.leave(worker)
                self._drop_worker(worker, last_clocks.get(worker, 0))
        for shard in self.shards:
            shard.keep(self._workers)
        for worker, member in self._workers.items():
            if worker not in self.clocks:
                self.clocks.enter(worker, member.first_clock)
        self._settle(out)

    def _open_tables(self, view: View, out: Effects) -> None:
        mine = next(i for i, m in enumerate(view.servers) if m.id == self.session.me)
        for number in range(len(self.shards), len(view.tables)):
            held = view.rows_of(number, mine)
            try:
                self.shards.append(self._open_shard(view.tables[number], held))
            except ShoalError as error:  # the client checks first; this is for one that did not
                self._unopened = error.message
                self.session.abort(error.message, out)
                return
            self.gate.open(view.tables[number], held)

    def _drop_worker(self, worker: int, last_clock: int) -> None:
        self._rounds.drop(worker, last_clock)
        for key in [key for key in self._parked if key[0] == worker]:
            del self._parked[key]

    # ------------------------------------------------------------------ requests

    def _request(
        self, sender: NodeId, request: Request, payload: Sink | None, out: Effects
    ) -> None:
        intact = payload is not None and not payload.revoked
        taken: Taken | None = payload.context if intact and payload is not None else None
        if taken is None or not self.gate.still_fresh(request, taken.window, taken.view):
            verdict = self.gate.verdict(sender, request)
            footprint = self.gate.footprint(request) if verdict in TAKEN else None
            if footprint is None:
                self._decline(sender, request, verdict, out)
                return
            loads = taken.loads if taken is not None and not taken.streamed else None
            if loads is None and self.intake.announced(footprint):
                # Its payload was discarded on arrival, for a reason that has passed since.
                self.answers.reply(out, sender, request, "missing")
                return
            taken = self.intake.take(sender, request, footprint)
            if loads is not None:
                taken = msgspec.structs.replace(taken, loads=loads)
        elif taken.streamed and payload is not None:
            self.intake.land(payload)
            out.append(Note("landed", {"request": request}))
            if not self.intake.end_stream(taken):
                raise self._broken(f"fragments of {describe(request)} were not applied")
        window = taken.window
        if request.settled_below > window.settled_below:
            window.settle(request.settled_below)
            if self._parked:
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

    def _refuse(self, taken: Taken, reason: str, out: Effects) -> None:
        taken.window.codes[taken.request.seq] = "refused"
        self.answers.reply(out, taken.sender, taken.request, "refused", reason)

    def _do(self, taken: Taken, out: Effects) -> None:
        """Push, advance, pull: what of these it asks, in this order."""
        request, codes, accepted = taken.request, taken.window.codes, False
        if request.pushes:
            if request.clock < self.clocks[request.incarnation] and self._closing(request):
                self._close_out(taken, out)
                return
            accepted = self._push(taken, out)
        if request.advance >= 0:
            self._advance(request.incarnation, request.advance, out)
        if request.pulls:
            self._pull(taken, accepted, out)
        elif not accepted:
            codes[request.seq] = "applied"
            self.answers.reply(out, taken.sender, request, "applied")
        elif codes[request.seq] == "accepted":  # and its own advance did not close it
            self.answers.reply(out, taken.sender, request, "accepted")

    def _forget_below(self, window: Window) -> None:
        """What its worker has given up is not answered any more."""
        worker, below = window.incarnation, window.settled_below
        for key in [key for key in self._parked if key[0] == worker and key[1] < below]:
            del self._parked[key]

    def _decline(self, sender: NodeId, request: Request, verdict: Verdict, out: Effects) -> None:
        self.answers.count(out, verdict, sender, describe(request))
        if verdict == "seen":
            self._tell_state(sender, request, out)
        elif verdict == "stale":
            self.answers.reply(out, sender, request, "stale")
            if request.view > self.session.view_id:
                self.session.ask_for_view(out)
        elif verdict == "early":
            self.answers.reply(out, sender, request, "early")
        elif verdict in ("too many", "misfit"):
            reason = (
                f"more than {WINDOW} requests in flight"
                if verdict == "too many"
                else self._unopened
                or "it names rows or a table that this server does not hold, or has no weight"
            )
            self.answers.reply(out, sender, request, "refused", reason)

    def _close_out(self, taken: Taken, out: Effects) -> None:
        """Refuse a push for a round that takes no more from this worker."""
        request = taken.request
        reached = self.clocks[request.incarnation]
        taken.window.codes[request.seq] = "round_closed"
        reason = f"this worker is at clock {reached}; round {request.clock} takes no more"
        self.answers.reply(out, taken.sender, request, "round_closed", reason)

    def _push(self, taken: Taken, out: Effects) -> bool:
        """Apply the push parts, or put them into their round: then True, *accepted*."""
        request, window = taken.request, taken.window
        kept: list[tuple[int, Staged]] = []
        self.intake.loan.recall()
        for (table, _, _), staged in zip(taken.footprint.pushes, taken.loads, strict=False):
            shard = self.shards[table]
            if request.assign:
                shard.write(staged)
            elif settles(shard.spec.consistency, request.clock) is NOW:
                if not taken.streamed:
                    shard.apply(staged, request.lr)
            else:
                kept.append((table, staged))
        code: Code = "accepted" if kept else "applied"
        if request.pulls:
            code = "parked"  # the answer with the rows acknowledges the push as well
        window.codes[request.seq] = code
        out.append(Note("pushed", {"request": request, "code": code}))
        if kept:
            weight, lr = request.weight, request.lr
            entry = Contribution(taken.sender, window, request.seq, weight, lr, kept)
            self._rounds.add(request.clock, entry)
        return bool(kept)

    def _closing(self, request: Request) -> bool:
        return not request.assign and any(
            self.shards[part.table].spec.consistency.settles == "close" for part in request.pushes
        )

    def _advance(self, worker: int, to: int, out: Effects) -> None:
        before = self.clocks.minimum
        if self.clocks.advance(worker, to) and self.clocks.minimum != before:
            self._settle(out)

    def _pull(self, taken: Taken, accepted: bool, out: Effects) -> None:
        """Answer with rows, now or when the slowest worker has reached what the rules ask.

        The answer acknowledges the request's own push too, so it also waits for that round.
        """
        request = taken.request
        clock = _read_clock(request)
        need = request.clock + 1 if accepted else 0
        for table, _, _ in taken.footprint.pulls:
            need = max(need, needed(self.shards[table].spec.consistency, clock))
        if need <= self.clocks.minimum:
            self._serve(taken, out)
            return
        taken.window.codes[request.seq] = "parked"
        self._parked[request.incarnation, request.seq] = Parked(taken, need)
        out.append(
            Note("parked", {"worker": request.incarnation, "reason": self.answers.absent(need)})
        )

    def _serve(self, taken: Taken, out: Effects) -> None:
        request, buffers = taken.request, self.intake.read(taken)
        taken.window.codes[request.seq] = "applied"
        weight = self._rounds.weight(_read_clock(request) - 1)
        self.answers.reply(out, taken.sender, request, "applied", "", buffers, weight)

    # ------------------------------------------------------------------ rounds

    def _settle(self, out: Effects) -> None:
        """Close every round below the slowest clock, then look at the parked pulls again."""
        minimum = self.clocks.minimum
        if minimum < FOREVER:
            self._rounds.reach(minimum)
        for clock in self._rounds.below(minimum):
            self._close(clock, out)
        for key, parked in list(self._parked.items()):
            if parked.clock <= minimum:
                del self._parked[key]
                try:
                    self._serve(parked.taken, out)
                except AccessFailed as error:
                    self._refuse(parked.taken, error.message, out)

    def _close(self, clock: int, out: Effects) -> None:
        """Merge the round's pushes in rank order, apply them once, acknowledge them."""
        entries = self._rounds.close(clock)
        self.intake.loan.recall()
        failed: dict[int, str] = {}
        for table in sorted({table for entry in entries for table, _ in entry.parts}):
            parts = [
                (entry.weight, entry.lr, staged)
                for entry in entries
                for number, staged in entry.parts
                if number == table
            ]
            try:
                self.shards[table].merge(parts)
            except AccessFailed as error:
                failed[table] = error.message
        out.append(Note("closed", {"clock": clock, "pushes": len(entries)}))
        for entry in entries:
            self._acknowledge(entry, [failed[t] for t, _ in entry.parts if t in failed], out)

    def _acknowledge(self, entry: Contribution, problems: list[str], out: Effects) -> None:
        """A round has closed with this push in it, or without where its table's method failed."""
        window, code = entry.window, entry.window.codes.get(entry.seq)
        if self.gate.windows.get(entry.sender) is not window:
            return  # it has left
        if problems:
            self._parked.pop((window.incarnation, entry.seq), None)
        elif code != "accepted":
            return  # its pull in the same request answers for both
        code = window.codes[entry.seq] = "refused" if problems else "applied"
        view, reason = self.session.view_id, "; ".join(problems)
        reply = Reply(window.incarnation, entry.seq, view, code, reason)
        out.append(Send(entry.sender, reply))

    # ------------------------------------------------------------------ answers

    def _probe(self, sender: NodeId, probe: Probe, out: Effects) -> None:
        verdict = self.gate.verdict(sender, probe)
        if verdict == "fresh":
            self.answers.reply(out, sender, probe, "missing")
        elif verdict == "seen":
            self._tell_state(sender, probe, out)
        elif verdict == "stale":
            self.answers.reply(out, sender, probe, "stale")
        else:
            self.answers.count(out, verdict, sender, describe(probe))

    def _tell_state(self, sender: NodeId, request: Request | Probe, out: Effects) -> None:
        code = self.gate.windows[sender].codes[request.seq]
        parked = self._parked.get((request.incarnation, request.seq))
        waits = parked.clock if parked else self.clocks.minimum + 1 if code == "accepted" else -1
        self.answers.state(out, sender, request, code, waits)

    def _broken(self, message: str) -> InvariantBroken:
        return self._story.broken(message)


def _read_clock(request: Request) -> int:
    return request.advance if request.advance >= 0 else request.clock
