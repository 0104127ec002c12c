"""Dialer: connects to peers off the loop.

An attempt resolves a name, connects and shakes hands in a thread of its own. It takes seconds if
nobody answers, in which the loop has heartbeats to send and other peers to serve. Messages to the
peer wait meanwhile.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from threading import Lock, Thread

from msgspec.structs import replace

from shoal.errors import HandshakeFailed, HandshakeRefused, ShoalError
from shoal.protocol.machine import Send
from shoal.protocol.views import NodeId
from shoal.transport import Connection, Identity, transport_for

log = logging.getLogger("shoal.node")

CONNECT_TIMEOUT_S = 2.0
RECONNECT_S = 0.1  # between attempts to reach a peer, doubling up to RECONNECT_MAX_S
RECONNECT_MAX_S = 2.0
RECONNECT_HERE_MAX_S = 0.1  # the maximum for peers of this host, where attempts are cheap
REPLACE_S = 0.5  # between attempts to replace a connection whose path seems cut
REPLACING_MAX = 4  # such attempts at a time: each sends a SYN at once, and the next a second later


class Turn:
    """Lets the attempts to reach one peer shake hands one at a time, and none after a success.

    A connection that was to be replaced stays if the path has come back meanwhile.

    replaced:  the connection that is to be replaced, if any
    received:  the bytes that it had received, if it is replaced because nothing comes any more
    """

    def __init__(self, replaced: Connection | None = None, received: int = -1) -> None:
        self._replaced = replaced
        self._received = received
        self._lock = Lock()
        self._over = False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._over or not self.wanted:
            self._lock.release()
            raise HandshakeFailed("another connection was faster")

    def __exit__(self, error: object, *_: object) -> None:
        self._over = error is None
        self._lock.release()

    @property
    def wanted(self) -> bool:
        """Whether another connection to the peer is still of use."""
        try:
            old = self._replaced
            return old is None or old.stalled or old.received == self._received
        except OSError:  # it was closed meanwhile
            return True


class _Waiting:
    """Messages to a peer that is being dialled, whose buffers are borrowed, as a connection's."""

    def __init__(self) -> None:
        self.sends: list[Send] = []

    def add(self, send: Send) -> None:
        self.sends.append(send)
        if send.guard is not None:
            send.guard.keep(self.recall)

    def take(self) -> list[Send]:
        """Remove and return the messages."""
        sends, self.sends = self.sends, []
        return sends

    def recall(self) -> None:
        """Copy the buffers that point at live rows, which are about to change."""
        self.sends = [each if each.guard is None else _copied(each) for each in self.sends]

    def detach(self) -> None:
        """Copy all buffers: they belong to the caller again."""
        self.sends = [_copied(each) for each in self.sends]


class _Peer:
    """A peer that is not reached yet, or whose connection is being replaced."""

    def __init__(self, address: str) -> None:
        here = address.startswith("unix://")
        self.waiting = _Waiting()
        self.turn = Turn()
        self.attempts = 0  # under way
        self.not_before = 0.0
        self.delay = RECONNECT_S
        self.delay_max = RECONNECT_HERE_MAX_S if here else RECONNECT_MAX_S


class Dialer:
    """Connects to peers in threads.

    wake:  the function that is called, in any thread, when an attempt has ended and `finished` has
        its result
    """

    def __init__(self, me: Identity, wake: Callable[[], None]) -> None:
        self._me = me
        self._wake = wake
        self._peers: dict[NodeId, _Peer] = {}
        self._done: deque[tuple[NodeId, _Peer, Connection | ShoalError]] = deque()
        self._lock = Lock()
        self._closed = False

    def send(self, send: Send, address: str, now: float) -> bool:
        """Send a message once its peer is reached; drop it and return False if it is too early.

        A peer is dialled again only after a delay.
        """
        peer = self._peers.setdefault(send.to, _Peer(address))
        if not peer.attempts:
            if now < peer.not_before:
                return False
            self._dial(send.to, peer, address)
        peer.waiting.add(send)
        return True

    def replace(self, connection: Connection, address: str, now: float, answered: int = -1) -> None:
        """Dial a peer anew, without closing the connection whose path seems cut.

        answered:  the bytes that the connection had received, if the path is well and nothing comes
        """
        to = connection.peer
        peer = self._peers.setdefault(to, _Peer(address))
        if not peer.attempts:
            peer.turn = Turn(connection, answered)
        if peer.attempts < REPLACING_MAX and now >= peer.not_before:
            peer.not_before = now + REPLACE_S
            self._dial(to, peer, address)

    def redial(self, connection: Connection | None, address: str, now: float) -> bool:
        """Dial a peer anew that does not answer, unless the path is slow; return False if it is.

        Returns False without a connection, too, and for peers of this host.
        """
        if connection is None or connection.within_host or connection.outstanding:
            return False
        self.replace(connection, address, now, connection.received)
        return True

    def detach(self, to: NodeId) -> None:
        """Copy the buffers of the messages that wait for a peer."""
        if to in self._peers:
            self._peers[to].waiting.detach()

    def forget(self, to: NodeId) -> None:
        """Discard the messages that wait for a peer."""
        if to in self._peers:
            self._peers[to].waiting.take()

    @property
    def busy(self) -> bool:
        """Whether messages wait for a peer that is being dialled."""
        return any(peer.attempts and peer.waiting.sends for peer in self._peers.values())

    def finished(self, now: float) -> Iterator[tuple[NodeId, Connection | ShoalError, list[Send]]]:
        """Yield (peer, connection or error, messages that waited) of each attempt that has ended.

        With an error the messages are lost, and the protocol repeats them. They wait on while other
        attempts at the peer are under way.
        """
        while self._done:
            to, peer, result = self._done.popleft()
            peer.attempts -= 1
            if self._peers.get(to) is not peer:  # another attempt was faster
                continue
            sends: list[Send] = []
            if isinstance(result, Connection):
                del self._peers[to]
                sends = peer.waiting.take()
            elif not peer.attempts:
                log.debug("%s: %s", to, result)
                sends = peer.waiting.take()
                peer.not_before = now + peer.delay
                peer.delay = min(2 * peer.delay, peer.delay_max)
                if peer.turn.wanted:
                    peer.turn = Turn()
                else:
                    del self._peers[to]
            yield to, result, sends

    def close(self) -> None:
        """Close the connections that were made; attempts under way close theirs when they end."""
        with self._lock:
            self._closed = True
        for _, _, result in self._done:
            if isinstance(result, Connection):
                result.close()
        self._done.clear()

    def _dial(self, to: NodeId, peer: _Peer, address: str) -> None:
        peer.attempts += 1
        try:
            Thread(target=self._attempt, args=(to, peer, address), daemon=True).start()
        except RuntimeError as error:  # there can be no more threads
            self._end(to, peer, HandshakeFailed(str(error)))

    def _attempt(self, to: NodeId, peer: _Peer, address: str) -> None:
        result: Connection | ShoalError
        try:
            result = self._connect(to, peer.turn, address)
        except ShoalError as error:
            result = error
        except Exception as error:  # such as where the process has no file descriptor left
            result = HandshakeFailed(f"cannot connect to {address}: {error}")
        self._end(to, peer, result)

    def _end(self, to: NodeId, peer: _Peer, result: Connection | ShoalError) -> None:
        with self._lock:
            if not self._closed:
                self._done.append((to, peer, result))
                self._wake()
            elif isinstance(result, Connection):
                result.close()

    def _connect(self, to: NodeId, turn: Turn, address: str) -> Connection:
        try:
            connection = transport_for(address).connect(address, self._me, CONNECT_TIMEOUT_S, turn)
        except HandshakeRefused as error:
            raise HandshakeRefused(f"{to} at {address}: {error.message}") from None
        if connection.peer != to:  # the peer is gone, and another node listens there
            connection.close()
            raise HandshakeRefused(f"at {address} is {connection.peer}, not {to}")
        return connection


def _copied(send: Send) -> Send:
    return replace(
        send, buffers=tuple(memoryview(bytes(each)) for each in send.buffers), guard=None
    )
