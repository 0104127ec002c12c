"""Addresses of this host that other hosts can reach."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from shoal.client.places import scheduler_at
from shoal.engines.options import WorkerRole
from shoal.errors import InvalidValue
from shoal.transport import transport_for
from shoal.transport.credentials import default_folder
from shoal.transport.tcp import endpoint_of, scheme_of, tcp_address

ELSEWHERE = "tcp://192.0.2.1:9"  # no host has it (RFC 5737): the default route leads there


def between_hosts(host: str, port: int = 0) -> str:
    """Return an address for processes of several hosts: tls://, if this process has credentials."""
    return tcp_address(host, port, "tls" if default_folder() else "tcp")


def own_address(scheduler: str, interface: str = "") -> str:
    """Return an address of this host that the others can reach, on any free port.

    It is the address of `interface`, or else of the interface that leads to the scheduler, which is
    loopback if the scheduler's address is.
    """
    if interface:
        return tcp_address(_address_of(interface), 0, scheme_of(scheduler))
    return transport_for(scheduler).beside(scheduler, "")


def worker_address(role: WorkerRole) -> str:
    """Return the address at which a worker listens; empty for the one that its client chooses."""
    if not role.interface:
        return role.listen
    return own_address(scheduler_at(role.scheduler), role.interface)


def reachable(others: Sequence[str], interface: str = "") -> str:
    """Return the address of this host that other hosts can reach, without a port.

    It is the address of `interface`, or of the interface that leads to one of the others, or of
    that of the default route. The host's own name is not used: it may stand for loopback, or be
    unknown.

    others:  addresses of the others

    Raises:
        InvalidValue: no such address is known
    """
    if interface:
        return endpoint_of(own_address("", interface))[0]
    for way in [*others, ELSEWHERE]:
        with suppress(OSError):
            host, _ = endpoint_of(own_address(way))
            if not ip_address(host).is_loopback:
                return host
    raise InvalidValue(
        f"no address of this host is known that other hosts can reach (they are at "
        f"{', '.join(others) or 'unknown places'}): set SHOAL_INTERFACE to the name of its network "
        "interface"
    )


def advertised(bound: str, advertise: str) -> str:
    """Return the address that others use for a server that listens at `bound`.

    >>> advertised("tcp://0.0.0.0:4567", "tcp://gpu7.example.org:0")  # its port, whatever it is
    'tcp://gpu7.example.org:4567'
    """
    if not advertise.startswith(("tcp://", "tls://")):
        return advertise or bound
    host, port = endpoint_of(advertise)
    return tcp_address(host, port or endpoint_of(bound)[1], scheme_of(advertise))


def _address_of(interface: str) -> str:
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request: Any = struct.pack("256s", interface[:15].encode())
        try:
            answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
        except OSError:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise InvalidValue(
                f"no interface {interface!r} with an IPv4 address (known: {known})"
            ) from None
    return socket.inet_ntoa(answer[20:24])
