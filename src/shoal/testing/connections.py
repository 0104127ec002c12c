"""Two ends of a connection, driven as a node drives them, for the laws of transports."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from inspect import isfunction, signature
from time import monotonic
from typing import TypeVar

from shoal.errors import HandshakeFailed
from shoal.protocol.machine import Arrival, CopyOnWriteGuard, Discard, Sink
from shoal.protocol.messages.base import Message
from shoal.protocol.views import NodeId
from shoal.transport.base import Connection, Identity, Listener, Transport

Make = Callable[[], tuple[Transport, str]]
Raised = TypeVar("Raised", bound=Exception)
Law = Callable[[Make], None]

TIMEOUT_S = 20.0  # a law that takes this long hangs
TOKEN = "a token that nobody may see"
LISTENER = Identity("server-a", "server", "job-1", TOKEN)
CALLER = Identity("worker-b", "worker", "job-1", TOKEN)


class End:
    """One end of a connection, and everything that it has received.

    sinks:       called with the size of each announced payload; returns its sink, or None to
                 discard it
    on_deliver:  called with the sink of each payload
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.sinks: Callable[[int], Sink | None] = lambda nbytes: Sink(
            [memoryview(bytearray(nbytes))]
        )
        self.on_deliver: Callable[[Sink], None] = lambda sink: None
        self.announced: list[int] = []
        self.delivered: list[tuple[Message, Sink | None]] = []
        self.malformed: list[Exception] = []
        self.senders: set[NodeId] = set()
        self.ended = False

    @property
    def messages(self) -> list[Message]:
        return [message for message, _ in self.delivered]

    def send(
        self, message: Message, *buffers: memoryview, guard: CopyOnWriteGuard | None = None
    ) -> None:
        self.connection.send(message, buffers, guard)

    def receive(self) -> None:
        """Receive once."""
        alive = self.connection.receive(self._arriving, self._deliver, self._malformed)
        self.ended = not alive

    def _arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        self.senders.add(sender)
        self.announced.append(nbytes)
        sink = self.sinks(nbytes)
        return Discard("a law said so") if sink is None else sink

    def _deliver(self, sender: NodeId, message: Message, sink: Sink | None) -> None:
        self.senders.add(sender)
        self.delivered.append((message, sink))
        if sink is not None:
            self.on_deliver(sink)

    def _malformed(self, sender: NodeId, error: Exception) -> None:
        self.senders.add(sender)
        self.malformed.append(error)


class Pair:
    """Both ends of a connection, whose handshake is over."""

    def __init__(self, caller: End, callee: End) -> None:
        self.caller = caller
        self.callee = callee

    def pump(self, until: Callable[[], bool]) -> None:
        """Do the work of both ends until a condition holds."""
        deadline = monotonic() + TIMEOUT_S
        while not until():
            if monotonic() > deadline:
                raise AssertionError(f"nothing more came within {TIMEOUT_S} s")
            poll_once(self.caller, self.callee)


def poll_once(*ends: End, timeout_s: float = 0.05) -> None:
    """Poll the ends, then flush and receive where it is due."""
    poll = select.poll()
    by_fileno = {end.connection.fileno(): end for end in ends if not end.ended}
    by_fileno.pop(-1, None)  # closed
    for fileno, end in by_fileno.items():
        poll.register(fileno, select.POLLIN | (select.POLLOUT if end.connection.wants_write else 0))
    for fileno, mask in poll.poll(timeout_s * 1000):
        end = by_fileno[fileno]
        if mask & select.POLLOUT:
            end.connection.flush()
        if mask & ~select.POLLOUT:
            end.receive()


def meet(transport: Transport, listener: Listener, me: Identity) -> tuple[Connection, End]:
    """Connect to a listener, which is served meanwhile; return both ends after the handshake.

    Raises what `connect` raises, once the listener's side has seen the failure as well. Others may
    call at the same time and leave, such as a process that probes whether the address is in use.
    """
    accepted: list[End] = []
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(transport.connect, listener.address, me, TIMEOUT_S)
        deadline = monotonic() + TIMEOUT_S
        while monotonic() < deadline:
            if readable(listener.fileno(), 0.005):
                connection = listener.accept()
                accepted += [End(connection)] if connection is not None else []
            strangers = [end for end in accepted if not (end.ended or end.connection.peer)]
            for end in strangers:
                try:
                    poll_once(end, timeout_s=0)
                except HandshakeFailed:
                    end.connection.deny()
                    end.ended = True
            if calling.done() and not strangers and not readable(listener.fileno(), 0):
                break
        for end in accepted:
            if end.ended:
                end.connection.close()
                assert not end.delivered, "the message of a refused caller was delivered"
        met = [end for end in accepted if end.connection.peer]
        if calling.exception() is not None:
            assert not met, "the caller failed, and the listener believes in the connection"
        caller = calling.result()
        assert len(met) == 1, f"one has connected, and {len(met)} were accepted"
        return caller, met[0]


@contextmanager
def listening(make: Make, me: Identity = LISTENER) -> Iterator[tuple[Transport, Listener]]:
    transport, address = make()
    listener = transport.listen(address, me)
    try:
        yield transport, listener
    finally:
        listener.close()


@contextmanager
def connected(make: Make) -> Iterator[Pair]:
    """Yield a pair of ends, and close both, whatever a law does with them."""
    with listening(make) as (transport, listener):
        caller, callee = meet(transport, listener, CALLER)
    try:
        yield Pair(End(caller), callee)
    finally:
        caller.close()
        callee.connection.close()


@contextmanager
def raises(kind: type[Raised] | tuple[type[Raised], ...]) -> Iterator[list[Raised]]:
    caught: list[Raised] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    else:
        raise AssertionError(f"{kind} was not raised")


def laws_in(module: str, parameter: str = "make") -> tuple[Law, ...]:
    """Return the laws of a module, in order: its functions with that one parameter."""
    functions = [each for each in vars(sys.modules[module]).values() if isfunction(each)]
    own = [each for each in functions if each.__module__ == module]
    return tuple(each for each in own if list(signature(each).parameters) == [parameter])


def readable(fileno: int, timeout_s: float = 0.005) -> bool:
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
