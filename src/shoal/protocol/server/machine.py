"""The server's machine: dispatches messages, and adopts views.

Architecture invariant: this module has no tensors (a `ShardStore` does the arithmetic), no chain
order (`Replication` knows it), and no time but `now`.
"""

from __future__ import annotations

from shoal.errors import InvariantBroken, ShoalError
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import (
    Arrival,
    Asked,
    Discard,
    Effects,
    Event,
    EventTime,
    EventTrace,
    Note,
    Received,
    Send,
    Sink,
    Ticked,
)
from shoal.protocol.messages import (
    SCHEDULER,
    Drain,
    Freeze,
    Frozen,
    GroupProgress,
    Leave,
    Message,
    NewView,
    Probe,
    Replicate,
    ReplicateAck,
    Request,
    StateChunk,
    StatusRequest,
    Synced,
)
from shoal.protocol.messages.describing import describe
from shoal.protocol.requests import EnterBarrier, GoAway
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.server.executor import Executor
from shoal.protocol.server.replication.apply import OperationApplier
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.drain import Drainer
from shoal.protocol.server.replication.link import ReplicationOptions
from shoal.protocol.server.replication.replicas import Replicas
from shoal.protocol.server.replication.scrub import Scrubber
from shoal.protocol.server.replication.takeover import Takeover
from shoal.protocol.server.replication.transfer import StateTransfer
from shoal.protocol.server.replies import Replies
from shoal.protocol.server.request_handler import RequestHandler
from shoal.protocol.server.shard_store import OpenStore, ShardStore
from shoal.protocol.server.staging import AdmittedRequest, RequestStaging
from shoal.protocol.server.wait_report import WaitReport
from shoal.protocol.session import Session
from shoal.protocol.views import Member, NodeId, View
from shoal.tables.spec import TableSpec

RECONNECT_S = 0.01  # before sending again to a server whose connection broke


class ServerMachine:
    """A server: admits requests, carries them out on its shards, and replicates the changes."""

    def __init__(
        self,
        session: Session,
        open_shard: OpenStore,
        replication: ReplicationOptions | None = None,
        checkpoint_clocks: CheckpointClocks | None = None,
    ) -> None:
        self.session = session
        self._replicas = Replicas(open_shard)
        self.shards = self._replicas.shards
        self.clocks = Clocks()
        self.admission = Admission()
        self._time = EventTime()
        self.replication = Replication(self._replicas.replicas, replication, self._time)
        self.checkpointer = Checkpointer(
            checkpoint_clocks or CheckpointClocks(), self.shards, self.clocks, self.replication
        )
        self.staging = RequestStaging(self.admission, self.shards, self.checkpointer)
        self._workers: dict[int, Member] = {}  # the view's, by incarnation
        self.replies = Replies(session, self.clocks, self._workers, self.staging.guard)
        self.executor = Executor(
            self.admission,
            self.staging,
            self.shards,
            self.clocks,
            self.replies,
            self.replication,
            self.checkpointer,
        )
        rounds, self.wait_queue = self.executor.rounds, self.executor.wait_queue
        self.takeover = Takeover(self.admission, self.shards, self.clocks, self.replication, rounds)
        self.drainer = Drainer(self.admission, self.replication, self.takeover)
        self.applier = OperationApplier(
            self.admission,
            self.staging,
            self.shards,
            self.replication,
            self.checkpointer,
            rounds,
            self.wait_queue,
            self.takeover,
        )
        self.state_transfer = StateTransfer(self.admission, self.shards, rounds, self.replication)
        self._scrubber = Scrubber(self.shards, self.replication)
        self._synced: tuple[tuple[int, int, int], ...] = ()  # as last reported to the scheduler
        self.waits = WaitReport(
            session, self._workers, self.clocks, self.admission, self.wait_queue
        )
        self._trace = EventTrace()
        self._request_handler = RequestHandler(
            session, self.admission, self.staging, self.executor, self.replies, self._trace
        )

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        if isinstance(message, Replicate | StateChunk):
            if self.frozen:
                return Discard("frozen")
            return self.replication.arriving(sender, message, nbytes, self.applier.stage(message))
        return self.staging.arriving(sender, message, nbytes)

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        self._time.set(now)
        if isinstance(event, Received):
            self._received(event, now, out)
            if isinstance(event.message, Request | Replicate | ReplicateAck):
                self._after_request(now, out)
                return out
        elif isinstance(event, Ticked):
            self.session.tick(now, out)
            if not self.frozen and now >= self.replication.wakes_at():
                self.replication.tick(out)
            self.drainer.tick(now)
        elif isinstance(event, Asked):
            self._asked(event.request_id, event.request, now, out)
        else:  # a broken connection may come back; only a view removes a member
            self.session.peer_lost(event.node, now)
            self.replication.peer_lost(event.node, now + RECONNECT_S)
        if not self.frozen:
            self.state_transfer.go_on(now, out)
            self._scrubber.go_on(now, out)
            self.drainer.say(out)
        self.waits.look(now, out)
        return out

    def _after_request(self, now: float, out: Effects) -> None:
        """Do the part of the follow-up work that a request or an operation can make due."""
        if not self.admission.frozen:
            if self.state_transfer.sending:
                self.state_transfer.go_on(now, out)
            if self.admission.draining:
                self.drainer.say(out)
        if self.wait_queue.pulls or self.waits.active:
            self.waits.look(now, out)

    def _asked(self, request_id: int, request: object, now: float, out: Effects) -> None:
        """Handle a request of this server's own process: leave, or enter a barrier."""
        match request:
            case EnterBarrier(name, groups):
                self.session.enter_barrier(request_id, name, groups, now, out)
            case GoAway():
                question = Leave(self.session.incarnation)
                self.session.ask("leave", request_id, question, now, out)

    def _received(self, event: Received, now: float, out: Effects) -> None:
        sender, message = event.sender, event.message
        payload = event.payload
        if payload is not None and payload.by_view and not payload.whole:
            if self.staging.land(payload):
                out.append(Note("landed", {"request": message}))
            return
        self._trace.add((now, sender, message))
        if isinstance(message, Request):
            self._request(sender, message, event.payload, out)
        elif isinstance(message, Probe):
            self._request_handler.probe(sender, message, out)
        elif isinstance(message, StatusRequest):
            out.append(Send(sender, self.waits.because(now)))
        elif isinstance(message, Replicate | ReplicateAck | StateChunk):
            self._replicated(sender, message, event.payload, out)
        elif sender != SCHEDULER:
            self.replies.count(out, "unexpected", sender, type(message).__name__)
        elif isinstance(message, Drain):
            self.drainer.begin(message, now, out)
        elif isinstance(message, Freeze):
            self._freeze(message, out)
        elif isinstance(message, NewView) and message.view.id < self.admission.promised:
            self.replies.count(out, "older view", sender, "NewView")  # a newer one is promised
        else:
            view = self.session.handle(message, now, out)
            if view is not None:
                self._adopt(view, out)

    def _request(
        self, sender: NodeId, request: Request, payload: Sink | None, out: Effects
    ) -> None:
        """Carry out a request that has come in whole, if it is still admitted."""
        admitted: AdmittedRequest | None = None
        if payload is not None and not payload.revoked:
            admitted = payload.context
        fresh = admitted is not None and self.admission.still_fresh(
            request, admitted.log, admitted.view
        )
        if admitted is None or not fresh:
            admitted = self._request_handler.admit_again(sender, request, admitted, out)
        elif admitted.streamed and payload is not None:
            self._request_handler.end_stream(admitted, payload, out)
        if admitted is not None:
            self.executor.carry_out(admitted, out)

    def deadline(self) -> float | None:
        at = self.session.deadline()
        if self.frozen:
            return at
        moving = min(self.state_transfer.wakes_at(), self.drainer.until)
        return min(at, self.replication.wakes_at(), moving, self._scrubber.wakes_at())

    def address_of(self, node: NodeId) -> str | None:
        """Return where to connect: of two servers the one of lower rank connects to the other."""
        member = self.session.view.member(node) if self.session.view else None
        above = member is not None and member.role == "server" and member.rank > self.session.rank
        return member.address if member is not None and above else None

    def check(self) -> None:
        """Raise `InvariantBroken` if the executor has found a broken invariant."""
        if self.frozen:
            return
        for problem in self.executor.problems():
            raise self._broken(f"{self.session.name}: {problem}")

    @property
    def frozen(self) -> bool:
        """Whether a view is promised and has not come: nothing is applied or answered."""
        return self.admission.frozen

    def replicas(self) -> list[tuple[int, ShardStore]]:
        """Return (distance from the tail, shard) of each in-sync replica here."""
        rank = self.session.rank
        chains = [
            (n, replica.placement.in_sync[::-1]) for n, replica in self.replication.replicas.items()
        ]
        return [(chain.index(rank), self.shards[n]) for n, chain in chains if rank in chain]

    def sizes(self) -> list[tuple[TableSpec, dict[str, int]]]:
        """Return the number of rows, and of evicted rows, of each shard it is the tail of."""
        tails = [shard for place, shard in self.replicas() if not place]
        return [(each.spec, {"rows": len(each), "evicted": each.evicted}) for each in tails]

    def waiting(self) -> list[tuple[str, str]]:
        """Return (request, reason) of every pull in the wait queue."""
        return [(describe(request), reason) for request, reason, _ in self.wait_queue.waiting()]

    # ------------------------------------------------------------------ views

    def _freeze(self, message: Freeze, out: Effects) -> None:
        if message.view <= self.session.view_id:
            return
        self.admission.promise(message.view)
        if message.view == self.admission.promised:
            groups = tuple(map(self._progress, self.clocks.groups()))
            drained = self.drainer.holds(message.view)
            promise = Frozen(message.view, tuple(self.clocks.items()), groups, drained)
            out.append(Send(SCHEDULER, promise))

    def _progress(self, group: str) -> GroupProgress:
        replicas = self.replication.of(group)
        replayed = max((replica.reached for replica in replicas), default=0)
        closed = max((replica.closed for replica in replicas), default=0)
        rounds = self.executor.rounds
        waits = rounds.waits(group) or self.takeover.copied.waits(group)
        return GroupProgress(group, rounds.first_open(group), replayed, closed, waits)

    def _adopt(self, view: View, out: Effects) -> None:
        rank = self.session.rank
        self.admission.adopt(view)
        self.drainer.end()
        if not self.admission.replicated and self._replicas.shares(view, rank):
            self.takeover.begin_to_replicate()
        try:
            moved = self._replicas.adopt(view, rank)
        except ShoalError as error:  # a client that did not check the table
            self._request_handler.refuse_all(error.message)
            self.session.abort(error.message, out)
            return
        if moved.unopened:
            self._request_handler.refuse_all("; ".join(moved.unopened.values()))
        for group, reason in moved.unopened.items():
            self.session.abort(reason, out, group)
        if moved.cut:
            self.staging.guard.recall()
            self.admission.recut(moved.cut)
            self.takeover.recut(moved.cut)
        unopened = self._replicas.unopened
        self.admission.place(view.tables, self.replication.replicas, rank, moved.chains, unopened)
        self.replication.adopt(view, rank, out)
        self.state_transfer.adopt()
        self._scrubber.adopt(self._time.now)
        self.replication.greet(out)
        if moved.chains:
            self.wait_queue.clear()
        self._admit(view)
        self.takeover.take_over()
        for group, clock in moved.begin.items():
            self.clocks.of(group).reset(clock)  # workers advance it when they send again
        self.checkpointer.adopt(view)
        for group in self.clocks.groups():
            self.executor.close_rounds(group, out)
        self.executor.look(out)
        self._say_synced(out)

    def _admit(self, view: View) -> None:
        """Enter the view's workers, and remove all others."""
        self._workers.clear()
        self._workers.update((m.incarnation, m) for m in view.workers)
        last_clocks = {m.incarnation: m.last_clock for m in view.departed}
        for worker, _ in list(self.clocks.items()):
            if worker not in self._workers:
                self.clocks.leave(worker)
                self.executor.drop_worker(worker, last_clocks.get(worker, 0))
        self.clocks.keep(view.groups())
        self.executor.rounds.keep(view.groups())
        for shard in self.shards.values():
            shard.keep(self._workers)
        for worker, member in self._workers.items():
            if worker not in self.clocks:
                self.clocks.enter(worker, member.first_clock, member.group)

    def _say_synced(self, out: Effects) -> None:
        synced = self.state_transfer.synced()
        if synced != self._synced:
            self._synced = synced
            self.session.answered("synced", out)
            if synced:
                question = Synced(self.session.incarnation, synced)
                self.session.ask("synced", 0, question, self._time.now, out)

    # ------------------------------------------------------------------ other servers

    def _replicated(
        self,
        sender: NodeId,
        message: Replicate | ReplicateAck | StateChunk,
        payload: Sink | None,
        out: Effects,
    ) -> None:
        """Handle an operation, an acknowledgement or a chunk from another server."""
        if self.frozen or message.view != self.session.view_id:
            self.replies.count(out, "between servers", sender, type(message).__name__)
            if message.view > self.session.view_id:
                self.session.ask_for_view(out)
            return
        if isinstance(message, ReplicateAck):
            if not self.replication.acknowledged(sender, message, out):
                return
        else:
            stage = self.applier.stage(message)
            due = self.replication.received(sender, message, payload, stage, out)
            for each, replicas, loads in due:
                if isinstance(each, StateChunk):
                    self.state_transfer.install(each, replicas[0], loads, out)
                    continue
                operation = self.applier.do(each, replicas, loads, out)
                out.append(Note("replayed", {"message": each, "from": sender}))
                self.replication.handled(operation, out)
                if self.checkpointer.active:
                    self.checkpointer.reached(out)
            self.replication.answer(out)
            if any(isinstance(each, StateChunk) for each, _, _ in due):
                self._say_synced(out)
        self.executor.look(out)

    def _broken(self, message: str) -> InvariantBroken:
        return self._trace.broken(message)
