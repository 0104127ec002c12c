"""Messages of the protocol, one module per conversation. Plain data: no torch, no I/O.

On the wire a message is a msgpack array whose first item is its class name (`transport.wire`). Keys
and values follow as raw buffers, in the order of the parts that announce them.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.protocol.messages import (
    admin,
    collective,
    handshake,
    hosts,
    membership,
    replication,
    requests,
)
from shoal.protocol.messages.base import Message

__all__ = [
    "MESSAGES",
    "admin",
    "collective",
    "handshake",
    "hosts",
    "membership",
    "replication",
    "requests",
]


def _kinds(of: type[Message]) -> Iterator[type[Message]]:
    for kind in of.__subclasses__():
        yield kind
        yield from _kinds(kind)


MESSAGES: tuple[type[Message], ...] = tuple(_kinds(Message))
