"""Notes of a server: what it reports to logs, counters and checkers.

The tag of a class is the kind of its lines in event logs and in traces of the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.keys import KeyRange
from shoal.protocol.machine import Note
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.requests import Request
from shoal.protocol.views import NodeId, ViewId


class Declined(Note, frozen=True, tag="declined"):
    """A message is declined; `verdict` is the kind of the reason, `what` the message as text."""

    verdict: str
    sender: NodeId
    what: str


class Landed(Note, frozen=True, tag="landed"):
    """A request with a payload has come in whole."""

    request: Request


class Pushed(Note, frozen=True, tag="pushed"):
    """A push has been carried out; `accepted`: it waits for the end of its round."""

    request: Request
    accepted: bool


class PullWaits(Note, frozen=True, tag="waiting"):
    """A pull of a worker's incarnation waits for a clock."""

    worker: int


class Served(Note, frozen=True, tag="served"):
    """Pulls are answered from the live rows: (the shard's number, its rows, their keys) of each."""

    pulls: Sequence[Any]


class RoundMerged(Note, frozen=True, tag="closed"):
    """A round is closed.

    shards:  by quorum or cover: (incarnations of its workers, replica, the replica's version)
    """

    clock: int
    pushes: int
    group: str
    shards: list[Any]


class Suspended(Note, frozen=True, tag="suspended"):
    """A handler is suspended until its long work is done."""

    nbytes: int


class Kept(Note, frozen=True, tag="kept"):
    """A message is kept until the suspended handler goes on."""

    message: Message


class HandledMeanwhile(Note, frozen=True, tag="meanwhile"):
    """A message is handled while a handler is suspended."""

    message: Message


class Replayed(Note, frozen=True, tag="replayed"):
    """An operation that came down a chain is applied."""

    message: Message


class ReplicasCompared(Note, frozen=True, tag="compared"):
    """Two replicas hold the same rows at a version."""

    table: str
    rows: KeyRange
    version: int


class ReplicasDiffer(Note, frozen=True, tag="differs"):
    """Two replicas hold different rows at the same version."""

    table: str
    rows: KeyRange
    version: int


class Unmoved(Note, frozen=True, tag="unmoved"):
    """Rows cannot be moved to another server: a user's handler has failed."""

    rows: KeyRange
    reason: str


class Installed(Note, frozen=True, tag="installed"):
    """A chunk of a shard that moves here is installed; `last`: the shard is complete."""

    rows: KeyRange
    last: bool


class Unsaved(Note, frozen=True, tag="unsaved"):
    """A checkpoint stays incomplete: a user's handler has failed."""

    rows: KeyRange
    clock: int
    reason: str


class Thawed(Note, frozen=True, tag="thawed"):
    """A frozen server goes on in its view, once all of that view's servers have refused another."""

    view: ViewId
    refused: ViewId
