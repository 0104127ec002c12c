"""Plain links between hosts: named in a warning, once a host, or refused by --require-tls."""

from __future__ import annotations

import logging

from shoal.errors import AddressInvalid, HandshakeRefused
from shoal.transport.credentials import requires_tls

log = logging.getLogger("shoal.node")
_named: set[str] = set()  # the hosts that were named


def check_link(address: str, host: str) -> None:
    """Name a host that this process talks to in the open, before it says anything there.

    Raises:
        HandshakeRefused: such connections are refused
    """
    if requires_tls():
        raise HandshakeRefused(
            f"{address} is not encrypted, which --require-tls refuses: use tls://HOST:PORT"
        )
    if host not in _named:
        _named.add(host)
        log.warning("what goes to %s is not encrypted: --tls encrypts it", address)


def check_listening(address: str) -> None:
    """Refuse to listen for plain connections of other hosts, if they are refused.

    Raises:
        AddressInvalid: they are
    """
    if requires_tls():
        raise AddressInvalid(
            f"{address} takes connections that are not encrypted, which --require-tls refuses: "
            "listen at tls://HOST:PORT"
        )
