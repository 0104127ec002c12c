"""What the server before this one may send: looked at before anything changes."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.limits import EARLY_MAX
from shoal.protocol.messages import Replicate, StateChunk
from shoal.protocol.server.replica import NOT_BEGUN, Replica


def problem_of(
    message: Replicate | StateChunk, found: Sequence[Replica] | None, expected: int
) -> str:
    """Return why no server of this view sends a message; empty if one may.

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
    if message.what == "accept" and len(message.origins) != 1:
        return f"an accepted push, of {len(message.origins)} requests"
    if message.what in ("round", "accept") and message.parts and message.round < 0:
        return "it is of no round"
    for replica, part in zip(found, message.parts, strict=True):
        told = message.what in ("round", "check")
        least = -1 if message.what == "round" else 0
        problem = replica.problem_of(part, message.what == "call", told, least)
        if problem:
            return problem
        if message.what == "check" and (part.keys >= 0) == (replica.shard.spec.kind == "dense"):
            return f"a check of {part.keys} keys of table {replica.shard.spec.name!r}"
    return skipped(message, found) if message.number == expected else ""


def skipped(message: Replicate | StateChunk, found: Sequence[Replica]) -> str:
    """Return which version of a message does not follow the version here; empty if all do."""
    if isinstance(message, StateChunk) or message.what == "check":
        return ""
    here: dict[int, int] = {}
    for replica, version in zip(found, message.versions, strict=True):
        if replica.version == NOT_BEGUN or version <= replica.version:
            continue  # that part is left out
        known = here.get(replica.number, replica.version)
        if version != known + 1:
            return f"version {version} of {replica.rows} after version {known}"
        here[replica.number] = version
    return ""
