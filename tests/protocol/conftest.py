"""Machines driven by hand: tiny views, a shard that a person can follow, and few words."""

from array import array
from types import SimpleNamespace

import pytest
from msgspec.structs import asdict, replace

from shoal.keys import KeyRange
from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.machine import (
    Asked,
    Discard,
    Note,
    Persist,
    Received,
    Resolve,
    Save,
    Send,
    Stop,
    Ticked,
)
from shoal.protocol.messages import (
    SCHEDULER,
    Frozen,
    GroupProgress,
    Join,
    NewView,
    Part,
    Reply,
    Request,
    StatusReply,
    StatusRequest,
)
from shoal.protocol.requests import PullOp, PushOp
from shoal.protocol.scheduler.journal import SchedulerOptions
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.scheduler.placement import place
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.views import Member, Placement, View
from shoal.protocol.worker.machine import WorkerMachine, WorkerOptions
from shoal.tables.dense.shard import DenseShard
from shoal.tables.spec import TableSpec, asp, bsp

ROWS = 4  # of a chain's table


def view_of(number=1, servers=1, workers=2, tables=(), first_clock=0, replicas=1, **more):
    """View (1, number): servers have the incarnations 1, 2, ..., workers 11, 12, ..."""
    ranks = range(workers) if isinstance(workers, int) else workers
    members = tuple(Member(f"server-{r}", "server", r, 1 + r) for r in range(servers))
    return View(
        1,
        number,
        members,
        tuple(Member(f"worker-{r}", "worker", r, 11 + r, first_clock=first_clock) for r in ranks),
        tables,
        tuple(place(each.cut(servers), members, replicas, 0) for each in tables),
        **more,
    )


def held_by(view, rank, table=0):
    """The rows of which a server is the head."""
    held = [placement.rows for placement in view.placements[table] if placement.chain[0] == rank]
    return held[0] if held else KeyRange(0, 0)


def table(rule=None, rows=4, fragment_rows=2, name="w", **more):
    """Rows of one int64, merged by their sum."""
    rule = rule or asp()
    return TableSpec(
        name, rows, (), "int64", consistency=rule, merge="sum", fragment_rows=fragment_rows, **more
    )


def ints(*numbers):
    """A buffer of int64."""
    return memoryview(array("q", numbers))


def as_bytes(*numbers):
    return ints(*numbers).cast("B")


class FakeStaged:
    def __init__(self, rows, keys, values):
        self.rows = rows
        self.keys = array("q", [0] * keys) if keys >= 0 else None
        self.values = array("q", [0] * values)
        buffers = [self.keys, self.values] if keys >= 0 else [self.values]
        self.views = [memoryview(each).cast("B") for each in buffers]

    def problem(self):
        return "" if self.keys is None or all(k in self.rows for k in self.keys) else "bad keys"

    def updates(self):
        keys = self.keys if self.keys is not None else range(self.rows.start, self.rows.stop)
        return list(zip(keys, self.values, strict=True))


class FakeShard:
    """Rows of one int64 each, added to."""

    def __init__(self, spec, held):
        self.spec, self.held = spec, held
        self.rows = array("q", [0] * len(held))
        self.merged = []  # the weights of each merge, in the order given

    def stage(self, rows, keys):
        return FakeStaged(rows, keys, len(rows) if keys < 0 else keys)

    def stage_keys(self, rows, keys):
        return FakeStaged(rows, keys, 0)

    def keep(self, clients):
        self.kept = sorted(clients)

    def apply(self, staged, lr):
        for key, value in staged.updates():
            self.rows[key - self.held.start] += value

    def write(self, staged):
        for key, value in staged.updates():
            self.rows[key - self.held.start] = value

    def merge(self, contributions):
        self.merged.append([weight for weight, _, _ in contributions])
        for _, lr, staged in contributions:
            self.apply(staged, lr)

    def read(self, rows):
        start = rows.start - self.held.start
        return memoryview(self.rows)[start : start + len(rows)].cast("B")

    def read_keys(self, staged):
        return as_bytes(*(self.rows[key - self.held.start] for key in staged.keys))


class Rig:
    """A machine, and what came out of it last."""

    def __init__(self, machine):
        self.machine = machine
        self.effects = []
        self.now = 0.0

    def handle(self, event):
        self.effects = self.machine.handle(event, self.now)
        self.machine.check()
        return self.effects

    def receive(self, sender, message, payload=b""):
        """A message with its payload, through `arriving` as a shell does it."""
        if not payload:
            return self.handle(Received(sender, message))
        arrival = self.machine.arriving(sender, message, len(payload))
        if isinstance(arrival, Discard):
            return self.handle(Received(sender, message))
        edge = 0
        for view in arrival.views:
            view[:] = payload[edge : edge + view.nbytes]
            edge += view.nbytes
        return self.handle(Received(sender, message, arrival))

    def sent(self, kind=object):
        return [each.message for each in self.sends(kind)]

    def sends(self, kind=object):
        return [e for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]

    def notes(self, kind):
        return [e.fields for e in self.effects if isinstance(e, Note) and e.kind == kind]

    def resolved(self):
        """Outcomes by request id."""
        return {e.request_id: e.outcome for e in self.effects if isinstance(e, Resolve)}


class ServerRig(Rig):
    """Server 0, and workers that ask it by rank."""

    def __init__(self, *tables, servers=1, workers=2, **more):
        super().__init__(ServerMachine(Session("server-0", "server"), FakeShard))
        if servers == 1:  # one fragment: what is streamed has tests of its own
            tables = tuple(replace(each, fragment_rows=each.rows) for each in tables)
        self.adopt(view_of(servers=servers, workers=workers, tables=tables, **more))

    @property
    def rows(self):
        return list(self.machine.shards[0].rows)

    def adopt(self, view):
        self.view = view
        return self.receive(SCHEDULER, NewView(view))

    def ask(self, rank, seq, payload=b"", view=None, forget_below=0, clock=0, **more):
        """A request of a worker's; returns the codes of the replies that go to it."""
        view = self.view.id if view is None else view
        request = Request(view, 11 + rank, seq, forget_below, clock, **more)
        self.receive(f"worker-{rank}", request, payload)
        return self.codes(f"worker-{rank}")

    def codes(self, to):
        return [s.message.code for s in self.sends(Reply) if s.to == to]


class WorkerRig(Rig):
    """Worker 0, and servers that answer it by number."""

    def __init__(self, *tables, servers=1, workers=2, replicas=1, **options):
        super().__init__(WorkerMachine(Session("worker-0", "worker"), WorkerOptions(**options)))
        self.view = view_of(servers=servers, workers=workers, replicas=replicas, tables=tables)
        self.receive(SCHEDULER, NewView(self.view))

    def ask(self, request_id, request):
        self.handle(Asked(request_id, request))
        return self.sent(Request)

    def answer(self, server, seq, code, payload=b"", view=None, **more):
        view = self.view.id if view is None else view
        reply = Reply(11, seq, view, code, payload=len(payload), **more)
        self.receive(f"server-{server}", reply, payload)


class Chain:
    """Servers of one arc of each table, whose messages to each other are delivered when a test
    says so."""

    def __init__(self, *rules, length=2, workers=2, save_every=0):
        tables = [table(rule, ROWS, ROWS, f"w{n}") for n, rule in enumerate(rules or (None,))]
        self.spec = tables[0]
        view = view_of(servers=length, workers=workers, tables=tuple(tables))
        placement = Placement(KeyRange(0, ROWS), tuple(range(length)))
        self.view = replace(view, placements=((placement,),) * len(tables))
        self.servers = [
            ServerMachine(
                Session(f"server-{r}", "server"),
                DenseShard,
                checkpoint_clocks=CheckpointClocks(save_every),
            )
            for r in range(length)
        ]
        self.under_way = []  # (from, effect) between servers
        self.told = []  # replies to workers
        self.saved = []  # (rank, table, clock, rows)
        for rank in range(length):
            self.receive(rank, SCHEDULER, NewView(self.view))
        self.deliver()

    def receive(self, rank, sender, message, payload=b"", now=0.0):
        machine, sink = self.servers[rank], None
        if payload:
            arrival = machine.arriving(sender, message, len(payload))
            if not isinstance(arrival, Discard):
                sink = arrival
                sink.fill(memoryview(payload))
        self._keep(rank, machine.handle(Received(sender, message, sink), now))

    def _keep(self, rank, effects):
        self.servers[rank].check()
        for each in effects:
            if isinstance(each, Send) and each.to.startswith("server"):
                payload = b"".join(bytes(buffer) for buffer in each.buffers)
                self.under_way.append((rank, each.to, each.message, payload))
            elif isinstance(each, Save):
                rows = each.state["rows"].view(-1).tolist()
                self.saved.append((rank, each.spec.name, each.clock, rows))
            elif isinstance(each, Send) and isinstance(each.message, Reply):
                rows = memoryview(b"".join(bytes(b) for b in each.buffers)).cast("q").tolist()
                self.told.append((each.to, each.message.seq, each.message.code, rows))

    def tick(self, rank, now):
        self._keep(rank, self.servers[rank].handle(Ticked(), now))

    def deliver(self, kind=object, times=1):
        """Deliver what is under way, and what comes of it."""
        while any(isinstance(each[2], kind) for each in self.under_way):
            at = next(i for i, each in enumerate(self.under_way) if isinstance(each[2], kind))
            source, to, message, payload = self.under_way.pop(at)
            for _ in range(times):
                self.receive(int(to[-1]), f"server-{source}", message, payload)

    def ask(self, rank, worker, seq, *values, table=0, **more):
        """A request to a server; returns what workers were told since."""
        self.told = []
        payload = as_bytes(*values) if values else b""
        if values:
            more["pushes"] = (Part(table, 0, ROWS),)
        below, clock = more.pop("forget_below", 0), more.pop("clock", 0)
        request = Request(self.view.id, 11 + worker, seq, below, clock, **more)
        self.receive(rank, f"worker-{worker}", request, payload)
        return [(to, n, code) for to, n, code, _ in self.told]

    def rows(self, rank, table=0):
        return self.servers[rank].shards[table].rows.view(-1).tolist()

    def without(self, *dead):
        """A view in which these servers are gone."""
        before = self.view
        living = tuple(m for m in before.servers if m.rank not in dead)
        placements = tuple(
            tuple(replace(a, chain=tuple(r for r in a.chain if r not in dead)) for a in placements)
            for placements in before.placements
        )
        self.view = replace(before, number=before.number + 1, servers=living, placements=placements)
        self.under_way = [each for each in self.under_way if each[0] not in dead]
        self.told = []
        for member in living:
            self.receive(member.rank, SCHEDULER, NewView(self.view))


class SchedulerRig(Rig):
    """A scheduler of one server and two workers, and members that talk to it by name."""

    def __init__(self, journal=None, **more):
        asked = {"servers": 1, "workers": 2, "silence_s": 10, "broken_s": 2, **more}
        super().__init__(SchedulerMachine(SchedulerOptions(**asked), journal))
        self.journal = journal

    def handle(self, event):
        super().handle(event)
        records = [each.record for each in self.effects if isinstance(each, Persist)]
        self.journal = records[-1] if records else self.journal
        return self.effects

    def at(self, now):
        """Ticks until then, as its deadlines say; `effects` has what came of all of them."""
        effects, before = [], None
        while self.machine._begun and before != (due := self.machine.deadline() or now) < now:
            self.now, before = max(self.now, due), due
            effects += self.handle(Ticked())
        self.now = now
        self.effects = effects + self.handle(Ticked())
        return self.effects

    def join(self, *names):
        for name in names:
            role = name.split("-")[0]
            self.receive(name, Join(name, role, "", "here"))
            if self.machine._views._proposal is not None:
                self.promise()

    def promise(self, clocks=(), open_round=0):
        frozen = Frozen(
            self.machine._views._proposal.number, clocks, (GroupProgress("", open_round),)
        )
        for node, member in list(self.machine.members.by_id.items()):
            if member.role == "server":
                self.receive(node, frozen)

    def told(self, kind):
        """Who was told that kind of thing, by node."""
        return {send.to: send.message for send in self.sends(kind)}

    def why(self):
        self.receive("somebody", StatusRequest())
        return list(self.told(StatusReply)["somebody"].waits)

    def restart(self):
        return SchedulerRig(self.journal, **asdict(self.machine.options))

    @property
    def stop(self):
        return next(each for each in self.effects if isinstance(each, Stop))

    @property
    def view(self):
        return self.machine.view


@pytest.fixture(scope="session")
def rigs():
    """The vocabulary of these tests."""
    return SimpleNamespace(
        Chain=Chain,
        KeyRange=KeyRange,
        FakeShard=FakeShard,
        Rig=Rig,
        SchedulerRig=SchedulerRig,
        ServerRig=ServerRig,
        WorkerRig=WorkerRig,
        as_bytes=as_bytes,
        held_by=held_by,
        ints=ints,
        table=table,
        view_of=view_of,
    )


@pytest.fixture
def worker(rigs):
    """One server, an asynchronous table of four rows."""
    return rigs.WorkerRig(rigs.table())


@pytest.fixture
def synchronous(rigs):
    """Two servers, a table that settles at the close of rounds."""
    return rigs.WorkerRig(rigs.table(bsp()), servers=2)


@pytest.fixture
def push(rigs):
    return (PushOp("w", KeyRange(0, 4), rigs.as_bytes(1, 2, 3, 4)),)


@pytest.fixture
def out(rigs):
    return rigs.as_bytes(0, 0, 0, 0)


@pytest.fixture
def pull(out):
    return (PullOp("w", KeyRange(0, 4), out),)


@pytest.fixture
def server(rigs):
    """Two workers, an asynchronous table of four rows."""
    return rigs.ServerRig(rigs.table())


@pytest.fixture
def values(rigs):
    return rigs.as_bytes(1, 2, 3, 4)
