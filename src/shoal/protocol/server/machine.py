"""The server's machine: who is in, what comes in, and which of it is carried out.

Architecture invariant: absent here are tensors (a `Shard` does the arithmetic), the ways of chains
(`Replication` knows them), and any clock but `now`.
"""

from __future__ import annotations

from shoal.errors import InvariantBroken, ShoalError
from shoal.protocol.checkpoint_clocks import Markers
from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import (
    Arrival,
    Asked,
    Discard,
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
    Drain,
    Freeze,
    Frozen,
    Learned,
    Leave,
    Message,
    NewView,
    Probe,
    Replicate,
    Replicated,
    Request,
    Standing,
    State,
    Why,
)
from shoal.protocol.messages.describing import describe
from shoal.protocol.requests import EnterBarrier, GoAway
from shoal.protocol.server.admission import Gate
from shoal.protocol.server.checkpointing import Saving
from shoal.protocol.server.executor import Execution
from shoal.protocol.server.replication.apply import Replay
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.drain import Draining
from shoal.protocol.server.replication.link import ReplicationOptions
from shoal.protocol.server.replication.replicas import Holding
from shoal.protocol.server.replication.scrub import Comparing
from shoal.protocol.server.replication.takeover import Handover
from shoal.protocol.server.replication.transfer import Transfers
from shoal.protocol.server.replies import Answers
from shoal.protocol.server.request_handler import Reception
from shoal.protocol.server.shards import OpenShard, Shard
from shoal.protocol.server.staging import Intake
from shoal.protocol.server.wait_report import Waits
from shoal.protocol.session import Session
from shoal.protocol.views import Member, NodeId, View
from shoal.tables.spec import TableSpec

BEHIND_S = 0.01  # before sending again to a server whose connection broke


class ServerMachine:
    """Takes what the gate lets in, and has it carried out on its shards."""

    def __init__(
        self,
        session: Session,
        open_shard: OpenShard,
        replication: ReplicationOptions | None = None,
        markers: Markers | None = None,
    ) -> None:
        self.session = session
        self._holding = Holding(open_shard)
        self.shards = self._holding.shards
        self.clocks = Clocks()
        self.gate = Gate()
        self.replication = Replication(self._holding.copies, replication)
        self.saving = Saving(markers or Markers(), self.shards, self.clocks, self.replication)
        self.intake = Intake(self.gate, self.shards, self.saving)
        self._workers: dict[int, Member] = {}  # the view's, by incarnation
        self.answers = Answers(session, self.clocks, self._workers, self.intake.loan)
        self.execution = Execution(
            self.gate,
            self.intake,
            self.shards,
            self.clocks,
            self.answers,
            self.replication,
            self.saving,
        )
        rounds, self.parking = self.execution.rounds, self.execution.parking
        self.handover = Handover(self.gate, self.shards, self.clocks, self.replication, rounds)
        self.draining = Draining(self.gate, self.replication, self.handover)
        self.replay = Replay(
            self.gate,
            self.intake,
            self.shards,
            self.replication,
            self.saving,
            rounds,
            self.parking,
            self.handover,
        )
        self.transfers = Transfers(self.gate, self.shards, rounds, self.replication)
        self._comparing = Comparing(self.shards, self.replication)
        self._learned: tuple[tuple[int, int, int], ...] = ()  # as the scheduler was told
        self.waits = Waits(session, self._workers, self.clocks, self.gate, self.parking)
        self._story = Story()
        self._reception = Reception(
            session, self.gate, self.intake, self.execution, self.answers, self._story
        )

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        if isinstance(message, Replicate | State):
            if self.frozen:
                return Discard("frozen")
            return self.replication.arriving(sender, message, nbytes, self.replay.stage(message))
        return self.intake.arriving(sender, message, nbytes)

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        self.replication.now = now
        if isinstance(event, Received):
            self._received(event, now, out)
        elif isinstance(event, Ticked):
            self.session.tick(now, out)
            if not self.frozen and now >= self.replication.wakes_at():
                self.replication.tick(out)
            self.draining.tick(now)
        elif isinstance(event, Asked):
            self._asked(event.request_id, event.request, now, out)
        else:  # views say who is gone; a broken connection may come back
            self.session.peer_lost(event.node, now)
            self.replication.peer_lost(event.node, now + BEHIND_S)
        if not self.frozen:
            self.transfers.go_on(now, out)
            self._comparing.go_on(now, out)
            self.draining.say(out)
        self.waits.look(now, out)
        self.session.progress += 1
        return out

    def _asked(self, request_id: int, request: object, now: float, out: Effects) -> None:
        """What the shell of this server wants: to go, or to wait at a barrier."""
        match request:
            case EnterBarrier(name, groups):
                self.session.enter_barrier(request_id, name, groups, now, out)
            case GoAway():
                question = Leave(self.session.incarnation)
                self.session.ask("leave", request_id, question, now, out)

    def _received(self, event: Received, now: float, out: Effects) -> None:
        sender, message = event.sender, event.message
        if event.payload is not None and not event.payload.whole:
            if self.intake.land(event.payload):
                out.append(Note("landed", {"request": message}))
            return
        self._story.add(now, sender, message)
        if isinstance(message, Request):
            self._reception.request(sender, message, event.payload, out)
        elif isinstance(message, Probe):
            self._reception.probe(sender, message, out)
        elif isinstance(message, Why):
            out.append(Send(sender, self.waits.because(now)))
        elif isinstance(message, Replicate | Replicated | State):
            self._replicated(sender, message, event.payload, out)
        elif sender != SCHEDULER:
            self.answers.count(out, "unexpected", sender, type(message).__name__)
        elif isinstance(message, Drain):
            self.draining.begin(message, now, out)
        elif isinstance(message, Freeze):
            self._freeze(message, out)
        elif isinstance(message, NewView) and message.view.id < self.gate.promised:
            self.answers.count(out, "older view", sender, "NewView")  # its clocks are promised
        else:
            view = self.session.handle(message, now, out)
            if view is not None:
                self._adopt(view, out)

    def deadline(self) -> float | None:
        at = self.session.deadline()
        if self.frozen:
            return at
        moving = min(self.transfers.wakes_at(), self.draining.until)
        return min(at, self.replication.wakes_at(), moving, self._comparing.wakes_at())

    def address_of(self, node: NodeId) -> str | None:
        """Of two servers the one of lower rank connects to the other."""
        member = self.session.view.member(node) if self.session.view else None
        above = member is not None and member.role == "server" and member.rank > self.session.rank
        return member.address if member is not None and above else None

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

    def copies(self) -> list[tuple[int, Shard]]:
        """All that this server has in full, each with its place from the tail."""
        rank = self.session.rank
        chains = [(n, copy.arc.full[::-1]) for n, copy in self.replication.copies.items()]
        return [(chain.index(rank), self.shards[n]) for n, chain in chains if rank in chain]

    def sizes(self) -> list[tuple[TableSpec, dict[str, int]]]:
        """What it is the tail of: its rows, and how many have made room for others."""
        tails = [shard for place, shard in self.copies() if not place]
        return [(each.spec, {"rows": len(each), "evicted": each.evicted}) for each in tails]

    def waiting(self) -> list[tuple[str, str]]:
        """(request, reason) of everything parked."""
        return [(describe(request), reason) for request, reason, _ in self.parking.waiting()]

    # ------------------------------------------------------------------ views

    def _freeze(self, message: Freeze, out: Effects) -> None:
        if message.view <= self.session.view_id:
            return
        self.gate.promise(message.view)
        if message.view == self.gate.promised:
            groups = tuple(map(self._standing, self.clocks.groups()))
            drained = self.draining.holds(message.view)
            promise = Frozen(message.view, tuple(self.clocks.items()), groups, drained)
            out.append(Send(SCHEDULER, promise))

    def _standing(self, group: str) -> Standing:
        copies = self.replication.of(group)
        replayed = max((copy.reached for copy in copies), default=0)
        closed = max((copy.closed for copy in copies), default=0)
        rounds = self.execution.rounds
        waits = rounds.waits(group) or self.handover.copied.waits(group)
        return Standing(group, rounds.first_open(group), replayed, closed, waits)

    def _adopt(self, view: View, out: Effects) -> None:
        rank = self.session.rank
        self.gate.adopt(view)
        self.draining.end()
        if not self.gate.replicated and self._holding.shares(view, rank):
            self.handover.begin_to_replicate()
        try:
            moved = self._holding.adopt(view, rank)
        except ShoalError as error:  # the client checks first; this is for one that did not
            self._reception.unopened = error.message
            self.session.abort(error.message, out)
            return
        if moved.unopened:
            self._reception.unopened = "; ".join(moved.unopened.values())
        for group, reason in moved.unopened.items():
            self.session.abort(reason, out, group)
        if moved.cut:
            self.intake.loan.recall()
            self.gate.recut(moved.cut)
            self.handover.recut(moved.cut)
        shut = self._holding.unopened
        self.gate.place(view.tables, self.replication.copies, rank, moved.chains, shut)
        self.replication.adopt(view, rank, out)
        self.transfers.adopt()
        self._comparing.adopt(self.replication.now)
        self.replication.greet(out)
        if moved.chains:
            self.parking.clear()
        self._admit(view)
        self.handover.take_over()
        for group, clock in moved.begin.items():
            self.clocks.of(group).reset(clock)  # they say where they are once I have what I lack
        self.saving.adopt(view)
        for group in self.clocks.groups():
            self.execution.settle(group, out)
        self.execution.look(out)
        self._say_learned(out)

    def _admit(self, view: View) -> None:
        """The view's workers, and nobody else."""
        self._workers.clear()
        self._workers.update((m.incarnation, m) for m in view.workers)
        last_clocks = {m.incarnation: m.last_clock for m in view.departed}
        for worker, _ in list(self.clocks.items()):
            if worker not in self._workers:
                self.clocks.leave(worker)
                self.execution.drop_worker(worker, last_clocks.get(worker, 0))
        self.clocks.keep(view.groups())
        self.execution.rounds.keep(view.groups())
        for shard in self.shards.values():
            shard.keep(self._workers)
        for worker, member in self._workers.items():
            if worker not in self.clocks:
                self.clocks.enter(worker, member.first_clock, member.group)

    def _say_learned(self, out: Effects) -> None:
        learned = self.transfers.learned()
        if learned != self._learned:
            self._learned = learned
            self.session.answered("learned", out)
            if learned:
                question = Learned(self.session.incarnation, learned)
                self.session.ask("learned", 0, question, self.replication.now, out)

    # ------------------------------------------------------------------ other servers

    def _replicated(
        self,
        sender: NodeId,
        message: Replicate | Replicated | State,
        payload: Sink | None,
        out: Effects,
    ) -> None:
        """Another server has done something, or has done what it was told."""
        if self.frozen or message.view != self.session.view_id:
            self.answers.count(out, "between servers", sender, type(message).__name__)
            if message.view > self.session.view_id:
                self.session.ask_for_view(out)
            return
        if isinstance(message, Replicated):
            if not self.replication.acknowledged(sender, message, out):
                return
        else:
            stage = self.replay.stage(message)
            due = self.replication.received(sender, message, payload, stage, out)
            for each, copies, loads in due:
                if isinstance(each, State):
                    self.transfers.install(each, copies[0], loads, out)
                    continue
                operation = self.replay.do(each, copies, loads, out)
                out.append(Note("replayed", {"message": each, "from": sender}))
                self.replication.handled(operation, out)
                self.saving.reached(out)
            self.replication.answer(out)
            self._say_learned(out)
        self.execution.look(out)

    def _broken(self, message: str) -> InvariantBroken:
        return self._story.broken(message)
