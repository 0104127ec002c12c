"""The contract of transports: non-blocking connections, chosen by the scheme of an address.

    inproc://NAME        a socket pair within this process
    unix:///PATH         a Unix socket on this host, in a directory that only its owner enters
    tcp://HOST:PORT      between hosts; only with a token; processes of one host and user go on
                         over a Unix socket that the listener has beside it
    tls://HOST:PORT      the same, encrypted, with certificates of one authority on both sides

A connection assumes neither `sendmsg` nor file descriptors of its peer. `shoal.testing.transports`
has the laws that every transport obeys.

Buffers and the views of sinks are flat views of bytes (`memoryview.cast("B")`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from shoal.errors import AddressInvalid, BadLength, InvalidValue, UnknownName
from shoal.protocol.machine import Arrival, CopyOnWriteGuard, Discard, Sink
from shoal.protocol.messages.base import Message
from shoal.protocol.views import NodeId, Role
from shoal.registry import Registry

TOKEN_MIN = 16


class Identity(msgspec.Struct, frozen=True):
    """A node's identity, for handshakes.

    tls:  the folder of the node's certificate; the process's if empty (`transport.credentials`)
    """

    node: NodeId
    role: Role
    job: str = ""
    token: str = ""
    tls: str = ""

    def __post_init__(self) -> None:
        if self.token and len(self.token) < TOKEN_MIN:
            raise InvalidValue(
                f"a token has at least {TOKEN_MIN} characters: it can be guessed otherwise; make "
                "one with `python -c 'import secrets; print(secrets.token_urlsafe())'`"
            )

    def __repr__(self) -> str:  # a token never reaches a log
        return f"Identity({self.node!r}, {self.role!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("node", self.node), ("role", self.role)]


Turn = AbstractContextManager[None]
NO_TURN: Turn = nullcontext()
Arriving = Callable[[NodeId, Message, int], Arrival]
Deliver = Callable[[NodeId, Message, Sink | None], None]
Malformed = Callable[[NodeId, Exception], None]


class Connection(ABC):
    """A connection to one peer, of which no method blocks.

    `fileno` becomes readable when there is work. `peer` is the other node, empty until the
    handshake is over. While the connection `wants_write`, also wait for `fileno` to be writable,
    and then `flush`. Otherwise `receive` sends the backlog, once the peer has made room for it.
    """

    peer: NodeId = ""
    role: Role | None = None  # the role that a caller has given
    timed_out = False  # whether it ended by silence: the peer has not closed it
    encrypted = False

    def time_out(self) -> None:
        """Record that silence ends the connection: the peer has not closed it."""
        self.timed_out = True

    @property
    def within_host(self) -> bool:
        """Whether no network is between: the connection breaks only with one of its processes."""
        return False

    @property
    def stalled(self) -> bool:
        """Whether the peer's host has acknowledged nothing for a while: the path may be cut."""
        return False

    @property
    def received(self) -> int:
        """The bytes that have come from the peer's host so far; 0 within a host."""
        return 0

    @property
    def outstanding(self) -> int:
        """The bytes that the peer's host has not acknowledged, or that are not sent yet."""
        return self.backlog

    @property
    def origin(self) -> str:
        """The place of the peer, for logs."""
        return "here"

    @property
    def heavy(self) -> bool:
        """Whether the next step of a caller's handshake takes long, such as the first of TLS."""
        return False

    def waited(self, now: float) -> None:  # noqa: B027 - most connections wait for their peer
        """Look at a caller that has not proved anything yet: it may wait for this side to speak."""

    @property
    def denied(self) -> bool:
        """Whether the handshake has failed with a verdict, which is sent by `deny`."""
        return False

    def deny(self) -> None:  # noqa: B027 - most connections are made by this node
        """Send the verdict of a failed handshake, withheld until now so that guesses are slow."""

    @property
    def backlog(self) -> int:
        """The bytes that are not sent yet."""
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

        Buffers are borrowed until they are sent, or until the `guard` recalls them: then unsent
        bytes are copied. If the peer is gone nothing is sent, and the next `receive` returns False.
        """

    @abstractmethod
    def detach(self) -> None:
        """Copy all unsent bytes: no borrowed buffer is read after this."""

    @abstractmethod
    def flush(self) -> None:
        """Send the backlog, as far as the peer accepts it."""

    @abstractmethod
    def receive(self, arriving: Arriving, deliver: Deliver, malformed: Malformed) -> bool:
        """Receive messages: `arriving` returns a payload's sink, then `deliver` gets the message.

        Returns False when the connection has ended. A well-framed message that cannot be decoded
        goes to `malformed`, and the connection goes on.

        One call receives a bounded amount, so that other connections get their turn. The rest makes
        `fileno` readable again: every whole message that was read from the socket has been
        delivered. The call that completes a handshake delivers nothing yet.

        `deliver` gets the sink when it is full, and also if it was revoked meanwhile; it gets None
        if the payload was discarded, or there was none.

        Raises:
            WireError: the bytes are no valid frame; close the connection.
            HandshakeFailed: the handshake failed; close the connection.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection: drop the backlog, and revoke a sink that is being filled."""


class Listener(ABC):
    """Accepts connections; peers connect to `address`."""

    address: str

    @abstractmethod
    def fileno(self) -> int: ...

    @abstractmethod
    def accept(self) -> Connection | None:
        """Accept a connection, often before its handshake; return None if none has arrived."""

    @abstractmethod
    def close(self) -> None: ...


class Transport(ABC):
    """Creates listeners and connections for one scheme."""

    @abstractmethod
    def listen(self, address: str, me: Identity) -> Listener: ...

    @abstractmethod
    def beside(self, address: str, name: str) -> str:
        """Return an address for this process to listen at, which nodes at `address` can reach."""

    @abstractmethod
    def connect(
        self, address: str, me: Identity, timeout_s: float, turn: Turn = NO_TURN
    ) -> Connection:
        """Connect and shake hands; block for `timeout_s` seconds at most, and for a name server.

        turn:  the context that is entered once the listener has spoken, before this side sends its
            name, on which the listener closes an earlier connection of that name; may raise
            `HandshakeFailed`
        """


transports: Registry[Callable[[], Transport]] = Registry("transport")


def transport_for(address: str) -> Transport:
    """Return the transport for an address."""
    scheme, _, rest = address.partition("://")
    if not rest:
        raise AddressInvalid(f"{address!r} is not an address; {_FORMS}")
    try:
        return transports[scheme]()
    except UnknownName as error:
        raise AddressInvalid(f"{address!r} is not an address: {error.message}; {_FORMS}") from None


def place_of(address: str, scheme: str) -> str:
    """Return the part of an address after its scheme.

    >>> place_of("tcp://127.0.0.1:4000", "tcp")
    '127.0.0.1:4000'
    """
    place = address.removeprefix(f"{scheme}://")
    if not place or place == address or "\0" in place:
        raise AddressInvalid(f"{address!r} is not a {scheme} address; {_FORMS}")
    return place


def sink_for(arrival: Arrival, nbytes: int) -> Sink | None:
    """Return the sink of a payload of `nbytes` bytes; None if the payload is discarded.

    Raises:
        BadLength: the sink has another size, so that bytes would end in the wrong place.
    """
    if isinstance(arrival, Discard):
        return None
    if arrival.nbytes != nbytes:
        raise BadLength(f"a payload of {nbytes} bytes for a sink of {arrival.nbytes}")
    return arrival


_FORMS = "use inproc://NAME, unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT"
