"""Transports: frames, and `inproc`, `local` and `tcp` connections behind one contract."""

from shoal.transport import inproc, local, tcp
from shoal.transport.base import Connection, Identity, Listener, transport_for

__all__ = ["Connection", "Identity", "Listener", "inproc", "local", "tcp", "transport_for"]
