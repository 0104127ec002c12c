"""Messages between a run's engine and its hosts: processes, and the files of the run's folder."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from shoal.protocol.limits import Name, Number
from shoal.protocol.messages.base import Message

PIECE_BYTES = 4 << 20  # of a file, in one message
LISTING_BYTES_MAX = 64 << 20  # of the names of all files
REPORTS_MAX = 1 << 12
REPORTS_BYTES = 1 << 20  # of reports, in one message
REPORT_CHARACTERS = 1 << 17

FileName = Annotated[str, Meta(max_length=1 << 12)]
Report = Annotated[str, Meta(max_length=REPORT_CHARACTERS)]
What = Literal[
    "start",
    "signal",
    "stop",
    "clock",
    "sees",
    "begin",
    "list",
    "state",
    "read",
    "digest",
    "put",
    "remove",
]


class HostHeld(Message, frozen=True):
    """The sender starts processes on its host, and answers for the run's folder there.

    Attributes:
        label: the host's name.
        path: the path of the folder there.
        address: the address on which processes are to listen there, with port 0.
    """

    label: Name
    path: FileName
    address: Name


class HostAsked(Message, frozen=True):
    """Do something on the host, and answer with this number.

    Attributes:
        what: "start" the task that the payload has as JSON (answer: its launch), "signal" process
            `name` with `size`, "stop" all processes; "clock" (answer: the host's time), "sees"
            (whether path `name` is a file there of `start` bytes); "begin" the run's folder, with
            the time at which the run began as payload; "list" it, the "state" of a file, "read"
            `size` bytes of it from `start`, "digest" them, "put" the payload at `start`, "remove"
            a file.
        name: the name of a process, or of a file in the folder; for "sees" a path.
        last: whether a file that is put is whole then.
    """

    number: Number
    what: What
    name: FileName = ""
    start: Number = 0
    size: Annotated[int, Meta(ge=0, le=PIECE_BYTES)] = 0
    last: bool = False


class HostAnswered(Message, frozen=True):
    """The answer is the payload; or the system's number of an error, and its text."""

    number: Number
    errno: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    error: FileName = ""


class HostReports(Message, frozen=True):
    """What processes have done, from report number `first` on, as JSON."""

    first: Number
    reports: Annotated[tuple[Report, ...], Meta(max_length=REPORTS_MAX)]


class HostReportsSeen(Message, frozen=True):
    """All reports before number `until` have arrived; also the answer to `HostHeld`."""

    until: Number
