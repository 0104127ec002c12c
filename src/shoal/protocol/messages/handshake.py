"""Messages of the handshake on a new connection: no others are decoded before a token is proved.

Names, which logs show, are printable and short.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shoal.protocol.messages.base import Message
from shoal.protocol.views import Role

Name = Annotated[str, Meta(pattern=r"\A[!-~]{0,160}\Z")]
Nonce = Annotated[bytes, Meta(min_length=16, max_length=16)]
Proof = Annotated[bytes, Meta(max_length=32)]
Reason = Annotated[str, Meta(max_length=500)]


class Challenge(Message, frozen=True):
    """The listener's greeting: its version, and a nonce for the proof of the token.

    shortcut:  the name of the listener's socket for callers of its host; "" for none
    """

    version: int
    nonce: Nonce
    token_needed: bool
    shortcut: Name = ""


class Hello(Message, frozen=True):
    """The caller's answer: its identity, and the proof of the token, which covers all of it."""

    version: int
    job: Name
    node: Name
    role: Role
    nonce: Nonce
    proof: Proof


class Welcome(Message, frozen=True):
    """The caller is accepted.

    rings:  whether both sides have passed a ring of shared memory
    arena:  whether the listener has mapped the caller's arena
    """

    node: Name
    proof: Proof
    rings: bool = False
    arena: bool = False


class Denied(Message, frozen=True):
    """The caller is refused, with the reason."""

    reason: Reason


class Malformed(Message, frozen=True):
    """A frame of the receiver could not be decoded; nothing was changed."""

    reason: Reason
