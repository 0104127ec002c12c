"""Plain links between hosts: named in a warning, once each, or refused by --require-tls."""

from __future__ import annotations

import logging

from shoal.errors import AddressInvalid, HandshakeRefused
from shoal.transport.base import Connection
from shoal.transport.credentials import requires_tls

log = logging.getLogger("shoal.node")
_named: set[str] = set()  # the peers that were named


def check_link(connection: Connection, address: str, stays_here: bool) -> None:
    """Name the peer of a connection that is not encrypted.

    Raises:
        HandshakeRefused: such connections are refused
    """
    if connection.within_host or stays_here:
        return
    if requires_tls():
        raise HandshakeRefused(
            f"{address} is not encrypted, which --require-tls refuses: use tls://HOST:PORT"
        )
    if connection.peer not in _named:
        _named.add(connection.peer)
        log.warning(
            "what goes to %s at %s is not encrypted: --tls encrypts it", connection.peer, address
        )


def check_listening(address: str, stays_here: bool) -> None:
    """Refuse to listen for plain connections of other hosts, if they are refused.

    Raises:
        AddressInvalid: they are
    """
    if requires_tls() and not stays_here:
        raise AddressInvalid(
            f"{address} takes connections that are not encrypted, which --require-tls refuses: "
            "listen at tls://HOST:PORT"
        )
