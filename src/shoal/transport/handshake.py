"""Handshake: version, job and token, proved in both directions before anything else is read.

    listener -> Challenge(version, nonce, shortcut)
    caller   -> Hello(version, job, node, role, nonce', proof)
    listener -> Welcome(node, proof) or Denied(reason)

    caller's proof    HMAC(token, ["caller", nonce, nonce', version, job, node, role])
    listener's proof  HMAC(token, ["listener", nonce', nonce, version, node])

The token itself never travels.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import msgspec
from msgspec.structs import replace

from shoal.errors import HandshakeFailed, HandshakeRefused
from shoal.protocol.messages.base import PROTOCOL_VERSION, SCHEDULER, Message
from shoal.protocol.messages.handshake import Challenge, Denied, Hello, Welcome
from shoal.protocol.views import NodeId
from shoal.transport.base import Identity
from shoal.transport.wire import other_version

WRONG_TOKEN = Denied("wrong token")


def challenge(me: Identity, shortcut: str = "") -> Challenge:
    return Challenge(PROTOCOL_VERSION, secrets.token_bytes(16), bool(me.token), shortcut)


def hello(me: Identity, asked: Message) -> Hello:
    """Return the caller's answer to a challenge."""
    if not isinstance(asked, Challenge):
        raise HandshakeFailed(f"expected a challenge, not {type(asked).__name__}")
    if asked.version != PROTOCOL_VERSION:
        raise HandshakeRefused(other_version("the peer", asked.version, f"this {me.role}"))
    if asked.token_needed and not me.token:
        raise HandshakeRefused(
            "the peer asks for a token: pass --token-file, or token=, or set SHOAL_TOKEN"
        )
    said = Hello(PROTOCOL_VERSION, me.job, me.node, me.role, secrets.token_bytes(16), b"")
    return replace(said, proof=_callers_proof(me.token, asked, said))


def farewell(me: Identity) -> Hello:
    """Return the hello to a listener of another version, so that it can name both versions."""
    return Hello(PROTOCOL_VERSION, me.job, me.node, me.role, bytes(16), b"")


def judge(me: Identity, asked: Challenge, answer: Message, rings: bool = False) -> Welcome | Denied:
    """Return the listener's verdict on a hello.

    rings:  whether the hello came with a ring of shared memory
    """
    if not isinstance(answer, Hello):
        return Denied(f"expected a hello, not {type(answer).__name__}")
    if answer.version != PROTOCOL_VERSION:
        return Denied(other_version(f"this {answer.role}", answer.version, "the peer"))
    proof = _callers_proof(me.token, asked, answer)
    if me.token and not hmac.compare_digest(answer.proof, proof):
        return WRONG_TOKEN
    if me.job and answer.job and me.job != answer.job:
        return Denied(f"it belongs to job {me.job!r}, not {answer.job!r}")
    if not answer.node or answer.node == SCHEDULER or answer.role == "scheduler":
        return Denied("the scheduler does not connect to members; members connect to it")
    return Welcome(me.node, _listeners_proof(me.token, asked, answer, me.node), rings)


def conclude(me: Identity, asked: Challenge, said: Hello, verdict: Message) -> Welcome:
    """Check the listener's verdict and return it, for the caller."""
    if isinstance(verdict, Denied):
        raise HandshakeRefused(f"the peer refused the connection: {verdict.reason}")
    if not isinstance(verdict, Welcome):
        raise HandshakeFailed(f"expected a welcome, not {type(verdict).__name__}")
    proof = _listeners_proof(me.token, asked, said, verdict.node)
    if me.token and not hmac.compare_digest(verdict.proof, proof):
        raise HandshakeRefused("the peer has another token; use the cluster's token on both nodes")
    return verdict


def _callers_proof(token: str, asked: Challenge, said: Hello) -> bytes:
    named = said.version, said.job, said.node, said.role
    return _proof(token, ("caller", asked.nonce, said.nonce, *named))


def _listeners_proof(token: str, asked: Challenge, said: Hello, node: NodeId) -> bytes:
    return _proof(token, ("listener", said.nonce, asked.nonce, asked.version, node))


def _proof(token: str, over: tuple[bytes | str | int, ...]) -> bytes:
    if not token:
        return b""
    return hmac.new(token.encode(), msgspec.msgpack.encode(over), hashlib.sha256).digest()
