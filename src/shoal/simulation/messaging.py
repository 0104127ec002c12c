"""How messages travel between simulated nodes: connections, the network, payloads in two parts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from shoal.protocol.machine import Discard, Event, PeerLost, Received, Send, Sink
from shoal.protocol.messages.base import Message
from shoal.protocol.views import NodeId
from shoal.simulation.checkers.payloads import changed_payload, evidence
from shoal.simulation.connections import Connections
from shoal.simulation.lending import SCRIBBLED, Envelope, Lending
from shoal.simulation.network import Network
from shoal.simulation.node import SimNode
from shoal.transport.wire import encode, message_of

OF_STREAMS = {"retransmission", "back-pressure", "blackhole", "half-open", "connect that hangs"}
RESET_S = 0.001  # until a node that sends on a half-open connection gets a reset


class Host(Protocol):
    """The part of the world that messages need."""

    now: float
    nodes: dict[NodeId, SimNode]
    events: int
    coverage: Counter[str]
    network: Network
    drop: Callable[[NodeId, NodeId, Message], bool]
    cut_short: Callable[[NodeId, NodeId, Message], bool]
    phase: Callable[[], str]

    def at(self, when: float, action: Callable[[], object]) -> None: ...
    def handle(self, sim: SimNode, event: Event) -> None: ...
    def handle_now(self, sim: SimNode, event: Event) -> None: ...
    def is_paused(self, sim: SimNode, again: Callable[[], None]) -> bool: ...
    def crash(self, node: NodeId) -> None: ...
    def note_line(self, line: str) -> None: ...


class Messaging:
    """Sends messages and delivers them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._connections = Connections()
        self._lending = Lending()
        self._half_read: dict[tuple[NodeId, NodeId], deque[Envelope]] = {}  # behind a payload

    # ------------------------------------------------------------------ connections

    def died(self, node: NodeId, tell: bool) -> None:
        """Note that a node died; its peers hear of it now, or once they send to a restarted one."""
        streams = self._host.network.options.streams
        self._connections.died(node, tell or not streams)
        self._lending.died(node)

    def hang(self, node: NodeId, until: float) -> None:
        """Leave attempts to connect with a node unanswered until a time."""
        self._connections.hang(node, until)

    def connected(self, one: NodeId, other: NodeId) -> bool:
        """Return whether two nodes are connected."""
        return self._connections.connected(one, other)

    def broke(self, one: NodeId, other: NodeId) -> None:
        """Break a connection: the messages in flight are lost, and the next one reconnects."""
        self._connections.broke(one, other)
        self._host.network.reconnected(one, other)
        for link in ((one, other), (other, one)):
            self._half_read.pop(link, None)
            self._lending.withdraw(*link)

    def detach(self, source: NodeId, target: NodeId) -> None:
        """Copy the buffers of the messages from one node to another that have not arrived."""
        self._lending.detach(source, target)

    def hang_up(self, source: NodeId, target: NodeId) -> None:
        """Close a connection if its target has not read all that the source has sent."""
        host = self._host
        if self._lending.lends(source, target):
            self.broke(source, target)
            self._lending.gives_up(source, target)
            host.coverage["hung up"] += 1
            for node, peer in ((source, target), (target, source)):
                host.at(host.now, partial(host.handle, host.nodes[node], PeerLost(peer)))

    def look(self, node: NodeId) -> None:
        """Let a node see the payloads that it borrows as they are in their senders' memory now."""
        self._lending.look(node)

    # ------------------------------------------------------------------ messages

    def send(self, sim: SimNode, effect: Send) -> None:
        host, source, target, message = self._host, sim.node, effect.to, effect.message
        nodes: Mapping[NodeId, SimNode] = host.nodes
        line = f"{source} -> {target}  {message.describe()}"
        leaves = None
        if target in nodes and nodes[target].alive:
            if self._connections.half_open(source, target):
                self._hit(["half-open"], message)
                host.note_line(f"{line}   LOST")
                reset = partial(host.handle, sim, PeerLost(target))
                host.at(host.now + RESET_S, reset)
                return
            connects = partial(host.network.connects_s, source, target)
            leaves = self._connections.reach(source, sim.machine, target, host.now, connects)
        if leaves is None:
            if self._connections.hangs(source, target, host.now):
                self._hit(["connect that hangs"], message)
            host.coverage["unreachable"] += 1
            host.note_line(f"{line}   UNREACHABLE")
            return
        nbytes = sum(buffer.nbytes for buffer in effect.buffers)
        frame = encode(message, nbytes)
        if host.drop(source, target, message):
            host.note_line(f"{line}   LOST")
            return
        arrivals, faults = host.network.send(
            leaves, source, target, len(frame) + nbytes, type(message).__name__
        )
        self._hit(faults, message)
        host.note_line(line if arrivals else f"{line}   LOST")
        breaks = self._connections.breaks(source, target)
        envelope = Envelope(source, target, frame, effect.buffers, nbytes, breaks)
        if arrivals:
            self._lending.lend(envelope, effect.guard)
        for at in arrivals:
            host.at(at, partial(self._arrive, envelope))

    def _arrive(self, envelope: Envelope) -> None:
        host, source, nbytes = self._host, envelope.source, envelope.nbytes
        sim = host.nodes.get(envelope.target)
        if sim is None or not sim.alive or sim.stopped or self._is_cut(envelope):
            return
        behind = self._half_read.get((source, envelope.target))
        if behind is not None:  # on a stream no message overtakes a payload
            behind.append(envelope)
            return
        if host.is_paused(sim, partial(self._arrive, envelope)):
            return
        message = message_of(envelope.frame)
        if not nbytes:
            host.handle(sim, Received(source, message))
            return
        arrival = sim.machine.arriving(source, message, nbytes)
        if isinstance(arrival, Discard):
            host.handle(sim, Received(source, message))
            return
        if host.network.options.streams:
            self._half_read[source, envelope.target] = deque()
        share, rest, faults = host.network.second_part(
            source, envelope.target, type(message).__name__
        )
        first = int(nbytes * share)  # it may end within a fragment or a part
        self._pour(sim, envelope, message, arrival, 0, first)
        self._hit(faults, message)
        host.at(host.now + rest, partial(self._finish, sim, envelope, message, arrival, first))
        if host.cut_short(source, envelope.target, message):
            host.crash(source)

    def _finish(
        self, sim: SimNode, envelope: Envelope, message: Message, sink: Sink, first: int
    ) -> None:
        host, source = self._host, envelope.source
        if not sim.alive or sim.stopped or self._is_cut(envelope):
            return
        if host.is_paused(sim, partial(self._finish, sim, envelope, message, sink, first)):
            return
        behind = self._half_read.pop((source, envelope.target), ())
        sender = host.nodes.get(source)
        if sender is not None and not sender.alive:
            host.coverage["sender crashed in mid-payload"] += 1
            host.handle(sim, PeerLost(source))
            return
        self._pour(sim, envelope, message, sink, first, envelope.nbytes)
        if sink.borrows and not sink.revoked:
            self._lending.borrow(envelope, sink)
            host.coverage["borrowed payload"] += 1
        self._lending.arrived(envelope)
        if not sink.by_view or sink.revoked:
            self._come_in(sim, envelope, message, sink)
        for each in behind:
            host.at(host.now, partial(self._arrive, each))

    def _come_in(self, sim: SimNode, envelope: Envelope, message: Message, sink: Sink) -> None:
        """Have a node handle a payload, or a part of one; check that it uses no changed payload.

        The receiver may ignore a payload that has changed: one of an old view, or a repeated one.
        """
        before = evidence(sim.machine, envelope.source, message)
        self._host.handle_now(sim, Received(envelope.source, message, sink))
        if envelope.changed and evidence(sim.machine, envelope.source, message) != before:
            raise changed_payload(envelope.source, envelope.target, message)

    def _pour(
        self, sim: SimNode, envelope: Envelope, message: Message, sink: Sink, start: int, stop: int
    ) -> None:
        """Copy bytes of a payload into its sink, unless the sink is revoked or borrows the payload.

        A view that comes as a whole is lent instead, if its sink allows that.
        """
        if sink.borrows:
            return
        edge = 0
        for number, view in enumerate(list(sink.views)):
            first, last = max(start, edge), min(stop, edge + view.nbytes)
            if first < last and not sink.revoked:
                data = envelope.read(first, last)
                lent = number < sink.lends and last - first == view.nbytes
                memory = bytearray(data)
                if lent:
                    sink.views[number] = memoryview(memory).toreadonly()
                else:
                    view[first - edge : last - edge] = data
                if sink.by_view and last == edge + view.nbytes:
                    sink.landed += 1
                    self._come_in(sim, envelope, message, sink)
                if lent:
                    memory[:] = SCRIBBLED * len(memory)
                    if not sink.revoked:
                        sink.views[number] = view
                        view[:] = memory  # nothing was copied there
            edge += view.nbytes

    def _hit(self, faults: list[str], message: Message) -> None:
        self._host.coverage.update(f"{fault} of {type(message).__name__}" for fault in faults)
        for fault in OF_STREAMS.intersection(faults):
            self._host.coverage[f"{fault} ({self._host.phase()})"] += 1

    def _is_cut(self, envelope: Envelope) -> bool:
        """Return whether the connection broke while a message was in flight."""
        return envelope.breaks != self._connections.breaks(envelope.source, envelope.target)
