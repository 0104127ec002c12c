"""Machines driven by hand: an event goes in, its effects come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any, Generic, TypeVar, cast

from msgspec.structs import asdict, replace

from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.limits import UNREAD_BYTES
from shoal.protocol.machine import (
    Asked,
    Discard,
    Effects,
    Event,
    Machine,
    Note,
    Outcome,
    Persist,
    Received,
    Resolve,
    Send,
    Stop,
    Ticked,
)
from shoal.protocol.messages.admin import StatusReply, StatusRequest
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.messages.membership import (
    ConfirmRows,
    Finish,
    Frozen,
    GroupProgress,
    Heartbeat,
    Join,
    NewView,
    RowsConfirmed,
    ShardsOpened,
)
from shoal.protocol.messages.requests import Reply, Request
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.notes import Declined
from shoal.protocol.server.requests.requests import RequestOptions
from shoal.protocol.server.state.shard_store import OpenStore
from shoal.protocol.session import Session
from shoal.protocol.views import NO_VIEW, NodeId, Role, View, ViewId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.protocol.worker.options import WorkerOptions
from shoal.tables.spec import TableSpec
from tests.protocol.rigs.shard import FakeShard
from tests.protocol.rigs.views import view_of

M = TypeVar("M", bound=Machine)
N = TypeVar("N", bound=Note)


class Rig(Generic[M]):
    """A machine, and what came out of it last."""

    def __init__(self, machine: M) -> None:
        self.machine = machine
        self.effects: Effects = []
        self.now = 0.0
        self.declined: Counter[str] = Counter()

    def handle(self, event: Event) -> Effects:
        self.effects = self.machine.handle(event, self.now)
        self.declined.update(each.verdict for each in self.notes(Declined))
        self.machine.check()
        return self.effects

    def receive(
        self, sender: NodeId, message: Message, payload: bytes | memoryview = b""
    ) -> Effects:
        """A message with its payload, through `arriving` as a shell does it."""
        if not payload:
            return self.handle(Received(sender, message))
        arrival = self.machine.arriving(sender, message, len(payload))
        if isinstance(arrival, Discard):
            return self.handle(Received(sender, message))
        arrival.fill(memoryview(payload))
        return self.handle(Received(sender, message, arrival))

    def sends(self, kind: type = object) -> list[Send]:
        """The messages of that kind among the effects, with their receivers."""
        return [e for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]

    def sent(self, kind: type = object) -> list[Any]:
        return [each.message for each in self.sends(kind)]

    def notes(self, kind: type[N]) -> list[N]:
        return [each for each in self.effects if isinstance(each, kind)]

    def resolved(self) -> dict[int, Outcome]:
        """Outcomes by request id."""
        return {e.request_id: e.outcome for e in self.effects if isinstance(e, Resolve)}


class ServerRig(Rig[ServerMachine]):
    """Server 0, and workers that ask it by rank."""

    view: View

    def __init__(
        self,
        *tables: TableSpec,
        servers: int = 1,
        workers: int = 2,
        unread_bytes: int = UNREAD_BYTES,
        long_bytes: float = inf,
        save_every: int = 0,
        **more: Any,
    ) -> None:
        open_shard = cast(OpenStore, FakeShard)  # it has what these tests need of a store
        session = Session("server-0", "server")
        server = ServerMachine(
            session,
            open_shard,
            checkpoint_clocks=CheckpointClocks(save_every),
            requests=RequestOptions(unread_bytes=unread_bytes, long_bytes=long_bytes),
        )
        super().__init__(server)
        if servers == 1:  # one fragment: what is streamed has tests of its own
            tables = tuple(replace(each, fragment_rows=each.rows) for each in tables)
        self.adopt(view_of(servers=servers, workers=workers, tables=tables, **more))

    @property
    def rows(self) -> list[int]:
        """The values of the first table."""
        return list(cast(FakeShard, self.machine.state.replicas[0].shard).rows)

    def adopt(self, view: View) -> Effects:
        self.view = view
        return self.receive(SCHEDULER, NewView(view))

    def ask(
        self,
        rank: int,
        seq: int,
        payload: bytes | memoryview = b"",
        view: ViewId | None = None,
        forget_below: int = 0,
        clock: int = 0,
        **more: Any,
    ) -> list[Any]:
        """A request of a worker's; returns the codes of the replies that go to it."""
        view = self.view.id if view is None else view
        request = Request(view, 11 + rank, seq, forget_below, clock, **more)
        self.receive(f"worker-{rank}", request, payload)
        return self.codes(f"worker-{rank}")

    def codes(self, to: NodeId) -> list[Any]:
        """The codes of the replies to a node."""
        return [s.message.code for s in self.sends(Reply) if s.to == to]  # type: ignore[attr-defined]


class WorkerRig(Rig[WorkerMachine]):
    """Worker 0, and servers that answer it by number."""

    def __init__(
        self,
        *tables: TableSpec,
        servers: int = 1,
        workers: int = 2,
        replicas: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(WorkerMachine(Session("worker-0", "worker"), WorkerOptions(**options)))
        self.view = view_of(servers=servers, workers=workers, replicas=replicas, tables=tables)
        self.receive(SCHEDULER, NewView(self.view))

    def ask(self, request_id: int, request: Any) -> list[Request]:
        self.handle(Asked(request_id, request))
        return self.sent(Request)

    def answer(
        self,
        server: int,
        seq: int,
        code: Any,
        payload: bytes | memoryview = b"",
        view: ViewId | None = None,
        **more: Any,
    ) -> None:
        view = self.view.id if view is None else view
        reply = Reply(11, seq, view, code, payload=len(payload), **more)
        self.receive(f"server-{server}", reply, payload)


class SchedulerRig(Rig[SchedulerMachine]):
    """A scheduler of one server and two workers, and members that talk to it by name."""

    def __init__(self, journal: bytes | None = None, **more: Any) -> None:
        asked = {"servers": 1, "workers": 2, "failure_timeout_s": 10, "broken_s": 2, **more}
        super().__init__(SchedulerMachine(SchedulerOptions(**asked), journal))
        self.journal = journal

    def handle(self, event: Event) -> Effects:
        super().handle(event)
        records = [each.record for each in self.effects if isinstance(each, Persist)]
        self.journal = records[-1] if records else self.journal
        return self.effects

    def at(self, now: float) -> Effects:
        """Ticks until then, as its deadlines say; `effects` has what came of all of them."""
        effects: Effects = []
        before: float | None = None
        while self.machine._begun and before != (due := self.machine.deadline() or now) < now:
            self.now, before = max(self.now, due), due
            effects += self.handle(Ticked())
        self.now = now
        self.effects = effects + self.handle(Ticked())
        return self.effects

    def join(self, *names: NodeId) -> None:
        for name in names:
            role = cast(Role, name.split("-")[0])
            self.receive(name, Join(name, role, "", "here"))
            if self.machine._views._proposal is not None:
                self.promise()

    def guest(self, name: NodeId, size: int = 1, group: str = "eval") -> None:
        """A worker of another group asks to join."""
        self.receive(name, Join(name, "worker", "", "here", group=group, group_size=size))

    def finish(self, node: NodeId, view: ViewId | None = None) -> Effects:
        """A worker finishes, in the view that it has: the current one, or another."""
        has = view or (self.view.id if self.view is not None else NO_VIEW)
        return self.receive(node, Finish(self.incarnation(node), has))

    def incarnation(self, node: NodeId) -> int:
        return self.machine.members.by_id[node].incarnation

    def alive(self, now: float) -> None:
        """Everybody is heard of."""
        self.now = now
        for node in list(self.machine.members.by_id):
            if node not in self.machine.members.finished:
                assert self.view is not None
                self.receive(node, Heartbeat(self.incarnation(node), self.view.id))

    def open(self, reason: str = "") -> None:
        """Every server opens the shards that it is asked for; or cannot, with a reason."""
        effects: Effects = []
        for node, asked in list(self.machine._views._openings._lists.items()):
            shards = [(spec.name, rows) for spec, rows in asked.shards]
            opened = () if reason else tuple((name, (rows,)) for name, rows in shards)
            failed = tuple((name, rows, reason) for name, rows in shards) if reason else ()
            answer = ShardsOpened(self.incarnation(node), asked.number, opened, failed)
            effects += self.receive(node, answer)
        self.effects = effects

    def promise(
        self, clocks: tuple[tuple[int, int], ...] = (), open_round: int = 0, folder: str = "/saved"
    ) -> None:
        """Every server freezes for the view that is proposed, and the first adopts it.

        If none is proposed, servers open what a view waits for.
        """
        if self.machine._views._proposal is None:
            self.open()
        proposal = self.machine._views._proposal
        assert proposal is not None
        progress = (GroupProgress("", open_round),)
        frozen = Frozen(proposal.number, clocks, progress, folder=folder)
        for node, member in list(self.machine.members.by_id.items()):
            if member.role == "server":
                self.receive(node, frozen)
        self.adopt()

    def adopt(self) -> None:
        """A server adopts the view that is offered to it; `effects` has those of the offer, too."""
        offered = self.machine._views.offered
        if offered is not None:
            effects, server = self.effects, self.machine.members.servers()[0]
            self.receive(server, Heartbeat(self.incarnation(server), offered.id))
            self.effects = effects + self.effects

    def confirm(self) -> None:
        """Every server answers that it holds its rows; `effects` has those of the question, too."""
        effects = self.effects
        for node, asked in self.told(ConfirmRows).items():
            effects = effects + self.receive(
                node, RowsConfirmed(self.incarnation(node), asked.number, asked.view)
            )
        self.effects = effects

    def told(self, kind: type) -> Mapping[NodeId, Any]:
        """The message of that kind that each node was sent."""
        return {send.to: send.message for send in self.sends(kind)}

    def why(self) -> list[Any]:
        self.receive("somebody", StatusRequest())
        return list(self.told(StatusReply)["somebody"].waits)

    def restart(self) -> SchedulerRig:
        return SchedulerRig(self.journal, **asdict(self.machine.options))

    @property
    def stop(self) -> Stop:
        return next(each for each in self.effects if isinstance(each, Stop))

    @property
    def view(self) -> View | None:
        return self.machine.view
