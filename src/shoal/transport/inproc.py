"""The `inproc` transport: socket pairs within one process, for tests and debugging."""

from __future__ import annotations

import os
import socket
from collections import deque
from threading import Lock

from shoal.errors import AddressInUse, HandshakeFailed
from shoal.transport import handshake
from shoal.transport.base import (
    NO_TURN,
    Connection,
    Identity,
    Listener,
    Transport,
    Turn,
    place_of,
    transports,
)
from shoal.transport.stream import StreamConnection

_listeners: dict[str, InprocListener] = {}
_lock = Lock()


class InprocListener(Listener):
    """Hands out connections whose callers have been greeted already."""

    def __init__(self, address: str, me: Identity) -> None:
        self.address = address
        self.me = me
        self.arrivals: deque[StreamConnection] = deque()
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

    def connect(
        self, address: str, me: Identity, timeout_s: float, turn: Turn = NO_TURN
    ) -> Connection:
        place_of(address, "inproc")
        with turn, _lock:
            listener = _listeners.get(address)
            if listener is None:
                raise HandshakeFailed(f"no node answers at {address} in this process")
            asked = handshake.challenge(listener.me)
            said = handshake.hello(me, asked)
            verdict = handshake.judge(listener.me, asked, said)
            welcome = handshake.conclude(me, asked, said, verdict)
            here, there = socket.socketpair()
            connection = StreamConnection(there, listener.me, me.node)
            connection.role = me.role
            listener.arrivals.append(connection)
            os.eventfd_write(listener.signal, 1)
        return StreamConnection(here, me, welcome.node)


transports.add("inproc", InprocTransport)
