"""Node: the shell that gives one state machine a transport, a clock and a disk.

It has one loop: the thread that calls `poll` does the socket work, and has the machine to itself.
Threads of its own connect to peers (`node.dialer`), do long work (`node.offloader`) and send the
heartbeats of a member's process (`node.heartbeat`). A server or scheduler process is
`Node.run()`; a worker's caller polls while it waits (`node.driver`).
"""

from __future__ import annotations

import logging
import os
import select
from collections import Counter, deque
from collections.abc import Callable
from time import monotonic

from shoal.errors import (
    BadContent,
    HandshakeFailed,
    HandshakeRefused,
    PeerFault,
    ShoalError,
    WireError,
)
from shoal.node.dialer import Dialer
from shoal.node.disk import Disk
from shoal.node.dropping import Drops
from shoal.node.heartbeat import HeartbeatThread, LoopProgress
from shoal.node.offloader import Offloader
from shoal.node.paths import Paths
from shoal.node.peer_errors import PeerErrors, peer_fault
from shoal.node.poller import Poller
from shoal.node.slow_readers import SlowReaders
from shoal.node.strangers import Strangers
from shoal.protocol.machine import (
    Arrival,
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
    Received,
    Redial,
    Resolve,
    Save,
    Send,
    Sink,
    Stop,
    Ticked,
)
from shoal.protocol.messages.base import SCHEDULER, Message
from shoal.protocol.messages.handshake import Malformed
from shoal.protocol.views import NodeId
from shoal.transport import Connection, Identity, Listener, transport_for

messages_log, connections_log = map(logging.getLogger, ("shoal.messages", "shoal.connections"))
messages_log.setLevel(logging.INFO)  # DEBUG is asked for by name: there is a line a message
connections_log.setLevel(logging.INFO)

LOOK_S = 0.25  # between looks at connections that may be stalled, slow or of strangers


class Node:
    """Runs one state machine.

    Args:
        machine: the machine.
        me: this node's identity, for handshakes.
        scheduler: the scheduler's address, for members.
        disk: the disk, which receives what the machine has to keep.
        resolve: the function that receives the answers to `Asked`.
        on_note: the function that receives the machine's notes (event log, counters).
        on_save: the function that receives rows for checkpoints.
        drops: the draws of the messages that are not sent.
    """

    def __init__(
        self,
        machine: Machine,
        me: Identity,
        scheduler: str = "",
        disk: Disk | None = None,
        resolve: Callable[[int, Outcome], None] = lambda request_id, outcome: None,
        on_note: Callable[[Note], None] = lambda note: None,
        on_save: Callable[[Save], None] = lambda save: None,
        drops: Drops | None = None,
    ) -> None:
        self.machine = machine
        self.me = me
        self.counters: Counter[str] = Counter()
        self.stopped = False
        self.error: ShoalError | None = None
        self._errors = PeerErrors(self.counters)
        self._scheduler = scheduler
        self._disk = disk
        self._resolve = resolve
        self.on_note = on_note
        self._on_save = on_save
        self._drops = drops
        self._tells = messages_log.isEnabledFor(logging.DEBUG)
        self._poller = Poller()
        self._listener: Listener | None = None
        self._connections: dict[int, Connection] = {}
        self._peers: dict[NodeId, Connection] = {}
        self._writing: set[int] = set()
        self._strangers = Strangers()
        self._look_at = 0.0
        self._paths = Paths()
        self._asked: deque[object] = deque()
        self._held: dict[tuple[NodeId, type], Send] = {}  # until the end of the turn
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._dialer = Dialer(me, self.wake)
        self._offloader = Offloader(self.wake)
        self._slow_readers = SlowReaders()
        self._progress = LoopProgress()
        self._heartbeats: HeartbeatThread | None = None
        self._poller.register(self._wake, select.EPOLLIN)
        self._closed = False

    def listen(self, address: str) -> str:
        """Listen for peers; return the address that they use."""
        self._listener = transport_for(address).listen(address, self.me)
        self._poller.register(self._listener.fileno(), select.EPOLLIN)
        return self._listener.address

    def send_heartbeats(self, incarnation: Callable[[], int]) -> None:
        """Start a thread that tells the scheduler that this member's process lives."""
        self._heartbeats = HeartbeatThread(self.me, self._scheduler, self._progress, incarnation)
        self._heartbeats.start()

    def handle(self, event: Event) -> None:
        """Pass an event to the machine and perform its effects."""
        self.perform(self.machine.handle(event, monotonic()))

    def poll(self, timeout_s: float) -> None:
        """Wait for work for `timeout_s` seconds at most, and do it."""
        if self._held:
            self._send_held()
        now = monotonic()
        self._progress.turn()
        due = self.machine.deadline()
        if due is not None and due - now < timeout_s:
            timeout_s = max(0.0, due - now)
        readers = self._slow_readers
        if readers.awaited or self._strangers.callers or self._paths.called or self._disk:
            timeout_s = min(timeout_s, 0.0 if readers.look_now else LOOK_S)
        for fileno, mask in self._poller.turn(timeout_s, now):
            if (connection := self._connections.get(fileno)) is not None:
                self._serve(connection, mask)
            elif fileno == self._wake:
                os.eventfd_read(self._wake)
                self._take_reached()
                for done in self._offloader.finished():
                    if not self.stopped:
                        self.handle(done)
            elif self._listener is not None and fileno == self._listener.fileno():
                self._accept()
        for caller in self._strangers.resumed(now):
            self._poller.modify(caller.fileno(), select.EPOLLIN)
            self._serve_stranger(caller)
        if self._disk is not None:
            self.perform(self._disk.due(now))
        if readers.awaited:
            self._look_at_readers(now)
        if now >= self._look_at:
            self._look_at_connections(now)
        if due is not None and due <= monotonic() and not self.stopped:
            self.handle(Ticked())

    def stop(self, error: ShoalError) -> None:
        """Stop because of an error: handle no more events."""
        self.stopped, self.error = True, error

    def run(self) -> None:
        """Poll until the machine stops; raise its error."""
        self.handle(Ticked())
        while not self.stopped:
            self.poll(3600.0)
            while self._asked and not self.stopped:
                self.handle(Asked(0, self._asked.popleft()))
        self.linger()
        if self.error is not None:
            raise self.error

    def ask(self, request: object) -> None:
        """Queue a request to the machine; safe in signal handlers."""
        self._asked.append(request)
        self.wake()

    def wake(self) -> None:
        """Make a `poll` of another thread return."""
        os.eventfd_write(self._wake, 1)

    def linger(self, limit_s: float = 1.0) -> None:
        """Send the backlog of all connections, for `limit_s` seconds at most."""
        self._send_held()
        until = monotonic() + limit_s
        while ((waiting := self.unsent()) or self._dialer.busy) and monotonic() < until:
            self._poller.wait(0.01, monotonic())
            self._take_reached()
            for connection in waiting:
                self._serve(connection, select.EPOLLIN | select.EPOLLOUT)

    def unsent(self) -> list[Connection]:
        """Return the connections with unsent bytes."""
        return [each for each in self._connections.values() if each.backlog]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self.stopped = True
        if self._heartbeats is not None:
            self._heartbeats.close()
        self._offloader.close()
        self._dialer.close()
        while self._connections:
            self._connections.popitem()[1].close()
        if self._listener is not None:
            self._listener.close()
        self._poller.close()
        os.close(self._wake)

    # ------------------------------------------------------------------ connections

    def _accept(self) -> None:
        assert self._listener is not None
        connection = self._listener.accept()
        if connection is None:
            return
        if not connection.peer:
            oldest = self._strangers.admit(connection, monotonic())
            if oldest is not None:
                self._errors.count(
                    HandshakeFailed("too many callers have proved nothing", reason="too many"),
                    oldest,
                )
                self._drop(oldest)
        self._add(connection)

    def _look_at_readers(self, now: float) -> None:
        """Tell the machine which peers have room again; drop those that read nothing."""
        for to, stuck in self._slow_readers.look(self._peers, now):
            if stuck is None:
                self.handle(HasRoom(to))
            else:
                self.counters["slow reader"] += 1
                self._drop(stuck)

    def _look_at_connections(self, now: float) -> None:
        """Drop the callers whose time is over, and replace paths that seem cut."""
        self._look_at = now + LOOK_S
        for connection, late in self._strangers.over(now):
            if late is not None:
                self._errors.count(late, connection)
            self._drop(connection)
        for stalled in self._paths.stalled(self._peers):
            self.counters["stalled"] += 1
            self._dialer.replace(stalled, self._address_of(stalled.peer) or "", now)

    def _add(self, connection: Connection) -> None:
        self._connections[connection.fileno()] = connection
        self._poller.register(connection.fileno(), select.EPOLLIN)
        if connection.peer:
            self._meet(connection)

    def _meet(self, connection: Connection) -> None:
        """Register a peer after its handshake, and close an older connection to it.

        A peer that claims another role than the machine knows of it is dropped.
        """
        self._strangers.forget(connection.fileno())
        known = self.machine.role_of(connection.peer)
        if known and connection.role and known != connection.role:
            error = HandshakeFailed(f"it says that it is a {connection.role}, and is a {known}")
            self._errors.count(error, connection)
            self._drop(connection)
            return
        old = self._peers.get(connection.peer)
        self._peers[connection.peer] = connection
        connections_log.debug("connected to %s at %s", connection.peer, connection.origin)
        if old is not None and old is not connection:
            self._drop(old)
            self.handle(PeerLost(connection.peer, closed=False))

    def _drop(self, connection: Connection) -> None:
        fileno = connection.fileno()
        if self._connections.pop(fileno, None) is None:
            return
        self._writing.discard(fileno)
        self._strangers.forget(fileno)
        self._poller.unregister(fileno)
        connection.close()
        if self._peers.get(connection.peer) is connection:
            connections_log.debug("the connection to %s has ended", connection.peer)
            del self._peers[connection.peer]
            self.handle(PeerLost(connection.peer, closed=not connection.timed_out))

    def _serve(self, connection: Connection, mask: int) -> None:
        if mask & select.EPOLLOUT:
            connection.flush()
            self._watch(connection)
        if not mask & ~select.EPOLLOUT:
            return
        if not connection.peer:
            self._serve_stranger(connection)
        elif not self._receive(connection):
            self._drop(connection)
        elif connection.wants_write:
            self._watch(connection)

    def _serve_stranger(self, connection: Connection) -> None:
        """Go on with a caller's handshake, unless handshakes have taken their share of the time."""
        began = monotonic()
        fileno = connection.fileno()
        if self._strangers.is_denied(fileno):  # it has hung up
            self._drop(connection)
            return
        if self._strangers.waits(fileno):  # as this one has
            self._errors.hung_up()
            self._drop(connection)
            return
        if self._strangers.is_later(connection, began):
            self._poller.modify(fileno, 0)
            return
        try:
            alive = self._receive(connection)
        except HandshakeFailed as error:
            self._errors.count(error, connection)
            if connection.denied:
                self._strangers.deny(connection, monotonic())
                self._poller.modify(fileno, 0)
            else:
                self._drop(connection)
            return
        except Exception as error:  # nothing of the machine is concerned yet
            fault = PeerFault(f"a greeting: {type(error).__name__}: {error}")
            fault.__cause__ = error
            self._errors.count(fault, connection)
            self._drop(connection)
            return
        finally:
            self._strangers.worked(monotonic() - began)
        if not alive:
            self._drop(connection)
            return
        self._watch(connection)
        if connection.peer:
            self._meet(connection)

    def _receive(self, connection: Connection) -> bool:
        """Receive what has come; return False if the connection has ended."""
        known = connection.peer
        try:
            alive = connection.receive(self._arriving, self._deliver, self._malformed)
        except WireError as error:
            self._errors.count(error, connection)
            return False
        if not alive and not known and not connection.within_host:
            self._errors.hung_up()
        return alive

    def _arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        """Return where a payload goes.

        Nothing has changed yet, so that an unexpected error is the peer's fault.
        """
        try:
            return self.machine.arriving(sender, message, nbytes)
        except Exception as error:
            raise peer_fault(message, nbytes, error) from error

    def _deliver(self, sender: NodeId, message: Message, payload: Sink | None) -> None:
        """Pass a message to the machine, unless it has a problem.

        An unexpected error of this check is the peer's fault; a later one is this node's.
        """
        if self.stopped:
            return
        received = Received(sender, message, payload)
        try:
            problem = self.machine.problem_of(received)
        except Exception as error:
            raise peer_fault(message, 0, error) from error
        if problem:
            raise BadContent(f"{type(message).__name__}: {problem}")
        if self._tells:
            messages_log.debug("from %s: %s", sender, message.describe())
        self.perform(self.machine.handle(received, monotonic()))

    def _malformed(self, sender: NodeId, error: Exception) -> None:
        peer = self._peers.get(sender)
        self._errors.count(error, peer)
        if peer is not None:
            peer.send(Malformed(str(error)[:500]), ())

    def perform(self, effects: Effects) -> None:
        """Perform the machine's effects, in order."""
        for effect in effects:
            if self._disk is not None and self._disk.takes(effect):
                continue
            if type(effect) is Send:
                if effect.cumulative:
                    self._held[effect.to, type(effect.message)] = effect
                else:
                    self._send(effect)
            elif type(effect) is Resolve:
                self._resolve(effect.request_id, effect.outcome)
            elif isinstance(effect, Note):
                self.on_note(effect)
            elif type(effect) is Detach:
                connection = self._peers.get(effect.to)
                if connection is not None:
                    connection.detach()
                else:
                    self._dialer.detach(effect.to)
            elif type(effect) is Save:
                self._on_save(effect)
            elif type(effect) is Offload:
                self._offloader.start(effect)
            elif type(effect) is AwaitRoom:
                self._slow_readers.await_room(effect.to, monotonic())
            elif type(effect) is HangUp:
                self._hang_up(effect.to)
            elif type(effect) is Redial:
                here, address = self._peers.get(effect.to), effect.address or self._scheduler
                self.counters["unanswered"] += self._dialer.redial(here, address, monotonic())
            elif type(effect) is Stop:
                self.stopped, self.error = True, effect.error

    def _hang_up(self, to: NodeId) -> None:
        self._dialer.forget(to)
        connection = self._peers.get(to)
        if connection is not None and connection.backlog:
            self._drop(connection)

    def _send_held(self) -> None:
        """Send the latest of the cumulative messages of a turn to each node."""
        held, self._held = self._held, {}
        for effect in held.values():
            self._send(effect)

    def _send(self, effect: Send) -> None:
        if self._tells:
            messages_log.debug("to %s: %s", effect.to, effect.message.describe())
        if self._drops is not None and self._drops.next():
            self.counters["dropped"] += 1  # the protocol repeats the message
            return
        connection = self._peers.get(effect.to)
        if connection is None:
            address = self._address_of(effect.to)
            if not address or not self._dialer.send(effect, address, monotonic()):
                self.counters["unreachable"] += 1  # as above
            return
        self._send_on(connection, effect)

    def _send_on(self, connection: Connection, effect: Send) -> None:
        connection.send(effect.message, effect.buffers, effect.guard)
        if connection.wants_write:
            self._watch(connection)

    def _address_of(self, to: NodeId) -> str | None:
        return self._scheduler if to == SCHEDULER else self.machine.address_of(to)

    def _take_reached(self) -> None:
        """Take over connections to peers that were reached, and send the messages that waited."""
        for to, result, sends in self._dialer.finished(monotonic()):
            if isinstance(result, ShoalError):
                self.counters["unreachable"] += len(sends)
                if to == SCHEDULER and isinstance(result, HandshakeRefused):
                    self.stopped, self.error = True, result  # retrying does not help
                continue
            self._add(result)
            self._paths.add(result)
            for effect in sends:
                self._send_on(result, effect)

    def _watch(self, connection: Connection) -> None:
        """Poll for writability exactly while the connection waits for its socket."""
        fileno = connection.fileno()
        if connection.wants_write and fileno not in self._writing:
            self._writing.add(fileno)
            self._poller.modify(fileno, select.EPOLLIN | select.EPOLLOUT)
        elif not connection.wants_write and fileno in self._writing:
            self._writing.discard(fileno)
            self._poller.modify(fileno, select.EPOLLIN)
