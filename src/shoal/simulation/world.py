"""The world: all machines of a cluster in one process, with virtual time and a seeded network.

Each worker runs a *program*: a generator that yields the requests of `protocol.requests` (and
`Sleep`) and is sent their outcomes, as `shoal.client` drives it on a real cluster. When the program
returns, its node leaves, like a process that exits. Every message is serialised. Payloads arrive in
two halves, so that a crash can come between them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from shoal.errors import InvariantBroken, ShoalError
from shoal.protocol.machine import (
    Append,
    Asked,
    AwaitRoom,
    Detach,
    Effects,
    Event,
    HangUp,
    HasRoom,
    Machine,
    Note,
    Offload,
    Outcome,
    PeerLost,
    Persist,
    Received,
    Redial,
    Resolve,
    Save,
    Send,
    Stop,
    Ticked,
)
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.requests import Forget, Start, Wait
from shoal.protocol.server.notes import Declined
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId
from shoal.simulation.draws import Draws
from shoal.simulation.messaging import Messaging
from shoal.simulation.network import Network, NetworkOptions
from shoal.simulation.node import Program, SimNode, Sleep
from shoal.simulation.offloading import OffloadedWork
from shoal.simulation.trace import Trace


class World:
    """The network, the clock and the disks of all machines of a cluster.

    draws:   the generators of the seed
    closed:  the nodes of which a connection was closed: the node died, or the connection broke

    Hooks for checkers:

    on_note:   called with (node, note)
    on_save:   called with the rows of a checkpoint
    on_left_out:  called with the node whose disk had no room for the rows of a checkpoint
    on_crash:  called with the node that has crashed
    on_event:  called with the node, after an event and its effects
    on_send:   called with (node, target, message) before the network delivers or loses it

    Hooks for faults, which return whether the fault happens:

    crash_at:   (node, effect): crash the node before that effect
    cut_short:  (source, target, message): crash the sender half-way through a payload
    drop:       (source, target, message): lose the message

    phase:             the cluster's phase, for coverage
    event_s:           (node, event): the time that the event takes
    write_s:           the time that the next write to a slow disk takes
    """

    def __init__(
        self, draws: Draws, options: NetworkOptions | None = None, keep_lines: bool = False
    ) -> None:
        self.draws = draws
        self.network = Network(options or NetworkOptions(), self.draws)
        self.now = 0.0
        self.nodes: dict[NodeId, SimNode] = {}
        self.events = 0
        self.coverage: Counter[str] = Counter()
        self.closed: set[NodeId] = set()
        self.trace = Trace(keep_lines)
        self.on_note: Callable[[NodeId, Note], None] = lambda node, note: None
        self.on_save: Callable[[Save], None] = lambda save: None
        self.on_left_out: Callable[[NodeId], None] = lambda node: None
        self.on_crash: Callable[[NodeId], None] = lambda node: None
        self.on_event: Callable[[SimNode], None] = lambda node: None
        self.on_send: Callable[[SimNode, NodeId, Message], None] = lambda node, to, message: None
        self.crash_at: Callable[[SimNode, object], bool] = lambda node, effect: False
        self.cut_short: Callable[[NodeId, NodeId, Message], bool] = lambda *_: False
        self.phase: Callable[[], str] = lambda: ""
        self.event_s: Callable[[NodeId, Event], float] = lambda node, event: 0.0
        self.write_s: Callable[[], float] = lambda: 0.0
        self.drop: Callable[[NodeId, NodeId, Message], bool] = lambda source, to, message: False
        self._messaging = Messaging(self)
        self._work = OffloadedWork(self.draws)
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    # ------------------------------------------------------------------ public

    def add(self, node: NodeId, machine: Machine, program: Program | None = None) -> SimNode:
        """Start a node now; a server without an address gets one."""
        session = getattr(machine, "session", None)
        if isinstance(session, Session) and session.role == "server" and not session.address:
            session.announce(f"sim://{node}")
        sim = SimNode(node, machine, program, self.draws.seed)
        previous = self.nodes.get(node)
        if previous is not None:
            sim.disk = previous.disk
        self.nodes[node] = sim
        self.at(self.now, lambda: self.handle(sim, Ticked()))
        if program is not None:
            self.at(self.now, lambda: self._advance(sim, 0))
        return sim

    @property
    def at_work(self) -> bool:
        """Whether offloaded work is being done."""
        return self._work.at_work

    def living(self, role: str = "") -> list[NodeId]:
        """Return the nodes that run, of one role or of all."""
        nodes = self.nodes.items()
        return [n for n, sim in nodes if n.startswith(role) and sim.alive and not sim.stopped]

    def crash(self, node: NodeId, tell: bool = True) -> None:
        """Kill a node: its memory is lost, its disk stays."""
        sim = self.nodes[node]
        if not sim.alive:
            return
        sim.alive = False
        self.note_line(f"crash {node}")
        self.closed.add(node)
        if sim.program is not None:
            sim.program.close()
        self._messaging.died(node, tell)
        self.on_crash(node)
        if tell:
            for other in list(self.nodes.values()):
                self.at(self.now + 0.001, partial(self.handle, other, PeerLost(node)))

    def pause(self, node: NodeId, until: float, busy: bool = False) -> None:
        """Stop a node, as SIGSTOP does: its events are handled when it continues.

        busy:  whether only the node's loop stops, and its process sends heartbeats
        """
        sim = self.nodes[node]
        if self.now >= sim.paused_until:
            sim.paused_at = self.now
        sim.paused_until = max(until, sim.paused_until)
        if not busy:
            sim.stopped_until = max(until, sim.stopped_until)
        self.note_line(f"{node} is {'busy' if busy else 'stopped'} until {until:.3f}")
        self.at(sim.paused_until, partial(self._overdue, sim))

    def _overdue(self, sim: SimNode) -> None:
        """Handle an overdue tick of a node that continues, before the messages that came since."""
        due = sim.machine.deadline() if sim.alive and not sim.stopped else None
        if due is not None and due <= self.now:
            self.handle(sim, Ticked())

    def ask(self, node: NodeId, request: object) -> None:
        """Hand a request to a machine without waiting for the answer."""
        sim = self.nodes[node]
        self.handle(sim, Asked(next(sim.tickets), request))

    def break_connection(self, one: NodeId, other: NodeId, *, closed: bool = True) -> None:
        """Lose the messages in flight between two nodes; the next message reconnects.

        closed:  whether a host has closed it; otherwise its path was silent and it is replaced
        """
        self._messaging.broke(one, other)
        if closed:
            self.closed |= {one, other}
        self.note_line(f"connection of {one} and {other} {'breaks' if closed else 'is replaced'}")
        for node, peer in ((one, other), (other, one)):
            if node in self.nodes:
                self.handle(self.nodes[node], PeerLost(peer, closed=closed))

    def connected(self, one: NodeId, other: NodeId) -> bool:
        """Return whether two nodes are connected."""
        return self._messaging.connected(one, other)

    def _redial(self, one: NodeId, other: NodeId) -> None:
        """Replace a connection on which nothing arrives, if the peer accepts a new one."""
        peer = self.nodes.get(other)
        if peer is None or not peer.alive or peer.stopped or self.now < peer.paused_until:
            return
        if not self.connected(one, other) or self.network.is_cut(self.now, one, other):
            return
        if not self.network.carries(self.now, one, other):
            self.coverage["redialled"] += 1
            at = self.now + self.network.connects_s(one, other)
            self.at(at, partial(self.break_connection, one, other, closed=False))

    def hang_connects(self, node: NodeId, until: float) -> None:
        """Leave attempts to connect with a node unanswered until a time."""
        self._messaging.hang(node, until)

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Run `action` at a virtual time."""
        heappush(self._heap, (when, next(self._order), action))

    def run(self, until: float = float("inf"), most_events: int = 1_000_000) -> None:
        """Run until nothing is left to do, or a limit of time or events is reached."""
        while self._heap and self.events < most_events:
            when, _, action = heappop(self._heap)
            if when > until:
                heappush(self._heap, (when, next(self._order), action))
                self.now = until
                return
            self.now = when
            action()

    # ------------------------------------------------------------------ machines

    def handle(self, sim: SimNode, event: Event) -> None:
        """Have a node handle an event, now or when it continues."""
        if not self.is_paused(sim, partial(self.handle, sim, event)):
            self.handle_now(sim, event)

    def handle_now(self, sim: SimNode, event: Event) -> None:
        """Have a node handle an event at once, such as a part of a payload or a program's request.

        Such an event belongs to the one before, so that it does not wait for the node to continue.
        """
        if not sim.alive or sim.stopped:
            return
        self.events += 1
        sim.turns += 1
        if isinstance(event, Received) and (problem := sim.machine.problem_of(event)):
            raise InvariantBroken(f"{event} is not lawful: {problem}")  # all here are members
        sim.works_until = max(sim.works_until, self.now) + self.event_s(sim.node, event)
        self._messaging.look(sim.node)
        if self._perform(sim, sim.machine.handle(event, self.now)):
            sim.machine.check()
            self.on_event(sim)
            self._schedule_tick(sim)

    def _perform(self, sim: SimNode, effects: Effects) -> bool:
        """Carry out effects; return whether the node is alive after that."""
        for index, effect in enumerate(effects):
            if sim.holds(effect, self.now):
                if len(sim.held) == 1:
                    self.at(sim.disk.full_until, partial(self._room_on_disk, sim))
                continue
            if self.crash_at(sim, effect):
                self.crash(sim.node)
                return False
            match effect:
                case Send():
                    self.on_send(sim, effect.to, effect.message)
                    self._messaging.send(sim, effect)
                case Resolve(request_id, outcome):
                    sim.resolved(request_id, outcome)
                    if sim.waits_for == request_id:
                        self._wake(sim, self.now)
                case Persist() | Append():
                    sim.disk.write(effect)
                    if self.now < sim.disk.slow_until:  # the loop waits for it
                        sim.works_until = max(sim.works_until, self.now) + self.write_s()
                        sim.held.extend(effects[index + 1 :])
                        self.at(sim.works_until, partial(self._room_on_disk, sim))
                        return True
                case Detach(to):
                    self._messaging.detach(sim.node, to)
                case HangUp(to):
                    self._messaging.hang_up(sim.node, to)
                case Redial(to):
                    self._redial(sim.node, to)
                case Save() if self.now < sim.disk.full_until:
                    self.on_left_out(sim.node)
                case Save():
                    self.on_save(effect)
                case AwaitRoom(to):
                    at = self.now + self._work.seconds(sim.node, effect)
                    self.at(at, partial(self.handle, sim, HasRoom(to)))
                case Offload():
                    at = self.now + self._work.seconds(sim.node, effect)
                    self.at(at, partial(self._offloaded, sim, effect))
                case Note():
                    self.trace.note(self.now, sim.node, effect)
                    self.coverage[f"note {effect.kind}"] += 1
                    sim.notes[effect.kind] += 1
                    if isinstance(effect, Declined):
                        self.coverage[f"declined {effect.verdict}"] += 1
                    self.on_note(sim.node, effect)
                case Stop(error):
                    sim.stopped = True
                    sim.error = error
                    if sim.node == SCHEDULER:  # its process ends, which closes its connections
                        for other in list(self.nodes.values()):
                            gone = partial(self.handle, other, PeerLost(SCHEDULER))
                            self.at(self.now + 0.001, gone)
                    self.note_line(f"{sim.node} stops" + (f": {error.message}" if error else ""))
        return True

    def _room_on_disk(self, sim: SimNode) -> None:
        if sim.alive and not self.is_paused(sim, partial(self._room_on_disk, sim)):
            held, sim.held = sim.held, deque()
            self._perform(sim, [*held])

    def _offloaded(self, sim: SimNode, effect: Offload) -> None:
        if sim.alive and not sim.stopped:
            self.handle(sim, self._work.result(effect))

    def _schedule_tick(self, sim: SimNode) -> None:
        at = sim.machine.deadline()
        if at is None or sim.stopped:
            return
        at = max(at, self.now)
        if sim.tick_at is not None and self.now < sim.tick_at <= at:
            return  # an earlier tick will look again
        sim.tick_at = at
        self.at(at, lambda: self._tick(sim, at))

    def _tick(self, sim: SimNode, at: float) -> None:
        if sim.tick_at != at or self.is_paused(sim, lambda: self._tick(sim, at)):
            return
        sim.tick_at = None
        due = sim.machine.deadline()
        if due is not None and due <= self.now:
            self.handle(sim, Ticked())
        else:
            self._schedule_tick(sim)

    def is_paused(self, sim: SimNode, again: Callable[[], None]) -> bool:
        """Return whether a node is paused or at work; if so, do `again` when it is not."""
        if self.now < sim.paused_until:
            self.at(sim.paused_until, again)
            return True
        if sim.takes_next or not (self.now < sim.works_until or sim.inbox):
            return False
        sim.inbox.append(again)
        if len(sim.inbox) == 1:
            self.at(sim.works_until, partial(self._take_next, sim))
        return True

    def _take_next(self, sim: SimNode) -> None:
        """Have a node do what has arrived while it was at work, one after the other."""
        while sim.inbox and self.now >= sim.works_until:
            sim.takes_next = True
            sim.inbox.popleft()()
            sim.takes_next = False
        if sim.inbox:
            self.at(sim.works_until, partial(self._take_next, sim))

    # ------------------------------------------------------------------ programs

    def _wake(self, sim: SimNode, at: float) -> None:
        turn = sim.turn
        self.at(at, lambda: self._advance(sim, turn))

    def _advance(self, sim: SimNode, turn: int) -> None:
        """Run a node's program until it has to wait."""
        if not sim.alive or sim.program is None or turn != sim.turn:
            return
        if self.is_paused(sim, lambda: self._advance(sim, turn)):
            return
        sim.turn += 1
        value: Any = None
        if sim.waits_for is not None:
            value = sim.outcomes.pop(sim.waits_for)
            sim.waits_for = None
        while sim.alive:
            try:
                request = sim.program.send(value)
            except StopIteration:
                sim.program = None
                sim.stopped = True
                self.note_line(f"{sim.node} leaves")
                return
            match request:
                case Sleep(seconds):
                    self._wake(sim, self.now + seconds)
                    return
                case Start(asked):
                    value = next(sim.tickets)
                    self._ask(sim, value, asked)
                    continue
                case Forget():
                    if sim.door is not None:
                        sim.door.forget(request)
                    value = Outcome()
                    continue
                case Wait(ticket):
                    sim.waits_for = ticket
                case _:
                    sim.waits_for = next(sim.tickets)
                    self._ask(sim, sim.waits_for, request)
            if sim.waits_for not in sim.outcomes:
                if sim.stopped:
                    sim.program.close()
                return
            value = sim.outcomes.pop(sim.waits_for)
            sim.waits_for = None
            sim.turn += 1

    def _ask(self, sim: SimNode, request_id: int, request: object) -> None:
        """Have a node's machine handle a request of its program, as a client sends it."""
        try:
            ready = sim.ready(request_id, request)
        except ShoalError as error:
            sim.resolved(request_id, Outcome(error=error))
        else:
            self.handle_now(sim, Asked(request_id, ready))

    def note_line(self, line: str) -> None:
        """Add a line to the event trace: of this world, a checker or a fault injector."""
        self.trace.add(self.now, line)
