"""Messages of tools, which need not be members: status, death reports, requests for checkpoints."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.protocol.limits import (
    LONGEST_MAX,
    WAITS_MAX,
    Name,
    Number,
    Seconds,
    Text,
)
from shoal.protocol.messages.base import Body
from shoal.protocol.views import View


class StatusRequest(Body, frozen=True, array_like=True, tag=True):
    """Ask a node which requests wait for which members."""


class Waits(msgspec.Struct, frozen=True, array_like=True):
    """Members that wait for the same.

    Attributes:
        what: what they have asked for: the table and clock, and the rows if they are the same.
        reason: what they wait for.
        count: of waits.
        longest: (member, seconds) of those that have waited longest.
    """

    what: Text
    reason: Text
    count: Number
    longest: Annotated[tuple[tuple[Text, Seconds], ...], Meta(max_length=LONGEST_MAX)] = ()


class StatusReply(Body, frozen=True, array_like=True, tag=True):
    """The waits at node `name`.

    Attributes:
        waits: the members that wait here, the longest waits first.
        view: the current view; from the scheduler.
        slow: (worker, share of the last `over_s` seconds in which others waited for it); from the
            scheduler, of the slowest.
    """

    name: Name
    waits: Annotated[tuple[Waits, ...], Meta(max_length=WAITS_MAX)]
    view: View | None = None
    slow: Annotated[tuple[tuple[Name, float], ...], Meta(max_length=WAITS_MAX)] = ()
    over_s: Seconds = 0.0


class DeathReport(Body, frozen=True, array_like=True, tag=True):
    """A process has exited, as its parent observed: it is dead without waiting for a time-out.

    Attributes:
        orderly: whether it has exited with status 0: a server has written its rows then.
    """

    host: Name
    process: Number
    orderly: bool = False


class DeathReportSeen(Body, frozen=True, array_like=True, tag=True):
    """The scheduler has received the report of that process.

    Attributes:
        finished: whether its members had finished their work.
    """

    process: Number
    finished: bool = False


class CheckpointRequest(Body, frozen=True, array_like=True, tag=True):
    """Ask for a checkpoint as soon as possible. Answered by CheckpointPlanned or CheckpointRefused.

    Attributes:
        number: of the sender's requests; a repeated request is answered as the first one.
        clock: of the sender, if it is a worker: the checkpoint has its pushes of earlier clocks.
    """

    number: Number
    clock: Number = 0


class CheckpointPlanned(Body, frozen=True, array_like=True, tag=True):
    """A view names the checkpoint. It is complete when every worker has reached its clock.

    Attributes:
        number: of the request.
        clock: of this run.
        saved_as: the clock with those of the runs that this one continues, which names the folder.
        folders: (host, folder of checkpoints) of the servers.
    """

    number: Number
    clock: Number
    saved_as: Number
    folders: tuple[tuple[str, str], ...]


class CheckpointRefused(Body, frozen=True, array_like=True, tag=True):
    """There will be no checkpoint, with the reason."""

    number: Number
    reason: str
