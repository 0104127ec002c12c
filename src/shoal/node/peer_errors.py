"""PeerErrors: the mistakes of peers, counted by type; repeated ones do not fill the log."""

from __future__ import annotations

import logging
from collections import Counter
from time import monotonic

from shoal.errors import BadLength, HandshakeFailed, InvariantBroken, PeerFault
from shoal.protocol.messages.base import Message
from shoal.transport import Connection

log = logging.getLogger("shoal.node")
TRACED_S = 1.0  # between two traces


class PeerErrors:
    """Counts errors by type, and callers that were refused by reason.

    At most one `PeerFault` a second is logged, with its trace. Of any other type the first error is
    logged, then those at powers of two.
    """

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._traced_at = -TRACED_S

    def hung_up(self) -> None:
        """Count a caller that has hung up before it had proved anything, as probes of ports do."""
        self._counters["HandshakeFailed (cut off)"] += 1

    def count(self, error: Exception, connection: Connection | None) -> None:
        kind = type(error).__name__
        if isinstance(error, HandshakeFailed) and error.reason:
            kind = f"{kind} ({error.reason})"
        self._counters[kind] += 1
        seen = self._counters[kind]
        who = "a peer that is gone"
        if connection is not None:
            who = connection.peer or f"a stranger at {connection.origin}"
        if isinstance(error, PeerFault):
            now = monotonic()
            if now >= self._traced_at + TRACED_S:
                self._traced_at = now
                log.error("%s x%d from %s: %s", kind, seen, who, error, exc_info=error.__cause__)
        elif seen & (seen - 1) == 0:
            log.warning("%s x%d from %s: %s", kind, seen, who, error)


def peer_fault(message: Message, nbytes: int, error: Exception) -> PeerFault:
    """Return the `PeerFault` of an unexpected error of `arriving` or `problem_of`.

    Raises:
        InvariantBroken, BadLength: the error itself, if it is one of these.
    """
    if isinstance(error, InvariantBroken | BadLength):
        raise error
    what = f"{type(message).__name__}" + (f" with {nbytes} bytes" if nbytes else "")
    return PeerFault(f"{what}: {type(error).__name__}: {error}")
