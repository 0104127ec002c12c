"""The contract of a transport: connections that never block, chosen by an address's scheme.

    inproc://NAME        queues within this process
    unix:///PATH         a Unix socket on this host, in a directory that only its owner enters
    tcp://HOST:PORT      between hosts; beyond this host only with a token

A connection assumes neither `sendmsg` nor file descriptors of its peer. `shoal.testing.transports`
has the laws that every transport obeys.

Buffers and the views of sinks are flat views of bytes (`memoryview.cast("B")`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shoal.errors import AddressInvalid, BadLength, UnknownName
from shoal.protocol.machine import Arrival, CopyOnWriteGuard, Discard, Sink
from shoal.protocol.messages import Message
from shoal.protocol.views import NodeId, Role
from shoal.registry import Registry


class Identity(msgspec.Struct, frozen=True):
    """Who speaks, for the handshake."""

    node: NodeId
    role: Role
    job: str = ""
    token: str = ""

    def __repr__(self) -> str:  # a token never reaches a log
        return f"Identity({self.node!r}, {self.role!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("node", self.node), ("role", self.role)]


Arriving = Callable[[NodeId, Message, int], Arrival]
Deliver = Callable[[NodeId, Message, Sink | None], None]
Malformed = Callable[[NodeId, Exception], None]


class Connection(ABC):
    """One peer. Everything returns at once; `fileno` becomes readable when there is work.

    `peer` is the other node, empty until the handshake is over. While it `wants_write`, wait for
    `fileno` to be writable too, and then `flush`. What waits without that is sent by `receive`,
    once the peer has made room for it.
    """

    peer: NodeId = ""

    @property
    def backlog(self) -> int:
        """Bytes that wait to be sent."""
        return 0

    @property
    def wants_write(self) -> bool:
        return False

    @abstractmethod
    def fileno(self) -> int: ...

    @abstractmethod
    def send(
        self, message: Message, buffers: Sequence[memoryview], guard: CopyOnWriteGuard | None = None
    ) -> None:
        """Send a message and the bytes of `buffers`, now or later, in order.

        Buffers are borrowed until they are sent, or the `guard` is recalled: then what waits is
        copied. Where the peer has gone nothing is sent, and the next `receive` says so.
        """

    @abstractmethod
    def detach(self) -> None:
        """Copy what waits to be sent: no buffer that was lent is read after this."""

    @abstractmethod
    def flush(self) -> None:
        """Send what waits, as far as the other side takes it."""

    @abstractmethod
    def receive(self, arriving: Arriving, deliver: Deliver, malformed: Malformed) -> bool:
        """Take in what has come: `arriving` says where a payload goes, then `deliver` gets it.

        False when the connection has ended. Raises WireError where the bytes make no sense, and
        HandshakeFailed; the caller then closes the connection. A well-framed message that cannot be
        understood goes to `malformed`, and the connection goes on.

        One call takes in a bounded amount, so that other connections have their turn. Whatever
        it leaves makes `fileno` readable again: everything whole that was read from the socket has
        been delivered. The call that completes a handshake delivers nothing yet.

        `deliver` gets the sink when it is full, and also where it was revoked underway; it gets
        None where the payload was discarded, or there was none.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection; what waits is dropped, and a sink that is being filled is revoked."""


class Listener(ABC):
    """Where peers connect to. `address` is what they use."""

    address: str

    @abstractmethod
    def fileno(self) -> int: ...

    @abstractmethod
    def accept(self) -> Connection | None:
        """A new connection, still to shake hands; None where there is none after all."""

    @abstractmethod
    def close(self) -> None: ...


class Transport(ABC):
    """Makes listeners and connections for one scheme."""

    @abstractmethod
    def listen(self, address: str, me: Identity) -> Listener: ...

    @abstractmethod
    def beside(self, address: str, name: str) -> str:
        """Where this process may listen, so that whoever is at `address` reaches it."""

    @abstractmethod
    def connect(self, address: str, me: Identity, timeout_s: float) -> Connection:
        """Connect and shake hands; blocks for `timeout_s` at most."""


transports: Registry[Callable[[], Transport]] = Registry("transport")


def transport_for(address: str) -> Transport:
    """The transport that an address names."""
    scheme, _, rest = address.partition("://")
    if not rest:
        raise AddressInvalid(f"{address!r} is no address; {_FORMS}")
    try:
        return transports[scheme]()
    except UnknownName as error:
        raise AddressInvalid(f"{address!r} is no address: {error.message}; {_FORMS}") from None


def place_of(address: str, scheme: str) -> str:
    """What follows the scheme in an address.

    >>> place_of("tcp://127.0.0.1:4000", "tcp")
    '127.0.0.1:4000'
    """
    place = address.removeprefix(f"{scheme}://")
    if not place or place == address or "\0" in place:
        raise AddressInvalid(f"{address!r} is no {scheme} address; {_FORMS}")
    return place


def sink_for(arrival: Arrival, nbytes: int) -> Sink | None:
    """The sink that a payload of `nbytes` goes to; None where it is discarded.

    A sink of another size is refused: the bytes would end in the wrong place.
    """
    if isinstance(arrival, Discard):
        return None
    if arrival.nbytes != nbytes:
        raise BadLength(f"a payload of {nbytes} bytes for a sink of {arrival.nbytes}")
    return arrival


_FORMS = "use inproc://NAME, unix:///PATH or tcp://HOST:PORT"
