"""What servers say to each other: changes on their way down the chains, and rows for learners."""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.protocol.messages.base import Body, Part
from shoal.protocol.views import ViewId


class Replicate(Body, frozen=True, array_like=True, tag=True):
    """What was done to rows, for the next server in their chains; keys and values follow.

    number:    of those from this server to that one in this view
    path:      the ranks of the servers that have done it, from its head to the one that says so
    clock:     of the head: all rounds below it are in this one or in earlier ones, of the arcs
               of the group's tables whose chains begin with that path
    what:      a push, a write or a call of a handler, as its worker sent it, what a round came to,
               or a push that waits for its round, as its head has accepted it; or nothing: a check
               of what is there
    parts, versions, rates:  the rows; for each part how often its arc has been changed with this,
               and the learning rate that overrides the table's
    origins:   the pushes in it: (incarnation, seq, forget_below)
    round, weight: of the round
    digest:    of a check: of the rows that the head has at that version
    pushed:    the clock of the push in it
    group:     of workers, whose clocks these are
    """

    view: ViewId
    number: int
    path: tuple[int, ...]
    clock: int
    what: Literal["push", "write", "round", "accept", "call", "check"] = "round"
    parts: tuple[Part, ...] = ()
    versions: tuple[int, ...] = ()
    rates: tuple[float | None, ...] = ()
    origins: tuple[tuple[int, int, int], ...] = ()
    round: int = -1
    weight: float = 0.0
    digest: int = 0
    pushed: int = -1
    group: str = ""


class ReplicateAck(Body, frozen=True, array_like=True, tag=True):
    """All below `number` has been done here, and of each arc so much on the servers after as well.

    Credit is given back for what is done here, and each arc is acknowledged by itself: chains may
    go around in a circle, where each server would wait for the next one otherwise.

    done: (table, first row, version) of arcs
    """

    view: ViewId
    number: int
    done: tuple[tuple[int, int, int], ...]


class SeenRequests(msgspec.Struct, frozen=True, array_like=True):
    """The pushes of a worker's incarnation that are in some rows: by request, with their parts."""

    incarnation: int
    forget_below: int
    pushes: tuple[tuple[int, tuple[Part, ...]], ...]


class ReplicaHistory(msgspec.Struct, frozen=True, array_like=True):
    """What belongs to an arc's rows besides them.

    weights: of closed rounds, of the group that its table belongs to
    closed:  no round from this one on is in the rows
    """

    seen: tuple[SeenRequests, ...]
    weights: tuple[tuple[int, float], ...]
    closed: int = 0


class StateChunk(Body, frozen=True, array_like=True, tag=True):
    """A piece of an arc's rows as they are at `version`, for the server that learns it.

    number:     as of a Replicate, in one order with them
    since:      the view in which this learning began
    at, after:  the position of this piece, and of the next; nothing but the sender reads them
    last:       there is no next
    past:       with the first
    """

    view: ViewId
    number: int
    part: Part
    version: int
    since: int
    at: int
    after: int
    last: bool
    past: ReplicaHistory | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.part,)
