"""The server's machine: dispatches messages, and adopts views.

Architecture invariant: this module has no tensors (a `ShardStore` does the arithmetic), no chain
order (`Chains` knows it), and no time but `now`.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.errors import InvariantBroken, ProcessDied, ShoalError
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.consistency import Clocks
from shoal.protocol.limits import UNREAD_BYTES
from shoal.protocol.machine import (
    Arrival,
    Asked,
    Effects,
    Event,
    EventTime,
    EventTrace,
    HangUp,
    HasRoom,
    Note,
    Offloaded,
    Received,
    Send,
    Sink,
    Ticked,
)
from shoal.protocol.messages import (
    SCHEDULER,
    Computing,
    Drain,
    Freeze,
    Frozen,
    Leave,
    Message,
    NewView,
    OpenShards,
    Probe,
    RefuseView,
    Replicate,
    ReplicateAck,
    Request,
    StateChunk,
    StatusRequest,
    ViewRefused,
)
from shoal.protocol.messages.describing import describe
from shoal.protocol.messages.senders import misplaced
from shoal.protocol.requests import EnterBarrier, GoAway
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.server.executor import Executor
from shoal.protocol.server.opening import MemoryOptions, ShardOpening, TableMemory
from shoal.protocol.server.replication.chain import Chains
from shoal.protocol.server.replication.link import ReplicationOptions
from shoal.protocol.server.replication.replicas import Replicas
from shoal.protocol.server.replication.replication import Replication
from shoal.protocol.server.request_handler import RequestHandler, declined
from shoal.protocol.server.rounds import Rounds
from shoal.protocol.server.shard_store import OpenStore, ShardStore
from shoal.protocol.server.staging import AdmittedRequest, RequestStaging
from shoal.protocol.server.thaw import Thaw
from shoal.protocol.server.wait_queue import WaitQueue
from shoal.protocol.server.wait_report import WaitReport
from shoal.protocol.session import Session
from shoal.protocol.views import Member, NodeId, Role, View, ViewId
from shoal.tables.spec import TableSpec


class ServerMachine:
    """A server: admits requests, carries them out on its shards, and replicates the changes."""

    def __init__(
        self,
        session: Session,
        open_shard: OpenStore,
        replication: ReplicationOptions | None = None,
        checkpoint_clocks: CheckpointClocks | None = None,
        unread_bytes: int = UNREAD_BYTES,
        checkpoint_folder: Callable[[], str] = lambda: "",
        memory: MemoryOptions = MemoryOptions(),  # noqa: B008 - frozen
    ) -> None:
        """
        checkpoint_folder:  where this server's checkpoints are written; empty if nowhere
        """
        self.session = session
        self._checkpoint_folder = checkpoint_folder
        self._time = EventTime()
        self._trace = EventTrace()
        self._workers: dict[int, Member] = {}  # the view's, by incarnation
        clocks = self.clocks = Clocks()
        admission = self.admission = Admission()
        rounds, table_memory = Rounds(), TableMemory(memory)
        self._opening = ShardOpening(session, open_shard, table_memory)
        self._replicas = Replicas(self._opening.take)
        replicas = self._replicas.replicas
        table_memory.watch(replicas, rounds)
        chains = Chains(replicas, replication, self._time)
        checkpoint_clocks = checkpoint_clocks or CheckpointClocks()
        checkpointer = self.checkpointer = Checkpointer(checkpoint_clocks, clocks, chains)
        staging = self.staging = RequestStaging(
            admission, replicas, checkpointer, table_memory, rounds
        )
        wait_queue = self.wait_queue = WaitQueue(
            replicas, clocks, self._workers, chains, checkpointer, unread_bytes
        )
        executor = self.executor = Executor(
            session, rounds, admission, staging, replicas, clocks, chains, checkpointer, wait_queue
        )
        self.replication = Replication(
            session, admission, clocks, chains, checkpointer, executor, self._time, table_memory
        )
        self._thaw = Thaw(session, admission, self._time)
        self._request_handler = RequestHandler(session, admission, staging, executor, self._trace)
        self.waits = WaitReport(session, self._workers, clocks, admission, wait_queue)

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        if isinstance(message, Replicate | StateChunk):
            return self.replication.arriving(sender, message, nbytes)
        return self.staging.arriving(sender, message, nbytes)

    def problem_of(self, received: Received) -> str:
        message = received.message
        if isinstance(message, Request):  # admission decides about it, and refuses with a reason
            return ""
        if isinstance(message, Replicate | ReplicateAck | StateChunk):
            return self.replication.problem_of(received.sender, message, received.payload)
        problem = misplaced(message, received.sender, self.role_of(received.sender))
        if not problem and isinstance(message, OpenShards):
            return self._opening.problem_of(message)
        return problem

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        self._time.set(now)
        if isinstance(event, Received):
            self._received(event, now, out)
            if isinstance(event.message, Request | Replicate | ReplicateAck):
                moving = self.admission.draining or self.replication.state_transfer.sending
                if moving and not self.admission.frozen:
                    self.replication.go_on(out)
                if self.wait_queue.pulls or self.waits.active:
                    self.waits.look(now, out)
                return out
        elif isinstance(event, Ticked):
            self.session.tick(now, out)
            self.replication.end_drain()
            self._thaw.go_on(out)
            self._thaw_if_agreed(out)
        elif isinstance(event, Offloaded):
            self._opening.done(event, out)
        elif isinstance(event, HasRoom):
            self.wait_queue.has_room(event.node)
            if not self.frozen:
                self.executor.look(out)
        elif isinstance(event, Asked):
            self._asked(event.request_id, event.request, now, out)
        else:  # a broken connection may come back; only a view removes a member
            self.session.peer_lost(event.node, now)
            self.replication.peer_lost(event.node)
        if not self.frozen:
            self.replication.go_on(out)
        self.waits.look(now, out)
        return out

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
        elif isinstance(message, Computing):
            self._request_handler.computing(sender, message, out)
        elif isinstance(message, StatusRequest):
            out.append(Send(sender, self.waits.because(now)))
        elif isinstance(message, Replicate | ReplicateAck | StateChunk):
            self.replication.received(sender, message, event.payload, out)
        elif isinstance(message, RefuseView | ViewRefused | NewView) and sender != SCHEDULER:
            self._from_server(sender, message, out)
        elif sender != SCHEDULER:
            out.append(declined("unexpected", sender, type(message).__name__))
        elif isinstance(message, Drain):
            self.replication.begin_to_drain(message, out)
        elif isinstance(message, Freeze):
            self._freeze(message, out)
        elif isinstance(message, OpenShards):
            self._opening.asked(message, out)
        elif isinstance(message, NewView) and self._refused(message.view.id, out):
            out.append(declined("refused view", sender, "NewView"))
        elif isinstance(message, NewView) and message.view.id < self.admission.promised:
            out.append(declined("older view", sender, "NewView"))  # a newer one is promised
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
        return min(at, self._thaw.wakes_at() if self.frozen else self.replication.wakes_at())

    def address_of(self, node: NodeId) -> str | None:
        """Return where to connect: of two servers the one of lower rank connects to the other.

        A server that asks the others to refuse a view connects to all of them.
        """
        member = self.session.view.member(node) if self.session.view else None
        if member is None or member.role != "server":
            return None
        return member.address if member.rank > self.session.rank or self._thaw.asks else None

    def role_of(self, node: NodeId) -> Role | None:
        return self.session.role_of(node)

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
        found: list[tuple[int, ShardStore]] = []
        for replica in self.replication.replicas.values():
            chain = replica.placement.in_sync[::-1]
            if replica.rank in chain:
                found.append((chain.index(replica.rank), replica.shard))
        return found

    def sizes(self) -> list[tuple[TableSpec, dict[str, int]]]:
        """Return the number of rows, and of evicted rows, of each shard it is the tail of."""
        tails = [shard for place, shard in self.replicas() if not place]
        return [(each.spec, {"rows": len(each), "evicted": each.evicted}) for each in tails]

    def waiting(self) -> list[tuple[str, str]]:
        """Return (request, reason) of every pull in the wait queue."""
        return [(describe(request), reason) for request, reason, _ in self.wait_queue.waiting()]

    # ------------------------------------------------------------------ views

    def _refused(self, view: ViewId, out: Effects) -> bool:
        """Return whether this server has refused a newer view than its own; say so."""
        refused = self.session.view_id < view <= self.admission.refused
        if refused:
            out.append(Send(SCHEDULER, ViewRefused(view, self.session.view_id)))
        return refused

    def _from_server(
        self, sender: NodeId, message: RefuseView | ViewRefused | NewView, out: Effects
    ) -> None:
        """Handle a message of another server about views."""
        if isinstance(message, RefuseView):
            self._thaw.asked(sender, message, out)
        elif isinstance(message, ViewRefused):
            self._thaw.answered(sender, message, out)
        elif self._names(sender, message.view):
            if message.view.id < self.admission.promised:
                self._thaw.keep(message.view)
                self._thaw.go_on(out)
            elif (view := self.session.adopt(message.view, out)) is not None:
                self._adopt(view, out)
        else:
            out.append(declined("unexpected", sender, "NewView"))
        self._thaw_if_agreed(out)

    def _names(self, sender: NodeId, view: View) -> bool:
        """Return whether a view has its sender, and this server: the scheduler ends one that left
        or was declared dead."""
        mine = view.member(self.session.me)
        here = mine is not None and mine.incarnation == self.session.incarnation
        return here and any(member.id == sender for member in view.servers)

    def _thaw_if_agreed(self, out: Effects) -> None:
        """Continue in this view, or in a newer one that other servers have adopted."""
        view = self._thaw.thawed(out)
        if view is None:
            return
        self.admission.thaw()
        self._thaw.adopted()
        if self.session.adopt(view, out) is not None:
            self._adopt(view, out)
        self.executor.look(out)

    def _freeze(self, message: Freeze, out: Effects) -> None:
        if message.view <= self.session.view_id or self._refused(message.view, out):
            return
        self.admission.promise(message.view)
        self._thaw.frozen()
        if message.view == self.admission.promised:
            groups = tuple(map(self.replication.progress, self.clocks.groups()))
            drained = self.replication.drained(message.view)
            mine = self.session.view if self.session.view_id > message.known else None
            clocks = tuple(self.clocks.items())
            folder = self._checkpoint_folder()
            promise = Frozen(message.view, clocks, groups, drained, mine, folder)
            out.append(Send(SCHEDULER, promise))

    def _adopt(self, view: View, out: Effects) -> None:
        self.admission.adopt(view)
        self._thaw.adopted()
        self.session.ask_for_view(out)  # the scheduler waits for the first that has adopted it
        try:
            moved = self._replicas.adopt(view, self.session.rank)
        except ShoalError as error:  # it was not opened before: others go on without this server
            text = f"{self.session.name} cannot open its part of a view: {error.message}"
            self.session.stop(out, ProcessDied(text))
            return
        if moved.cut:
            self.staging.guard.recall()
            self.admission.recut(moved.cut)
        self.admission.place(view.tables, self.replication.replicas, moved.chains)
        self.replication.adopt(view, moved, out)
        if moved.chains:
            self.wait_queue.clear()
        self._admit(view, out)
        self.replication.take_over()
        for group, clock in moved.begin.items():
            self.clocks.of(group).reset(clock)  # workers advance it when they send again
        self.checkpointer.adopt(view)
        for group in self.clocks.groups():
            self.executor.close_rounds(group, out)
        self.executor.look(out)
        self.replication.say_synced(out)

    def _admit(self, view: View, out: Effects) -> None:
        """Enter the view's workers, and remove all others."""
        here = {member.id for member in view.workers}
        for gone in [m.id for m in self._workers.values() if m.id not in here]:
            self.wait_queue.forget(gone)
            out.append(HangUp(gone))
        self._workers.clear()
        self._workers.update((m.incarnation, m) for m in view.workers)
        last_clocks = {m.incarnation: m.last_clock for m in view.departed}
        for worker, _ in list(self.clocks.items()):
            if worker not in self._workers:
                self.clocks.leave(worker)
                self.executor.drop_worker(worker, last_clocks.get(worker, 0))
        self.clocks.keep(view.groups())
        self.executor.rounds.keep(view.groups())
        for replica in self.replication.replicas.values():
            replica.shard.keep(self._workers)
        for worker, member in self._workers.items():
            if worker not in self.clocks:
                self.clocks.enter(worker, member.first_clock, member.group)

    def _broken(self, message: str) -> InvariantBroken:
        return self._trace.broken(message)
