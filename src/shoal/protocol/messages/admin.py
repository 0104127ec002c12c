"""What those say who are no members: who asks why, and who has seen a process end."""

from __future__ import annotations

import msgspec

from shoal.protocol.messages.base import Body
from shoal.protocol.views import View


class StatusRequest(Body, frozen=True, array_like=True, tag=True):
    """Ask who waits for whom."""


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """Somebody waits.

    who, what:  waits with which request
    reason:     for whom
    seconds:    since when
    """

    who: str
    what: str
    reason: str
    seconds: float


class StatusReply(Body, frozen=True, array_like=True, tag=True):
    """Who waits at `name`.

    slow: of the scheduler, workers by the part of the last `over_s` in which others waited for them
    """

    name: str
    waits: tuple[Waiting, ...]
    view: View | None = None
    slow: tuple[tuple[str, float], ...] = ()
    over_s: float = 0.0


class DeathReport(Body, frozen=True, array_like=True, tag=True):
    """Whoever started a process has seen it end: nobody needs to wait until it has been silent."""

    host: str
    process: int


class DeathReportSeen(Body, frozen=True, array_like=True, tag=True):
    """The scheduler has been told of that process."""

    process: int
