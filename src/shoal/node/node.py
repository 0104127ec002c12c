"""Node: the shell that gives one state machine a transport, a clock and a disk.

It has one loop: the thread that calls `poll` does the socket work, and has the machine to itself.
Threads of its own only connect to peers (`node.dialer`). A server or scheduler process is
`Node.run()`; a worker's caller polls while it waits (`node.driver`).
"""

from __future__ import annotations

import logging
import os
import select
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from zlib import crc32

from shoal.errors import DataCorrupt, HandshakeFailed, HandshakeRefused, ShoalError, WireError
from shoal.node.dialer import Dialer
from shoal.node.offloader import Offloader
from shoal.node.poller import Poller
from shoal.protocol.machine import (
    Asked,
    Detach,
    Effects,
    Event,
    Machine,
    Note,
    Offload,
    Outcome,
    PeerLost,
    Persist,
    Received,
    Resolve,
    Save,
    Send,
    Sink,
    Ticked,
)
from shoal.protocol.messages import SCHEDULER, Malformed, Message
from shoal.protocol.views import NodeId
from shoal.storage.files import FORMAT, check_format, write_whole
from shoal.transport import Connection, Identity, Listener, transport_for

log = logging.getLogger("shoal.node")

JOURNAL = b"shoal-journal"
LOOK_S = 0.25  # between looks at connections that may be stalled
HELLO_S = 10.0  # time limit of a caller's handshake


class Journal:
    """The latest record of a machine on disk, after a line with the format's version and the
    record's checksum."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes | None:
        """The record; None where there is no file.

        Raises:
            DataCorrupt: it is not as it was written, or cannot be read
            UnknownFormat: another version of Shoal has written it
        """
        try:
            found, _, record = self.path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.damaged(f"cannot be read ({error.strerror})") from None
        name, version, crc, *_ = [*found.split(b" "), b"", b""]
        check_format(self.path, version.decode("ascii", "replace") if name == JOURNAL else None)
        if crc != b"%d" % crc32(record):
            raise self.damaged("is damaged: its record is not as it was written")
        return record

    def damaged(self, problem: str) -> DataCorrupt:
        return DataCorrupt(
            f"{self.path} {problem}; the run cannot go on from it: resume it from a checkpoint, "
            "with another journal"
        )

    def write(self, record: bytes) -> None:
        write_whole(self.path, b"%s %d %d\n%s" % (JOURNAL, FORMAT, crc32(record), record))


class Node:
    """Runs one state machine.

    Args:
        machine: the machine.
        me: this node's identity, for handshakes.
        scheduler: the scheduler's address, for members.
        journal: receives the machine's records.
        resolve: receives the answers to `Asked`.
        on_note: receives the machine's notes (event log, counters).
        on_save: receives rows for checkpoints.
    """

    def __init__(
        self,
        machine: Machine,
        me: Identity,
        scheduler: str = "",
        journal: Journal | None = None,
        resolve: Callable[[int, Outcome], None] = lambda request_id, outcome: None,
        on_note: Callable[[Note], None] = lambda note: None,
        on_save: Callable[[Save], None] = lambda save: None,
    ) -> None:
        self.machine = machine
        self.me = me
        self.counters: Counter[str] = Counter()
        self.stopped = False
        self.error: ShoalError | None = None
        self._scheduler = scheduler
        self._journal = journal
        self._resolve = resolve
        self.on_note = on_note
        self._on_save = on_save
        self._poller = Poller()
        self._listener: Listener | None = None
        self._connections: dict[int, Connection] = {}
        self._peers: dict[NodeId, Connection] = {}
        self._writing: set[int] = set()
        self._strangers: dict[int, float] = {}  # accepted without a hello yet: their deadlines
        self._called: set[NodeId] = set()  # peers over TCP to whom this node has connected
        self._look_at = 0.0  # at their connections
        self._asked: deque[object] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._dialer = Dialer(me, self.wake)
        self._offloader = Offloader(self.wake)
        self._poller.register(self._wake, select.EPOLLIN)
        self._closed = False

    # ------------------------------------------------------------------ the public side

    def listen(self, address: str) -> str:
        """Listen for peers; returns the address that they use."""
        self._listener = transport_for(address).listen(address, self.me)
        self._poller.register(self._listener.fileno(), select.EPOLLIN)
        return self._listener.address

    def handle(self, event: Event) -> None:
        """Pass an event to the machine and perform its effects."""
        self.perform(self.machine.handle(event, monotonic()))

    def poll(self, timeout_s: float) -> None:
        """Wait for work for `timeout_s` seconds at most, and do it."""
        now = monotonic()
        due = self.machine.deadline()
        if due is not None and due - now < timeout_s:
            timeout_s = max(0.0, due - now)
        if self._strangers:
            timeout_s = min(timeout_s, 1.0)
        if self._called:
            timeout_s = min(timeout_s, LOOK_S)
        for fileno, mask in self._poller.wait(timeout_s, now):
            connection = self._connections.get(fileno)
            if connection is not None:
                self._serve(connection, mask)
            elif fileno == self._wake:
                os.eventfd_read(self._wake)
                self._take_reached()
                for done in self._offloader.finished():
                    if not self.stopped:
                        self.handle(done)
            elif self._listener is not None and fileno == self._listener.fileno():
                self._accept()
        if self._strangers:
            self._send_strangers_away()
        if self._called and now >= self._look_at:
            self._replace_stalled(now)
        if due is not None and due <= monotonic() and not self.stopped:
            self.handle(Ticked())

    def run(self) -> None:
        """Poll until the machine stops; raises its error."""
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
        until = monotonic() + limit_s
        waiting = [c for c in self._connections.values() if c.backlog]
        while (waiting or self._dialer.busy) and monotonic() < until:
            self._poller.wait(0.01, monotonic())
            self._take_reached()
            for connection in waiting:
                self._serve(connection, select.EPOLLIN | select.EPOLLOUT)
            waiting = [c for c in self._connections.values() if c.backlog]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.stopped = True
        self._offloader.close()
        self._dialer.close()
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        if self._listener is not None:
            self._listener.close()
        self._poller.close()
        os.close(self._wake)

    # ------------------------------------------------------------------ connections

    def _accept(self) -> None:
        assert self._listener is not None
        connection = self._listener.accept()
        if connection is not None:
            self._add(connection)
            if not connection.peer:
                self._strangers[connection.fileno()] = monotonic() + HELLO_S

    def _send_strangers_away(self) -> None:
        """Drop callers whose handshake has timed out, to free their file descriptors."""
        now = monotonic()
        for fileno in [each for each, until in self._strangers.items() if now >= until]:
            connection = self._connections[fileno]
            self._count(HandshakeFailed("a caller did not say hello in time"), connection)
            self._drop(connection)

    def _add(self, connection: Connection) -> None:
        self._connections[connection.fileno()] = connection
        self._poller.register(connection.fileno(), select.EPOLLIN)
        if connection.peer:
            self._meet(connection)

    def _meet(self, connection: Connection) -> None:
        """Register a peer after its handshake; an older connection to it is closed."""
        self._strangers.pop(connection.fileno(), None)
        old = self._peers.get(connection.peer)
        self._peers[connection.peer] = connection
        if old is not None and old is not connection:
            self._drop(old)
            self.handle(PeerLost(connection.peer, closed=False))

    def _drop(self, connection: Connection) -> None:
        fileno = connection.fileno()
        if self._connections.pop(fileno, None) is None:
            return
        self._writing.discard(fileno)
        self._strangers.pop(fileno, None)
        self._poller.unregister(fileno)
        connection.close()
        if self._peers.get(connection.peer) is connection:
            del self._peers[connection.peer]
            self.handle(PeerLost(connection.peer, closed=not connection.timed_out))

    def _serve(self, connection: Connection, mask: int) -> None:
        if mask & select.EPOLLOUT:
            connection.flush()
            self._watch(connection)
        if not mask & ~select.EPOLLOUT:
            return
        known = connection.peer
        try:
            alive = connection.receive(self.machine.arriving, self._deliver, self._malformed)
        except WireError as error:
            self._count(error, connection)
            alive = False
        except HandshakeFailed as error:
            self._count(error, connection)
            connection.flush()
            alive = False
        if not alive:
            self._drop(connection)
            return
        if connection.wants_write:
            self._watch(connection)
        if connection.peer and not known:
            self._meet(connection)

    def _deliver(self, sender: NodeId, message: Message, payload: Sink | None) -> None:
        if not self.stopped:
            self.perform(self.machine.handle(Received(sender, message, payload), monotonic()))

    def _malformed(self, sender: NodeId, error: Exception) -> None:
        peer = self._peers.get(sender)
        self._count(error, peer)
        if peer is not None:
            peer.send(Malformed(str(error)[:500]), ())

    def _count(self, error: Exception, connection: Connection | None) -> None:
        """Count an error by type; log the first of each type, then at powers of two."""
        kind = type(error).__name__
        self.counters[kind] += 1
        seen = self.counters[kind]
        if seen & (seen - 1) == 0:
            who = connection.peer if connection is not None and connection.peer else "a stranger"
            log.warning("%s x%d from %s: %s", kind, seen, who, error)

    # ------------------------------------------------------------------ effects

    def perform(self, effects: Effects) -> None:
        """Perform the machine's effects, in order."""
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Resolve):
                self._resolve(effect.request_id, effect.outcome)
            elif isinstance(effect, Note):
                self.on_note(effect)
            elif isinstance(effect, Detach):
                connection = self._peers.get(effect.to)
                if connection is not None:
                    connection.detach()
                else:
                    self._dialer.detach(effect.to)
            elif isinstance(effect, Save):
                self._on_save(effect)
            elif isinstance(effect, Persist):
                if self._journal is not None:
                    self._journal.write(effect.record)
            elif isinstance(effect, Offload):
                self._offloader.start(effect)
            else:
                self.stopped = True
                self.error = effect.error

    def _send(self, effect: Send) -> None:
        connection = self._peers.get(effect.to)
        if connection is None:
            address = self._address_of(effect.to)
            if not address or not self._dialer.send(effect, address, monotonic()):
                self.counters["unreachable"] += 1  # the protocol repeats the message
            return
        self._send_on(connection, effect)

    def _send_on(self, connection: Connection, effect: Send) -> None:
        connection.send(effect.message, effect.buffers, effect.guard)
        if connection.wants_write:
            self._watch(connection)

    def _address_of(self, to: NodeId) -> str | None:
        return self._scheduler if to == SCHEDULER else self.machine.address_of(to)

    def _take_reached(self) -> None:
        """Take over connections to peers that were reached, and send them what waited."""
        for to, result, sends in self._dialer.finished(monotonic()):
            if isinstance(result, ShoalError):
                self.counters["unreachable"] += len(sends)
                if to == SCHEDULER and isinstance(result, HandshakeRefused):
                    self.stopped, self.error = True, result  # retrying does not help
                continue
            self._add(result)
            if (self._address_of(to) or "").startswith("tcp://"):
                self._called.add(to)
            for effect in sends:
                self._send_on(result, effect)

    def _replace_stalled(self, now: float) -> None:
        """Dial peers anew that acknowledge nothing: another path may be open."""
        self._look_at = now + LOOK_S
        for to in list(self._called):
            connection = self._peers.get(to)
            if connection is None:
                self._called.discard(to)
            elif connection.stalled:
                self.counters["stalled"] += 1
                self._dialer.replace(connection, self._address_of(to) or "", now)

    def _watch(self, connection: Connection) -> None:
        """Poll for writability exactly while there is a backlog."""
        fileno = connection.fileno()
        if connection.wants_write and fileno not in self._writing:
            self._writing.add(fileno)
            self._poller.modify(fileno, select.EPOLLIN | select.EPOLLOUT)
        elif not connection.wants_write and fileno in self._writing:
            self._writing.discard(fileno)
            self._poller.modify(fileno, select.EPOLLIN)
