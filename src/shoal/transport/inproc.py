"""The `inproc` transport: queues between threads of one process, for tests and debugging."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

from shoal.errors import AddressInUse, BadMessage, HandshakeFailed
from shoal.protocol.machine import CopyOnWriteGuard
from shoal.protocol.messages import Message
from shoal.transport import handshake
from shoal.transport.base import (
    Arriving,
    Connection,
    Deliver,
    Identity,
    Listener,
    Malformed,
    Transport,
    place_of,
    sink_for,
    transports,
)
from shoal.transport.wire import encode, message_of

FRAMES_A_TURN = 64  # per call of `receive`, so that other connections get their turn

_listeners: dict[str, InprocListener] = {}
_lock = Lock()


class _Queue:
    """Frames one way. `signal` is readable while there are any, or the end has come.

    The eventfd belongs to the reader, who closes it; the lock keeps a writer from signalling a
    descriptor that has a new owner by then.
    """

    def __init__(self) -> None:
        self.frames: deque[tuple[bytes, bytes]] = deque()
        self.ended = False
        self.signal = os.eventfd(0, os.EFD_NONBLOCK)
        self._lock = Lock()

    def put(self, head: bytes, payload: bytes) -> None:
        with self._lock:
            if not self.ended:
                self.frames.append((head, payload))
                os.eventfd_write(self.signal, 1)

    def quiet(self) -> None:
        """Clear the signal before the queue is emptied: later frames signal again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.signal)

    def signal_again(self) -> None:
        with self._lock:
            if self.signal >= 0:
                os.eventfd_write(self.signal, 1)

    def end(self) -> None:
        """Note that the writer is gone."""
        with self._lock:
            if not self.ended:
                self.ended = True
                os.eventfd_write(self.signal, 1)

    def close(self) -> None:
        """Note that the reader is gone."""
        with self._lock:
            self.ended = True
            self.frames.clear()
            if self.signal >= 0:
                os.close(self.signal)
                self.signal = -1


class InprocConnection(Connection):
    """Two queues. Frames are encoded, as everywhere; payloads are copied once on sending."""

    def __init__(self, incoming: _Queue, outgoing: _Queue, peer: str) -> None:
        self.peer = peer
        self._incoming = incoming
        self._outgoing = outgoing

    def fileno(self) -> int:
        return self._incoming.signal

    def send(
        self, message: Message, buffers: Sequence[memoryview], guard: CopyOnWriteGuard | None = None
    ) -> None:
        payload = b"".join(buffers)
        self._outgoing.put(encode(message, len(payload)), payload)

    def flush(self) -> None:
        pass

    def detach(self) -> None:
        pass

    def receive(self, arriving: Arriving, deliver: Deliver, malformed: Malformed) -> bool:
        incoming = self._incoming
        if incoming.signal < 0:
            return False
        incoming.quiet()
        for _ in range(FRAMES_A_TURN):
            if not incoming.frames:
                return not incoming.ended
            head, payload = incoming.frames.popleft()
            try:
                message = message_of(head)
            except BadMessage as error:
                malformed(self.peer, error)
                continue
            sink = None
            if payload:
                sink = sink_for(arriving(self.peer, message, len(payload)), len(payload))
            if sink is None:
                deliver(self.peer, message, None)
                continue
            for _ in sink.filling(memoryview(payload)):
                deliver(self.peer, message, sink)
                if sink.by_view and sink.revoked:
                    deliver(self.peer, message, sink)
                    break
        incoming.signal_again()  # there may be more
        return True

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.end()


class InprocListener(Listener):
    def __init__(self, address: str, me: Identity) -> None:
        self.address = address
        self.me = me
        self.arrivals: deque[InprocConnection] = deque()
        self.signal = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self.signal

    def accept(self) -> Connection | None:
        with _lock:
            if not self.arrivals:
                return None
            connection = self.arrivals.popleft()
            if not self.arrivals:
                os.eventfd_read(self.signal)
            return connection

    def close(self) -> None:
        with _lock:
            if self.signal < 0:
                return
            del _listeners[self.address]
            os.close(self.signal)
            self.signal = -1
            for connection in self.arrivals:
                connection.close()
            self.arrivals.clear()


class InprocTransport(Transport):
    """Within one process, between threads that each drive a node."""

    def listen(self, address: str, me: Identity) -> Listener:
        place_of(address, "inproc")
        with _lock:
            if address in _listeners:
                raise AddressInUse(f"{address} is taken by another node of this process")
            listener = _listeners[address] = InprocListener(address, me)
        return listener

    def beside(self, address: str, name: str) -> str:
        return f"inproc://{name}"

    def connect(self, address: str, me: Identity, timeout_s: float) -> Connection:
        place_of(address, "inproc")
        with _lock:
            listener = _listeners.get(address)
            if listener is None:
                raise HandshakeFailed(f"no node answers at {address} in this process")
            asked = handshake.challenge(listener.me)
            said = handshake.hello(me, asked)
            verdict = handshake.judge(listener.me, asked, said)
            welcome = handshake.conclude(me, asked, said, verdict)
            there, back = _Queue(), _Queue()
            listener.arrivals.append(InprocConnection(there, back, me.node))
            os.eventfd_write(listener.signal, 1)
        return InprocConnection(back, there, welcome.node)


transports.add("inproc", InprocTransport)
