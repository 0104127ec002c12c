"""Messages of tools that are no members: status requests and death reports."""

from __future__ import annotations

import msgspec

from shoal.protocol.messages.base import Body
from shoal.protocol.views import View


class StatusRequest(Body, frozen=True, array_like=True, tag=True):
    """Ask a node which requests wait for which members."""


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A member that waits.

    Attributes:
        who: the waiting member's name.
        what: its request.
        reason: what it waits for.
        seconds: how long it has waited.
    """

    who: str
    what: str
    reason: str
    seconds: float


class StatusReply(Body, frozen=True, array_like=True, tag=True):
    """The waits at node `name`.

    Attributes:
        waits: the members that wait here.
        view: the current view; from the scheduler.
        slow: (worker, share of the last `over_s` seconds in which others waited for it); from the
            scheduler.
    """

    name: str
    waits: tuple[Waiting, ...]
    view: View | None = None
    slow: tuple[tuple[str, float], ...] = ()
    over_s: float = 0.0


class DeathReport(Body, frozen=True, array_like=True, tag=True):
    """A process has exited, as its parent observed: it is dead without waiting for a time-out."""

    host: str
    process: int


class DeathReportSeen(Body, frozen=True, array_like=True, tag=True):
    """The scheduler has received the report of that process."""

    process: int
