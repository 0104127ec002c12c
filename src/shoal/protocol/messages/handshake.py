"""What two nodes say to each other when a connection is new."""

from __future__ import annotations

from shoal.protocol.messages.base import Body
from shoal.protocol.views import NodeId, Role


class Challenge(Body, frozen=True, array_like=True, tag=True):
    """The listener's first words: its version, and a nonce to prove the token with."""

    version: int
    nonce: bytes
    token_needed: bool


class Hello(Body, frozen=True, array_like=True, tag=True):
    version: int
    job: str
    node: NodeId
    role: Role
    incarnation: int
    nonce: bytes
    proof: bytes


class Welcome(Body, frozen=True, array_like=True, tag=True):
    """`rings`: the caller's ring of shared memory came, and the listener's is with this."""

    node: NodeId
    proof: bytes
    rings: bool = False


class Denied(Body, frozen=True, array_like=True, tag=True):
    reason: str


class Malformed(Body, frozen=True, array_like=True, tag=True):
    """A frame of yours could not be understood; nothing was changed."""

    reason: str
