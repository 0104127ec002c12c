"""The event log of a run: JSON lines, appended, the single source of every table and plot.

All processes of one machine append to the same file. A line is one `write` to a file opened for
appending, so lines of several processes do not mix. On a full disk lines are lost, and the process
goes on: the first line that fits again says how many.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shoal.storage.files import open_file, unreadable

log = logging.getLogger("shoal.events")
_encoder = msgspec.json.Encoder()


EVENT_BYTES_MAX = 16 << 20  # no event is so long

Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Figure = float | None  # None: not a number


class Event(msgspec.Struct):
    """The fields of every event; kinds that are read again have more, and others are ignored."""

    t: float
    kind: str
    node: str


class _OfWorker(Event):
    node: Annotated[str, Meta(pattern="worker-[0-9]{1,9}$")]


class _Begin(_OfWorker):
    batches: Count
    weights: str = ""


class _Step(_OfWorker):
    epoch: Count
    step: Count
    loss: Figure
    samples: Count
    staleness: Figure = 0.0
    idle_s: float = 0.0
    bytes_sent: Count = 0
    bytes_received: Count = 0


class _End(Event):
    """The end of a worker; workloads other than `shoal train` record it without figures."""

    seconds: float = 0.0
    idle_s: float = 0.0
    bytes_sent: Count = 0
    bytes_received: Count = 0


class _Eval(_OfWorker):
    epoch: int  # -1: at the end
    step: Count
    accuracy: float
    loss: Figure
    seconds: float = 0.0


class _Logged(_OfWorker):
    """Figures that a user's code has recorded."""

    rank: Count
    step: Count
    figures: dict[str, Figure]


class _Named(Event):
    name: str


class _Lost(_Named):
    """The loss of a member, recorded by the scheduler; `launch` is the start of its process."""

    how: str = ""
    launch: str = ""


class _Ending(Event):
    reason: str


class _View(Event):
    reason: str
    whole: bool
    servers: Count
    workers: Count


class _Batches(Event):
    """Consecutive batches of an epoch."""

    epoch: Count
    first: Count
    count: Count
    group: str = ""


class _Leased(_Batches, kw_only=True):
    epochs: Count
    batches: Count
    clock: Count

    def __post_init__(self) -> None:
        if self.count and not (
            self.epoch < self.epochs and self.first + self.count <= self.batches
        ):
            raise ValueError(
                f"batches {self.first} to {self.first + self.count} of epoch {self.epoch} are none "
                f"of {self.batches} in {self.epochs} epochs"
            )


class _Table(Event):
    table: str
    rows: Count
    evicted: Count


KINDS: dict[str, type[Event]] = {
    "begin": _Begin,
    "dropped": _Named,
    "end": _End,
    "ending": _Ending,
    "eval": _Eval,
    "leased": _Leased,
    "logged": _Logged,
    "lost": _Lost,
    "returned": _Batches,
    "step": _Step,
    "table": _Table,
    "view": _View,
}


def object_of(line: bytes) -> dict[str, Any]:
    """Decode the JSON object in a line.

    Raises:
        ValueError: the line has none
    """
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except RecursionError as error:
        raise ValueError(str(error)) from None


def event_of(line: bytes) -> dict[str, Any]:
    """Decode the event in a line.

    Raises:
        ValueError: the line is no event
    """
    event = object_of(line)
    kind = event.get("kind")
    msgspec.convert(event, KINDS.get(kind, Event) if isinstance(kind, str) else Event)
    return event


class EventLog:
    """Appends the events of one node.

    started_at: the run's beginning (`time.time()`); events carry seconds since then as `t`
    now:        the function that returns the time, such as that of a simulated run
    """

    def __init__(
        self, path: Path, node: str, started_at: float, now: Callable[[], float] = time.time
    ) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._node = node
        self._started_at = started_at
        self._now = now
        self._lost = 0  # lines that could not be written
        self._torn = False  # whether the last line is not whole

    def write(self, kind: str, **fields: Any) -> None:
        event = {"t": round(self.elapsed(), 6), "kind": kind, "node": self._node, **fields}
        if self._lost:
            event["lost_lines"] = self._lost
        line = b"\n" * self._torn + _encoder.encode(event) + b"\n"
        try:
            written = os.write(self._file, line)
        except OSError as error:
            if not self._lost:
                log.warning("events are lost: %s", error)
            self._lost += 1
            return
        self._torn = written < len(line)
        self._lost = self._lost + 1 if self._torn else 0

    def elapsed(self) -> float:
        """Return the seconds since the run began."""
        return self._now() - self._started_at

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class NewEvents:
    """The events of a log that is being written: each call returns the events since the last call.

    Lines that are no events, as a full disk leaves them, are left out.

    kinds:  the kinds of events to read; all kinds if none is given

    Raises:
        DataCorrupt: the log cannot be read
    """

    def __init__(self, path: Path, kinds: Collection[str] = ()) -> None:
        self._path = path
        self._marks = [f'"kind":"{kind}"'.encode() for kind in kinds]
        self._offset = 0

    def __call__(self) -> list[dict[str, Any]]:
        try:
            with open_file(self._path) as file:
                file.seek(self._offset)
                *whole, rest = (data := file.read(EVENT_BYTES_MAX)).split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self._path, error) from None
        if len(rest) == EVENT_BYTES_MAX:  # no event is so long
            rest = b""
        self._offset += len(data) - len(rest)
        events = []
        for line in whole:
            if self._marks and not any(mark in line for mark in self._marks):
                continue
            with suppress(ValueError):
                events.append(event_of(line))
        return events


def process_started_at() -> float:
    """Return the `time.time()` at which this process was started, before its imports."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        age = time.process_time()
    return time.time() - max(0.0, age)
