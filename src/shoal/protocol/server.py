"""The server's machine: who is in, what comes in, and which of it is carried out.

Architecture invariant: absent here are tensors (a `Shard` does the arithmetic), replication (one
replica a fragment, so *acknowledged* means applied here), and any clock but `now`.
"""

from __future__ import annotations

import msgspec

from shoal.errors import InvariantBroken, ShoalError
from shoal.protocol.answers import Answers
from shoal.protocol.consistency import VectorClock
from shoal.protocol.describing import describe
from shoal.protocol.execution import Execution
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
    SCHEDULER,
    Freeze,
    Frozen,
    Member,
    Message,
    NodeId,
    Probe,
    Request,
    View,
)
from shoal.protocol.session import Session
from shoal.protocol.shards import OpenShard, Shard
from shoal.protocol.windows import WINDOW
from shoal.tables.spec import TableSpec


class ServerMachine:
    """Takes what the gate lets in, and has it carried out on its shards."""

    def __init__(self, session: Session, open_shard: OpenShard) -> None:
        self.session = session
        self.shards: list[Shard] = []
        self.clocks = VectorClock()
        self._open_shard = open_shard
        self._unopened = ""  # why a table of the view is not here; the run is being aborted
        self.gate = Gate()
        self.intake = Intake(self.gate, self.shards)
        self._workers: dict[int, Member] = {}  # the view's, by incarnation
        self.answers = Answers(session, self.clocks, self._workers, self.intake.loan)
        self.execution = Execution(self.gate, self.intake, self.shards, self.clocks, self.answers)
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
        """What `Execution.problems` finds is a bug."""
        if self.frozen:
            return
        for problem in self.execution.problems():
            raise self._broken(f"{self.session.name}: {problem}")

    @property
    def frozen(self) -> bool:
        """Between the promise of a view and the view itself, nothing is applied or answered."""
        return self.gate.frozen

    def sizes(self) -> list[tuple[TableSpec, dict[str, int]]]:
        """What each shard holds: its rows, and how many have made room for others."""
        return [(each.spec, {"rows": len(each), "evicted": each.evicted}) for each in self.shards]

    def waiting(self) -> list[tuple[str, str]]:
        """(request, reason) of everything parked."""
        return self.execution.waiting()

    # ------------------------------------------------------------------ views

    def _freeze(self, message: Freeze, out: Effects) -> None:
        if message.view <= self.session.view_id:
            return
        self.gate.promise(message.view)
        if message.view == self.gate.promised:
            clocks = tuple(self.clocks.items())
            first_open = self.execution.rounds.first_open
            out.append(Send(SCHEDULER, Frozen(message.view, clocks, first_open)))

    def _adopt(self, view: View, out: Effects) -> None:
        self.gate.adopt(view)
        self._open_tables(view, out)
        self._workers.clear()
        self._workers.update((m.incarnation, m) for m in view.workers)
        last_clocks = {m.incarnation: m.last_clock for m in view.departed}
        for worker, _ in list(self.clocks.items()):
            if worker not in self._workers:
                self.clocks.leave(worker)
                self.execution.drop_worker(worker, last_clocks.get(worker, 0))
        for shard in self.shards:
            shard.keep(self._workers)
        for worker, member in self._workers.items():
            if worker not in self.clocks:
                self.clocks.enter(worker, member.first_clock)
        self.execution.settle(out)

    def _open_tables(self, view: View, out: Effects) -> None:
        rank = self.session.rank
        for number in range(len(self.gate.held), len(view.tables)):
            spec = view.tables[number]
            held = [arc.rows for arc in view.arcs[number] if rank in arc.chain]
            try:
                shards = [self._open_shard(spec, rows) for rows in held]
            except ShoalError as error:  # the client checks first; this is for one that did not
                self._unopened = error.message
                self.session.abort(error.message, out)
                return
            self.shards.extend(shards)
            self.gate.open(spec, held)

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
        self.execution.carry_out(taken, out)

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
        waits = self.execution.waits_for(request, code)
        self.answers.state(out, sender, request, code, waits)

    def _broken(self, message: str) -> InvariantBroken:
        return self._story.broken(message)
