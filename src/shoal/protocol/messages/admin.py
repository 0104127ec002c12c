"""Messages of tools, which need not be members: status, death reports, requests for checkpoints."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.protocol.limits import (
    LONGEST_MAX,
    WAITS_MAX,
    Launch,
    Name,
    Number,
    Seconds,
    Text,
)
from shoal.protocol.messages.base import Message
from shoal.protocol.views import View


class StatusRequest(Message, frozen=True):
    """Ask a node which requests wait for which members."""


class Waits(msgspec.Struct, frozen=True, array_like=True):
    """Members with requests of one kind that wait for the same reason.

    Attributes:
        what: the request: the table and clock, and the rows if they are the same for all.
        reason: the reason for the waits.
        count: the number of waits.
        longest: the (member, seconds) of the members that have waited longest.
    """

    what: Text
    reason: Text
    count: Number
    longest: Annotated[tuple[tuple[Text, Seconds], ...], Meta(max_length=LONGEST_MAX)] = ()


class StatusReply(Message, frozen=True):
    """The waits at node `name`.

    Attributes:
        waits: the members that wait here, the longest waits first.
        view: the current view, in a reply of the scheduler.
        slow: the (worker, share of the last `over_s` seconds in which others waited for it) of the
            slowest workers, in a reply of the scheduler.
    """

    name: Name
    waits: Annotated[tuple[Waits, ...], Meta(max_length=WAITS_MAX)]
    view: View | None = None
    slow: Annotated[tuple[tuple[Name, float], ...], Meta(max_length=WAITS_MAX)] = ()
    over_s: Seconds = 0.0


class DeathReport(Message, frozen=True):
    """A process has exited, as its host observed: it is dead without waiting for a time-out.

    Attributes:
        launch: the id of its start, which its members' `Join` had.
        orderly: whether it has exited with status 0: a server has then written its rows.
    """

    launch: Launch
    orderly: bool = False


class DeathReportSeen(Message, frozen=True):
    """The scheduler has received the report of that process.

    Attributes:
        finished: whether its members had finished their work.
    """

    senders = ("scheduler",)

    launch: Launch
    finished: bool = False


class CheckpointRequest(Message, frozen=True):
    """Ask for a checkpoint as soon as possible. Answered by CheckpointPlanned or CheckpointRefused.

    Attributes:
        number: the number among the sender's requests; a repeated request gets the first answer.
        clock: the clock of the sender, if it is a worker: the checkpoint has its earlier pushes.
    """

    number: Number
    clock: Number = 0


class CheckpointPlanned(Message, frozen=True):
    """A view names the checkpoint. It is complete when every worker has reached its clock.

    Attributes:
        number: the number of the request.
        clock: the checkpoint clock in this run.
        saved_as: the clock plus those of the runs that this one continues; it names the folder.
        folders: the (host, folder of checkpoints) of the servers.
    """

    senders = ("scheduler",)

    number: Number
    clock: Number
    saved_as: Number
    folders: tuple[tuple[str, str], ...]


class CheckpointRefused(Message, frozen=True):
    """There will be no checkpoint, with the reason."""

    senders = ("scheduler",)

    number: Number
    reason: str
