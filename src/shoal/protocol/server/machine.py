"""The server's machine: dispatches messages to the parts of a server.

Architecture invariant: this module has no tensors (a `ShardStore` does the arithmetic), no chain
order (`Chains` knows it), and no time but `now`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

from shoal.errors import InvariantBroken
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.consistency import Clocks
from shoal.protocol.limits import UNREAD_BYTES
from shoal.protocol.machine import (
    Arrival,
    Asked,
    Discard,
    Effects,
    Event,
    EventTime,
    EventTrace,
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
    ConfirmRows,
    Drain,
    Freeze,
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
from shoal.protocol.server.departure import Departure
from shoal.protocol.server.executor import Applier, Executor
from shoal.protocol.server.long_work.coroutine import LONG_BYTES, LongWork
from shoal.protocol.server.long_work.interim import Interim
from shoal.protocol.server.opening import MemoryOptions, ShardOpening, TableMemory
from shoal.protocol.server.replication.chain import Chains
from shoal.protocol.server.replication.link import ReplicationOptions
from shoal.protocol.server.replication.replicas import Replicas
from shoal.protocol.server.replication.replication import Replication
from shoal.protocol.server.request_handler import RequestHandler, declined
from shoal.protocol.server.round_closing import RoundCloser
from shoal.protocol.server.rounds import Rounds
from shoal.protocol.server.shard_store import OpenStore, ShardStore
from shoal.protocol.server.staging import AdmittedRequest, RequestStaging
from shoal.protocol.server.view_change.adoption import ViewAdoption
from shoal.protocol.server.view_change.thaw import Thaw
from shoal.protocol.server.wait_queue import WaitQueue
from shoal.protocol.server.wait_report import WaitReport
from shoal.protocol.session import Session
from shoal.protocol.views import Member, NodeId, Role
from shoal.tables.spec import TableSpec

# Sets, because `isinstance` of a union takes five times as long, for each message.
CHANGES = frozenset({Request, Replicate})  # and they may come to long work
EXCHANGE = CHANGES | {ReplicateAck}


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
        long_bytes: float = LONG_BYTES,
    ) -> None:
        """
        checkpoint_folder:  where this server's checkpoints are written; empty if nowhere
        long_bytes:         work that moves as many is done outside of the loop
        """
        self.session = session
        self._time = EventTime()
        self._trace = EventTrace()
        self._workers: dict[int, Member] = {}  # the view's, by incarnation
        clocks = self.clocks = Clocks()
        admission = self.admission = Admission()
        rounds, table_memory = Rounds(), TableMemory(memory)
        tickets = count(1)
        long_work = self._long_work = LongWork(tickets, long_bytes)
        self._opening = ShardOpening(session, open_shard, table_memory, tickets)
        self._replicas = Replicas(self._opening.take)
        replicas = self._replicas.replicas
        table_memory.watch(replicas, rounds)
        chains = Chains(replicas, replication, self._time, session.unanswered.asked)
        checkpoint_clocks = checkpoint_clocks or CheckpointClocks()
        checkpointer = self.checkpointer = Checkpointer(
            checkpoint_clocks, clocks, chains, long_work
        )
        staging = self.staging = RequestStaging(
            admission, replicas, checkpointer, table_memory, rounds
        )
        wait_queue = self.wait_queue = WaitQueue(
            *(replicas, clocks, self._workers, chains, checkpointer, long_work, unread_bytes)
        )
        applier = Applier(staging.guard, chains, checkpointer, long_work)
        round_closer = self._round_closer = RoundCloser(
            *(session, admission, replicas, clocks, chains, checkpointer, long_work),
            *(rounds, wait_queue, applier.apply),
        )
        executor = self.executor = Executor(
            *(session, rounds, staging, replicas, clocks, chains, checkpointer, wait_queue),
            *(applier, round_closer),
        )
        self.replication = Replication(
            *(session, admission, clocks, chains, checkpointer, executor, applier),
            *(self._time, table_memory),
        )
        self._departure = Departure(session)
        self._interim = Interim(session, long_work, admission, chains, table_memory)
        self._thaw = Thaw(session, admission, self._time)
        self._view_adoption = ViewAdoption(
            *(session, admission, self._thaw, self._replicas, self.replication, staging.guard),
            *(wait_queue, executor, round_closer, clocks, checkpointer, self._workers),
            checkpoint_folder,
        )
        self._request_handler = RequestHandler(session, admission, staging, executor, self._trace)
        self.waits = WaitReport(session, self._workers, clocks, admission, wait_queue)

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        if isinstance(message, Request):
            return self.staging.arriving(sender, message, nbytes)
        if isinstance(message, Replicate | StateChunk):
            return self.replication.arriving(sender, message, nbytes)
        return Discard(f"a {type(message).__name__} has no payload")

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
        if self._long_work.suspended:
            self._handle_meanwhile(event, out)
        elif self._interim.kept:  # one at a time, or rows that it lends would change unsent
            if (due := self._interim.first_before(event)) is not None:
                self._begin(due, out)
        elif self._long_work.possible:
            self._begin(event, out)
        else:
            self._handle(event, out)
        return out

    def _begin(self, event: Event, out: Effects) -> None:
        """Handle an event in a coroutine, if it may come to long work."""
        if isinstance(event, Received):
            changes = type(event.message) in CHANGES
            # a fragment is never large
            works = changes and (event.payload is None or event.payload.whole)
        else:
            works = isinstance(event, Ticked) and self._time.now >= self.clocks.due_at
        if works:
            self._interim.begin(event)
            self._long_work.run(partial(self._handle_work, event), out)
        else:
            self._handle(event, out)

    def _handle_work(self, event: Event, out: Effects) -> None:
        """Handle an event; then what others had to wait with while it was suspended."""
        self._handle(event, out)
        if self._interim.handled:
            self.checkpointer.reached(out)
            self.executor.look(out)

    def _handle_meanwhile(self, event: Event, out: Effects) -> None:
        """Handle an event while the handler of another one is suspended."""
        if isinstance(event, Offloaded) and self._long_work.ends(event):
            self._long_work.resume(event, out)
        elif isinstance(event, Received) and self._interim.takes(event, out):
            self._received(event, out)
        elif not isinstance(event, Received | Ticked):  # what is due is so after that
            self._interim.keep(event)

    def _handle(self, event: Event, out: Effects) -> None:
        if self._time.now >= self.clocks.due_at and not self.frozen:
            self.executor.close_due(out)
        if isinstance(event, Received):
            self._received(event, out)
            if type(event.message) in EXCHANGE:
                moving = self.admission.draining or self.replication.state_transfer.sending
                if moving and not self.admission.frozen:
                    self.replication.go_on(out)
                if self.wait_queue.pulls or self.waits.active:
                    self.waits.look(self._time.now, out)
                return
        elif isinstance(event, Ticked):
            self.session.tick(self._time.now, out)
            self._departure.look(self._time.now, out)
            self.replication.end_drain()
            self._thaw.go_on(out)
            self._view_adoption.thaw_if_agreed(out)
        elif isinstance(event, Offloaded):
            self._opening.done(event, out)
        elif isinstance(event, HasRoom):
            self.wait_queue.has_room(event.node)
            if not self.frozen:
                self.executor.look(out)
        elif isinstance(event, Asked):
            self._asked(event.request_id, event.request, out)
        else:  # a broken connection may come back; only a view removes a member
            self.session.peer_lost(event.node, self._time.now, event.closed)
            self.replication.peer_lost(event.node)
        self._long_work.look(self.replication.replicas.values())
        if not self.frozen:
            self.replication.go_on(out)
        self.waits.look(self._time.now, out)

    def _asked(self, request_id: int, request: object, out: Effects) -> None:
        """Handle a request of this server's own process: leave, or enter a barrier."""
        now = self._time.now
        match request:
            case EnterBarrier(name, groups):
                self.session.enter_barrier(request_id, name, groups, now, out)
            case GoAway():
                self._departure.ask(request_id, now, out)

    def _received(self, event: Received, out: Effects) -> None:
        sender, message, payload, now = event.sender, event.message, event.payload, self._time.now
        if payload is not None and payload.by_view and not payload.whole:
            if self.staging.land(payload):
                out.append(Note("landed", {"request": message}))
            return
        self._trace.add((now, sender, message))
        if self.session.unanswered.counts:
            self.session.unanswered.heard(sender)
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
            self._view_adoption.from_server(sender, message, out)
        elif sender != SCHEDULER:
            out.append(declined("unexpected", sender, type(message).__name__))
        elif isinstance(message, Drain):
            self.replication.begin_to_drain(message, out)
        elif isinstance(message, Freeze):
            self._view_adoption.freeze(message, out)
        elif isinstance(message, OpenShards):
            self._opening.asked(message, out)
        elif isinstance(message, ConfirmRows) and self._owes(message, out):
            out.append(declined("too early", sender, "ConfirmRows"))
        elif isinstance(message, NewView) and self._view_adoption.refused(message.view.id, out):
            out.append(declined("refused view", sender, "NewView"))
        elif isinstance(message, NewView) and message.view.id < self.admission.promised:
            out.append(declined("older view", sender, "NewView"))  # a newer one is promised
        else:
            view = self.session.handle(message, now, out)
            if view is not None:
                self._view_adoption.adopt(view, out)

    def _owes(self, message: ConfirmRows, out: Effects) -> bool:
        """Return whether the run may not end: a view or a promised checkpoint is not here."""
        self.checkpointer.end(out)
        if self.session.view_id < message.view:
            self.session.ask_for_view(message.view, out)
            return True
        return self.checkpointer.owes

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
            admitted = self._request_handler.end_stream(admitted, payload, out)
        if admitted is not None:
            self.executor.carry_out(admitted, out)

    def deadline(self) -> float | None:
        if self._long_work.suspended:
            return None
        if self._interim.kept:
            return self._time.now
        at = min(self.session.deadline(), self._departure.wakes_at())
        if self.frozen:
            return min(at, self._thaw.wakes_at())
        return min(at, self.replication.wakes_at(), self.clocks.due_at)

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
        """Raise `InvariantBroken` if a closed round is open, or a pull waits for no reason."""
        if self.frozen or self.suspended:
            return
        for problem in (*self.wait_queue.problems(), *self._round_closer.problems()):
            raise self._broken(f"{self.session.name}: {problem}")

    @property
    def frozen(self) -> bool:
        """Whether a view is promised and has not come: nothing is applied or answered."""
        return self.admission.frozen

    @property
    def suspended(self) -> bool:
        """Whether the handler of an event waits for its long work."""
        return self._long_work.suspended

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

    def _broken(self, message: str) -> InvariantBroken:
        return self._trace.broken(message)
