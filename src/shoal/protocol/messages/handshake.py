"""Messages of the handshake on a new connection."""

from __future__ import annotations

from shoal.protocol.messages.base import Body
from shoal.protocol.views import NodeId, Role


class Challenge(Body, frozen=True, array_like=True, tag=True):
    """The listener's greeting: its version, and a nonce for the proof of the token."""

    version: int
    nonce: bytes
    token_needed: bool


class Hello(Body, frozen=True, array_like=True, tag=True):
    """The caller's answer: its identity, and the proof of the token."""

    version: int
    job: str
    node: NodeId
    role: Role
    incarnation: int
    nonce: bytes
    proof: bytes


class Welcome(Body, frozen=True, array_like=True, tag=True):
    """The caller is accepted. `rings`: both sides have passed a ring of shared memory."""

    node: NodeId
    proof: bytes
    rings: bool = False


class Denied(Body, frozen=True, array_like=True, tag=True):
    """The caller is refused, with the reason."""

    reason: str


class Malformed(Body, frozen=True, array_like=True, tag=True):
    """A frame of the receiver's could not be decoded; nothing was changed."""

    reason: str
