"""Transports: frames, and `inproc`, `local`, `tcp` and `tls` connections behind one contract."""

from shoal.transport import inproc, local, tcp, tls
from shoal.transport.base import Connection, Identity, Listener, transport_for

__all__ = ["Connection", "Identity", "Listener", "inproc", "local", "tcp", "tls", "transport_for"]
