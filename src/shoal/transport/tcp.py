"""The `tcp` transport: between hosts; it listens only with a token."""

from __future__ import annotations

import errno
import ipaddress
import logging
import re
import socket
from functools import partial
from time import monotonic, sleep

from shoal.errors import AddressInUse, AddressInvalid, HandshakeFailed, JoinTimeout
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
from shoal.transport.plain_links import check_link, check_listening
from shoal.transport.sockets import StreamListener, shake

log = logging.getLogger("shoal.transport")

SCHEMES = ("tcp://", "tls://")
NAME_S = 0.25  # between questions for a name that no name server knows yet


def endpoint_of(address: str) -> tuple[str, int]:
    """Return (host, port) of a tcp://HOST:PORT or tls:// address; IPv6 hosts are in brackets.

    >>> endpoint_of("tcp://[::1]:4000")
    ('::1', 4000)
    """
    scheme = scheme_of(address)
    match = _ENDPOINT.fullmatch(place_of(address, scheme))
    if match is None or int(match["port"]) > 65535:
        raise AddressInvalid(
            f"{address!r}: use {scheme}://HOST:PORT or {scheme}://[IPv6]:PORT, with port 0 for any "
            "free one"
        )
    return match["v6"] or match["host"], int(match["port"])


_ENDPOINT = re.compile(r"(\[(?P<v6>[^\[\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})")


def seen_from(other: str, bound: str) -> str:
    """Return the address that others use for one that was bound: of one interface, if it has all.

    other:  an address of the others, to which that interface leads
    """
    if not bound.startswith(SCHEMES) or not other.startswith(SCHEMES):
        return bound
    host, port = endpoint_of(bound)
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    if not everywhere:
        return bound
    own, _ = endpoint_of(TcpTransport().beside(other, ""))
    return tcp_address(own, port, scheme_of(bound))


def await_name(address: str, timeout_s: float) -> float:
    """Wait until a name server knows the host of an address; return the seconds that it took.

    Hosts that start together may look for each other before they have their names, as pods do.
    Addresses with a number, or of other transports, are not waited for.

    Raises:
        JoinTimeout: none knows it within `timeout_s` seconds.
    """
    if not address.startswith(SCHEMES):
        return 0.0
    host, port = endpoint_of(address)
    began, said = monotonic(), False
    while True:
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if monotonic() >= began + timeout_s:
                raise JoinTimeout(
                    f"{host} of {address} is not known after {timeout_s:g} s: {error.strerror}"
                ) from None
            if not said:
                log.warning("waiting for %s of %s to be known: %s", host, address, error.strerror)
            said = True
            sleep(NAME_S)  # nothing tells of a new name
        except (OSError, ValueError):  # it cannot be a name: connecting says why
            break
        else:
            break
    return monotonic() - began if said else 0.0


def stays_here(host: str) -> bool:
    """Return whether only this host can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def scheme_of(address: str) -> str:
    """Return "tls" for a tls:// address, else "tcp"."""
    return "tls" if address.startswith("tls://") else "tcp"


def tcp_address(host: str, port: int, scheme: str = "tcp") -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class TcpTransport(Transport):
    """Plain TCP."""

    scheme = "tcp"

    def listen(self, address: str, me: Identity) -> Listener:
        host, port = endpoint_of(address)
        self._check_listening(address, host)
        if not me.token:
            others = "other users of this host" if stays_here(host) else "other hosts"
            raise AddressInvalid(
                f"{address} can be reached by {others}: pass --token-file (or set SHOAL_TOKEN) so "
                "that only members connect, or listen at unix:///PATH in a folder of your own"
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen(512)
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                text = f"{address} is taken; choose another port, or 0 for any free one"
                raise AddressInUse(text) from None
            raise AddressInvalid(f"cannot listen at {address}: {error.strerror}") from None
        except ValueError as error:  # of a host name that cannot be one
            sock.close()
            raise AddressInvalid(f"cannot listen at {address}: {error}") from None
        bound = tcp_address(host, sock.getsockname()[1], self.scheme)
        return self._listener(sock, bound, me)

    def _check_listening(self, address: str, host: str) -> None:
        """Refuse an address that may not be listened at."""
        if not stays_here(host):
            check_listening(address)

    def _listener(self, sock: socket.socket, address: str, me: Identity) -> Listener:
        return StreamListener(sock, address, me)

    def beside(self, address: str, name: str) -> str:
        """Return an address with any free port on the interface that leads to `address`."""
        host, port = endpoint_of(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port or 1))  # sends nothing; asks the routing table
            return tcp_address(probe.getsockname()[0], 0, self.scheme)

    def connect(
        self, address: str, me: Identity, timeout_s: float, turn: Turn = NO_TURN
    ) -> Connection:
        until = monotonic() + timeout_s
        host, _ = endpoint_of(address)
        leaves = None if stays_here(host) else partial(check_link, address, host)
        return shake(self._connected(address, timeout_s), me, until, turn, leaves)

    @staticmethod
    def _connected(address: str, timeout_s: float) -> socket.socket:
        endpoint = endpoint_of(address)
        try:
            return socket.create_connection(endpoint, timeout_s)
        except OSError as error:
            reason = error.strerror or str(error)
            raise HandshakeFailed(f"no process answers at {address}: {reason}") from None
        except ValueError as error:  # of a host name that cannot be one
            raise AddressInvalid(f"cannot connect to {address}: {error}") from None


transports.add("tcp", TcpTransport)
