"""A chain of servers whose messages are delivered by hand."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.machine import Discard, Effects, Received, Save, Send, Sink, Ticked
from shoal.protocol.messages.base import SCHEDULER, Message, Part
from shoal.protocol.messages.membership import NewView
from shoal.protocol.messages.requests import Reply, Request
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.state.shard_store import OpenStore
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId, Placement
from shoal.tables.consistency import Consistency
from shoal.tables.dense.shard import DenseShard
from tests.protocol.rigs.views import as_bytes, table, view_of

ROWS = 4  # of each table


class UnderWay(NamedTuple):
    """A message from one server to another that has not arrived."""

    source: int
    to: NodeId
    message: Message
    payload: bytes


class Chain:
    """Servers of one shard of each table, whose messages to each other are delivered when a test
    says so.

    under_way:  messages between servers
    told:       (worker, seq, code, rows) of the replies to workers
    saved:      (rank, table, clock, rows) of the checkpoints
    now:        when messages arrive, unless a test says so
    """

    def __init__(
        self,
        *rules: Consistency | None,
        length: int = 2,
        workers: int = 2,
        save_every: int = 0,
        fragment_rows: int = ROWS,
    ) -> None:
        named = enumerate(rules or (None,))
        tables = [table(rule, ROWS, fragment_rows, f"w{n}") for n, rule in named]
        self.spec = tables[0]
        view = view_of(servers=length, workers=workers, tables=tables)
        placement = Placement(KeyRange(0, ROWS), tuple(range(length)))
        self.view = replace(view, placements=((placement,),) * len(tables))
        self.servers = [
            ServerMachine(
                Session(f"server-{r}", "server"),
                cast(OpenStore, DenseShard),
                checkpoint_clocks=CheckpointClocks(save_every),
            )
            for r in range(length)
        ]
        self.now = 0.0
        self.under_way: list[UnderWay] = []
        self.told: list[tuple[NodeId, int, Any, list[int]]] = []
        self.saved: list[tuple[int, str, int, list[int]]] = []
        for rank in range(length):
            self.receive(rank, SCHEDULER, NewView(self.view))
        self.deliver()

    def receive(
        self,
        rank: int,
        sender: NodeId,
        message: Message,
        payload: bytes | memoryview = b"",
        now: float | None = None,
    ) -> None:
        machine = self.servers[rank]
        sink: Sink | None = None
        if payload:
            arrival = machine.arriving(sender, message, len(payload))
            if not isinstance(arrival, Discard):
                sink = arrival
                sink.fill(memoryview(payload))
        now = self.now if now is None else now
        self._keep(rank, machine.handle(Received(sender, message, sink), now))

    def _keep(self, rank: int, effects: Effects) -> None:
        self.servers[rank].check()
        for each in effects:
            if isinstance(each, Send) and each.to.startswith("server"):
                payload = b"".join(bytes(buffer) for buffer in each.buffers)
                self.under_way.append(UnderWay(rank, each.to, each.message, payload))
            elif isinstance(each, Save):
                rows = each.state["rows"].view(-1).tolist()
                self.saved.append((rank, each.spec.name, each.clock, rows))
            elif isinstance(each, Send) and isinstance(each.message, Reply):
                rows = memoryview(b"".join(bytes(b) for b in each.buffers)).cast("q").tolist()
                self.told.append((each.to, each.message.seq, each.message.code, rows))

    def tick(self, rank: int, now: float) -> None:
        self._keep(rank, self.servers[rank].handle(Ticked(), now))

    def deliver(self, kind: type = object, times: int = 1) -> None:
        """Deliver the messages of that kind, and those that they cause, each so many times."""
        while any(isinstance(each.message, kind) for each in self.under_way):
            at = next(i for i, each in enumerate(self.under_way) if isinstance(each.message, kind))
            source, to, message, payload = self.under_way.pop(at)
            for _ in range(times):
                self.receive(int(to[-1]), f"server-{source}", message, payload)

    def ask(
        self, rank: int, worker: int, seq: int, *values: int, table: int = 0, **more: Any
    ) -> list[tuple[NodeId, int, Any]]:
        """A request to a server; returns (worker, seq, code) of the replies since."""
        self.told = []
        payload: bytes | memoryview = as_bytes(*values) if values else b""
        if values:
            more["pushes"] = (Part(table, 0, ROWS),)
        below, clock = more.pop("forget_below", 0), more.pop("clock", 0)
        request = Request(self.view.id, 11 + worker, seq, below, clock, **more)
        self.receive(rank, f"worker-{worker}", request, payload)
        return [(to, n, code) for to, n, code, _ in self.told]

    def rows(self, rank: int, table: int = 0) -> list[int]:
        """The values that a server has of a table."""
        shard = cast(DenseShard, self.servers[rank].state.replicas[table].shard)
        return cast(list[int], shard.rows.view(-1).tolist())

    def without(self, *dead: int) -> None:
        """A view in which these servers are gone."""
        before = self.view
        living = tuple(m for m in before.servers if m.rank not in dead)
        placements = tuple(
            tuple(replace(a, chain=tuple(r for r in a.chain if r not in dead)) for a in placements)
            for placements in before.placements
        )
        self.view = replace(before, number=before.number + 1, servers=living, placements=placements)
        self.under_way = [each for each in self.under_way if each.source not in dead]
        self.told = []
        for member in living:
            self.receive(member.rank, SCHEDULER, NewView(self.view))
