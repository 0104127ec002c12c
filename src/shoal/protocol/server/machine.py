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
from shoal.protocol.machine import (
    Arrival,
    Asked,
    Discard,
    Effects,
    Event,
    EventTrace,
    HasRoom,
    Offloaded,
    Received,
    Sink,
    Ticked,
)
from shoal.protocol.messages.admin import StatusRequest
from shoal.protocol.messages.base import SCHEDULER, Message, misplaced
from shoal.protocol.messages.membership import (
    ConfirmRows,
    Drain,
    Freeze,
    NewView,
    OpenShards,
    RefuseView,
    ViewRefused,
)
from shoal.protocol.messages.replication import (
    EncodedReplicate,
    Replicate,
    ReplicateAck,
    StateChunk,
)
from shoal.protocol.messages.requests import (
    Computing,
    EncodedRequest,
    ListedRequest,
    Probe,
    Request,
)
from shoal.protocol.requests import EnterBarrier, GoAway
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.link import ReplicationOptions
from shoal.protocol.server.notes import Declined, Landed
from shoal.protocol.server.replication.replication import Replication
from shoal.protocol.server.requests.requests import RequestOptions, Requests
from shoal.protocol.server.requests.staging import AdmittedRequest
from shoal.protocol.server.state.shard_store import OpenStore, ShardStore
from shoal.protocol.server.state.state import ServerState
from shoal.protocol.server.view_change.view_change import ViewChange
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId, Role
from shoal.tables.spec import TableSpec

# Sets, because `isinstance` of a union takes five times as long, for each message.
CHANGES = frozenset(
    {Request, EncodedRequest, ListedRequest, Replicate, EncodedReplicate}
)  # and they may need long work
EXCHANGE = CHANGES | {ReplicateAck}


class ServerMachine:
    """A server: admits requests, carries them out on its shards, and replicates the changes."""

    def __init__(
        self,
        session: Session,
        open_shard: OpenStore,
        replication: ReplicationOptions | None = None,
        checkpoint_clocks: CheckpointClocks | None = None,
        checkpoint_folder: Callable[[], str] = lambda: "",
        requests: RequestOptions = RequestOptions(),  # noqa: B008 - frozen
    ) -> None:
        """Make the parts of the machine.

        checkpoint_folder:  a function that returns the folder of this server's checkpoints, or ""
        """
        self.session = session
        self._trace = EventTrace()
        self.state = ServerState(session)
        self._time = self.state.time
        self._clocks = self.state.clocks
        tickets = count(1)
        self.chains = Chains(self.state.replicas, replication, self._time, session.unanswered.asked)
        self.requests = Requests(
            self.state,
            self.chains,
            checkpoint_clocks or CheckpointClocks(),
            requests,
            tickets,
            self._trace,
        )
        self._long_work, self._interim = self.requests.long_work, self.requests.interim
        self._fast_path = self.requests.fast_path
        self._wakes_at: float | None = None
        self._moved = True  # whether `deadline()` may be another one since it was last asked for
        self.replication = Replication(self.state, self.chains, self.requests)
        self.view_change = ViewChange(
            self.state, self.requests, self.replication, open_shard, tickets, checkpoint_folder
        )

    # ------------------------------------------------------------------ the contract

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        if isinstance(message, Request):
            return self.requests.staging.arriving(sender, message, nbytes)
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
            return self.view_change.problem_of(message)
        return problem

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        self._time.set(now)
        if type(event) is Received and event.payload is not None and event.payload.loan:
            self.requests.staging.adopt(event.payload)
        if (
            type(event) is Received
            and type(event.message) is Request
            and not self._interim.kept
            and not self.replication.state_transfer.sending
            and self._fast_path.carry_out(event, out)
        ):
            self._moved = self._moved or event.message.advance >= 0
            return out
        self._moved = True
        if self._long_work.suspended:
            self._handle_meanwhile(event, out)
        elif self._interim.kept:  # one at a time: rows that it lends must not change unsent
            if (due := self._interim.first_before(event)) is not None:
                self._begin(due, out)
        elif self._long_work.possible:
            self._begin(event, out)
        else:
            self._handle(event, out)
        return out

    def _begin(self, event: Event, out: Effects) -> None:
        """Handle an event, in a coroutine if it may need long work."""
        if isinstance(event, Received):
            changes = type(event.message) in CHANGES
            # the work on a fragment is never long
            works = changes and (event.payload is None or event.payload.whole)
        else:
            works = isinstance(event, Ticked) and self._time.now >= self._clocks.due_at
        if works:
            self._interim.begin(event)
            self._long_work.run(partial(self._handle_work, event), out)
        else:
            self._handle(event, out)

    def _handle_work(self, event: Event, out: Effects) -> None:
        """Handle an event, and then do what had to wait while its handler was suspended."""
        self._handle(event, out)
        if self._interim.handled:
            self.requests.checkpointer.reached(out)
            self.requests.executor.look(out)

    def _handle_meanwhile(self, event: Event, out: Effects) -> None:
        """Handle an event while the handler of another one is suspended."""
        if isinstance(event, Offloaded) and self._long_work.ends(event):
            self._long_work.resume(event, out)
        elif isinstance(event, Received) and self._interim.takes(event, out):
            self._received(event, out)
        elif not isinstance(event, Received | Ticked):  # a tick is dropped: due work stays due
            self._interim.keep(event)

    def _handle(self, event: Event, out: Effects) -> None:
        requests = self.requests
        if self._time.now >= self._clocks.due_at and not self.frozen:
            requests.executor.close_due(out)
        if isinstance(event, Received):
            self._received(event, out)
            if type(event.message) in EXCHANGE:
                moving = requests.admission.draining or self.replication.state_transfer.sending
                if moving and not requests.admission.frozen:
                    self.replication.go_on(out)
                if requests.wait_queue.pulls or requests.wait_report.active:
                    requests.wait_report.look(self._time.now, out)
                return
        elif isinstance(event, Ticked):
            self.session.tick(self._time.now, out)
            self.replication.end_drain()
            self.view_change.tick(out)
        elif isinstance(event, Offloaded):
            self.view_change.opened(event, out)
        elif isinstance(event, HasRoom):
            requests.wait_queue.has_room(event.node)
            if not self.frozen:
                requests.executor.look(out)
        elif isinstance(event, Asked):
            self._asked(event.request_id, event.request, out)
        else:  # a broken connection may come back; only a view removes a member
            self.session.peer_lost(event.node, self._time.now, event.closed)
            self.replication.peer_lost(event.node)
        self._long_work.look(self.state.replicas.values())
        if not self.frozen:
            self.replication.go_on(out)
        requests.wait_report.look(self._time.now, out)

    def _asked(self, request_id: int, request: object, out: Effects) -> None:
        """Handle a request of this server's own process: leave, or enter a barrier."""
        match request:
            case EnterBarrier(name, groups):
                self.session.enter_barrier(request_id, name, groups, self._time.now, out)
            case GoAway():
                self.view_change.leave(request_id, out)

    def _received(self, event: Received, out: Effects) -> None:
        sender, message, payload, now = event.sender, event.message, event.payload, self._time.now
        if payload is not None and payload.by_view and not payload.whole:
            if isinstance(message, Request) and self.requests.staging.land(payload):
                out.append(Landed(message))
            return
        self._trace.add((now, sender, message))
        if self.session.unanswered.counts:
            self.session.unanswered.heard(sender)
        if isinstance(message, Request):
            self._request(sender, message, payload, out)
        elif isinstance(message, Replicate | ReplicateAck | StateChunk):
            self.replication.received(sender, message, payload, out)
        elif isinstance(message, Probe | Computing | StatusRequest):
            self.requests.asked(sender, message, out)
        elif isinstance(message, RefuseView | ViewRefused | NewView) and sender != SCHEDULER:
            self.view_change.from_server(sender, message, out)
        elif sender != SCHEDULER:
            out.append(Declined("unexpected", sender, type(message).__name__))
        elif isinstance(message, Drain):
            self.replication.begin_to_drain(message, out)
        elif isinstance(message, OpenShards | Freeze | NewView):
            self.view_change.from_scheduler(message, out)
        elif isinstance(message, ConfirmRows) and self._owes(message, out):
            out.append(Declined("too early", sender, "ConfirmRows"))
        else:
            self.session.handle(message, now, out)

    def _request(
        self, sender: NodeId, request: Request, payload: Sink | None, out: Effects
    ) -> None:
        """Carry out a request that has come in whole, if it is still admitted."""
        requests = self.requests
        admitted: AdmittedRequest | None = None
        if payload is not None and not payload.revoked:
            admitted = payload.context
        fresh = admitted is not None and requests.admission.still_fresh(
            request, admitted.log, admitted.view
        )
        if admitted is None or not fresh:
            admitted = requests.handler.admit_again(sender, request, admitted, out)
        elif admitted.streamed and payload is not None:
            admitted = requests.handler.end_stream(admitted, payload, out)
        if admitted is not None:
            requests.executor.carry_out(admitted, out)

    def _owes(self, message: ConfirmRows, out: Effects) -> bool:
        """Return whether the run may not end yet: a view or a promised checkpoint is missing."""
        self.requests.checkpointer.end(out)
        if self.session.view_id < message.view:
            self.session.ask_for_view(message.view, out)
            return True
        return self.requests.checkpointer.owes

    def deadline(self) -> float | None:
        if self._moved:
            self._wakes_at, self._moved = self._due(), False
        return self._wakes_at

    def _due(self) -> float | None:
        if self._long_work.suspended:
            return None
        if self._interim.kept:
            return self._time.now
        at = min(self.session.deadline(), self.view_change.wakes_at())
        return at if self.frozen else min(at, self.replication.wakes_at(), self._clocks.due_at)

    def address_of(self, node: NodeId) -> str | None:
        """Return the address to connect to: of two servers the one of lower rank connects.

        A server that asks the others to refuse a view connects to all of them.
        """
        member = self.session.view.member(node) if self.session.view else None
        if member is None or member.role != "server":
            return None
        return (
            member.address
            if member.rank > self.session.rank or self.view_change.asks_servers
            else None
        )

    def role_of(self, node: NodeId) -> Role | None:
        return self.session.role_of(node)

    def check(self) -> None:
        """Raise `InvariantBroken` if a round that is due is open, or a pull waits for no reason."""
        if self.frozen or self.suspended:
            return
        requests = self.requests
        for problem in (*requests.wait_queue.problems(), *requests.round_closer.problems()):
            raise self._broken(f"{self.session.name}: {problem}")

    @property
    def frozen(self) -> bool:
        """Whether a view is promised and has not come: nothing is applied or answered."""
        return self.requests.admission.frozen

    @property
    def suspended(self) -> bool:
        """Whether the handler of an event waits for its long work."""
        return self._long_work.suspended

    def replicas(self) -> list[tuple[int, ShardStore]]:
        """Return (distance from the tail, shard) of each in-sync replica here."""
        found: list[tuple[int, ShardStore]] = []
        for replica in self.state.replicas.values():
            chain = replica.placement.in_sync[::-1]
            if replica.rank in chain:
                found.append((chain.index(replica.rank), replica.shard))
        return found

    def sizes(self) -> list[tuple[TableSpec, dict[str, int]]]:
        """Return the number of rows, and of evicted rows, of each shard with its tail here."""
        tails = [shard for place, shard in self.replicas() if not place]
        return [(each.spec, {"rows": len(each), "evicted": each.evicted}) for each in tails]

    def waiting(self) -> list[tuple[str, str]]:
        """Return (request, reason) of every pull in the wait queue."""
        return [
            (request.describe(), reason)
            for request, reason, _ in self.requests.wait_queue.waiting()
        ]

    def _broken(self, message: str) -> InvariantBroken:
        return self._trace.broken(message)
