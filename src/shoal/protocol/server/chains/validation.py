"""Checks of the messages of the server before this one, before anything changes."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.limits import EARLY_MAX
from shoal.protocol.messages.replication import Replicate, StateChunk
from shoal.protocol.server.state.replica import Replica


def problem_of(
    message: Replicate | StateChunk, found: Sequence[Replica] | None, expected: int
) -> str:
    """Return the problem of a message from another server; empty if it has none.

    found: the replicas that it changes, one for each part; None if its sender changes no such rows
    expected: the number of the next message of its sender
    """
    if found is None:
        return "it changes rows of which its sender is not the server before this one"
    if message.number > expected + EARLY_MAX:
        return f"number {message.number}, where {expected} is the next"
    if isinstance(message, StateChunk):
        [replica] = found
        return replica.problem_of(message.part, replica.shard.spec.kind == "custom", True)
    if not len(message.parts) == len(message.versions) == len(message.rates):
        return "parts, versions and rates do not agree"
    for some in (message.sizes, message.merges):
        if some and len(some) != len(message.parts):
            return "parts and sizes do not agree"
    if message.what == "check" and len(message.parts) != 1:
        return f"a check of {len(message.parts)} parts"
    if message.what == "accept" and len(message.origins) != 1:
        return f"an accepted push, of {len(message.origins)} requests"
    if message.what in ("round", "accept") and message.parts and message.round < 0:
        return "it is of no round"
    for number, (replica, part) in enumerate(zip(found, message.parts, strict=True)):
        told = message.what in ("round", "check")
        least = -1 if message.what == "round" else 0
        call, write = message.what == "call", message.what == "write"
        problem = replica.problem_of(part, call, told, least, write)
        problem = problem or _encoded_problem(message, number, replica)
        if problem:
            return problem
        if message.what == "check" and (part.keys >= 0) == (replica.shard.spec.kind == "dense"):
            return f"a check of {part.keys} keys of table {replica.shard.spec.name!r}"
    return _disordered(message, found) if message.what != "check" else ""


def _encoded_problem(message: Replicate, number: int, replica: Replica) -> str:
    """Return why a part of a message cannot be encoded as it is; empty if it can or is not."""
    sizes = message.sizes[number] if message.sizes else ()
    pushes = len(message.merges[number]) if message.merges else 0
    if not sizes and not pushes:
        return ""
    if (message.what == "round") != (pushes > 0) or message.what not in ("push", "accept", "round"):
        return f"a {message.what} that is encoded, of {pushes} pushes"
    return replica.encoded_problem(message.parts[number], sizes, max(pushes, 1))


def _disordered(message: Replicate, found: Sequence[Replica]) -> str:
    """Return which versions of one replica do not follow each other; empty if all do.

    The first version is not compared with the version here: if it does not follow that, the servers
    have diverged, and this one stops, to be started and synced again.
    """
    told: dict[int, int] = {}
    for replica, version in zip(found, message.versions, strict=True):
        before = told.get(replica.number)
        if before is not None and version != before + 1:
            return f"version {version} of {replica.rows} after version {before}"
        told[replica.number] = version
    return ""
