"""Messages between servers: operations along chains, and rows for syncing replicas."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from shoal.protocol.limits import (
    FRAGMENTS_TOLD_MAX,
    ORIGINS_MAX,
    PARTS_MAX,
    WINDOW,
    Finite,
    Name,
    Number,
    NumberOrNone,
    Rank,
    Seconds,
    Weight,
)
from shoal.protocol.messages.base import PARTS_SHOWN, Message, Part, Parts, Sizes
from shoal.protocol.views import ViewId

What = Literal["push", "write", "round", "accept", "call", "check"]
Origin = tuple[Number, Number, Number]
ShardVersion = tuple[Number, Number, Number]


Weighed = tuple[Weight, Finite | None]
Merges = Annotated[
    tuple[Annotated[tuple[Weighed, ...], Meta(max_length=FRAGMENTS_TOLD_MAX)], ...],
    Meta(max_length=PARTS_MAX),
]


class Replicate(Message, frozen=True):
    """An operation on rows, for the next server in their chains; keys and values follow.

    Attributes:
        number: the position among the messages from this server to that one in this view.
        path: the ranks of the servers that have applied it, from the head to the sender.
        clock: the clock of the head: all rounds below it are in this message or in earlier ones,
            for the shards of the group's tables whose chains begin with that path.
        what: the kind: a worker's "push", "write" or handler "call"; the result of a "round";
            "accept", a push that waits for its round; or "check", a comparison of replicas.
        parts: the rows.
        versions: the version of each part's shard after this operation.
        rates: the learning rate of each part, in place of that of the table.
        origins: the (incarnation, seq, forget_below) of each push in the operation.
        round: the number of the round.
        weight: the total weight of the round.
        digest: the digest of the head's rows at that version, in a check.
        pushed: the clock of the push in the operation.
        group: the worker group whose clocks the tables use.
        updates: the number of updates that rows which are written with their slots have had.
    """

    senders = ("server",)
    sizes: ClassVar[Sizes] = ()  # an operation without codecs has not a byte more
    merges: ClassVar[Merges] = ()

    view: ViewId
    number: Number
    path: Annotated[tuple[Rank, ...], Meta(max_length=1 << 10)]
    clock: Number
    what: What = "round"
    parts: Parts = ()
    versions: Annotated[tuple[Number, ...], Meta(max_length=PARTS_MAX)] = ()
    rates: Annotated[tuple[Finite | None, ...], Meta(max_length=PARTS_MAX)] = ()
    origins: Annotated[tuple[Origin, ...], Meta(max_length=ORIGINS_MAX)] = ()
    round: NumberOrNone = -1
    weight: Seconds = 0.0
    digest: int = 0
    pushed: NumberOrNone = -1
    group: Name = ""
    updates: Number = 0

    def describe(self) -> str:
        words = [f"Replicate {self.number}: {self.what}" if self.parts else "Replicate"]
        words += [part.describe() for part in self.parts[:PARTS_SHOWN]]
        if self.path:
            words.append(f"to clock {self.clock} of server-{self.path[0]}")
        return " ".join(words)


class EncodedReplicate(Replicate, frozen=True):
    """An operation whose values are encoded, or those of some parts.

    Attributes:
        sizes: of each part, the bytes of its encoded fragments; none if it is as it is.
        merges: of each part, the (weight, rate) of each push to these rows in a round, in the order
            of their merge, if it carries the pushes and not what was merged: the fragments of one
            push follow those of the other. None if it carries rows; or nothing at all.
    """

    sizes: Sizes = ()  # type: ignore[misc]  # an operation as such has no such field
    merges: Merges = ()  # type: ignore[misc]


class ReplicateAck(Message, frozen=True):
    """All messages below `number` are applied here, and shards up to `done` further down a chain.

    Credit is returned for messages that are applied here, and each shard is acknowledged
    separately: chains of different shards may form a circle, in which each server would otherwise
    wait for the next.

    Attributes:
        done: the (table, first row, version) of each of these shards.
    """

    senders = ("server",)

    view: ViewId
    number: Number
    done: Annotated[tuple[ShardVersion, ...], Meta(max_length=PARTS_MAX)]

    def describe(self) -> str:
        done = (
            f"t{table}[{at}: version {version}" for table, at, version in self.done[:PARTS_SHOWN]
        )
        return " ".join([f"ReplicateAck below {self.number}", *done])


class SeenRequests(msgspec.Struct, frozen=True, array_like=True):
    """De-duplication state: the pushes of a worker's incarnation that are in some rows."""

    incarnation: Number
    forget_below: Number
    pushes: Annotated[tuple[tuple[Number, Parts], ...], Meta(max_length=WINDOW)]


class ReplicaHistory(msgspec.Struct, frozen=True, array_like=True):
    """The state of a shard other than its rows.

    Attributes:
        seen: the pushes that are in its rows, by incarnation.
        weights: the (round, weight) of closed rounds of the table's group.
        closed: the first round that is not in the rows.
    """

    seen: Annotated[tuple[SeenRequests, ...], Meta(max_length=PARTS_MAX)]
    weights: Annotated[tuple[tuple[Number, Seconds], ...], Meta(max_length=PARTS_MAX)]
    closed: Number = 0


class StateChunk(Message, frozen=True):
    """A piece of a shard's rows at `version`, for a syncing replica.

    Attributes:
        number: the position in the same order as the Replicate messages.
        since: the number of the view in which this transfer began.
        at: the position of this piece; opaque to the receiver.
        after: the position of the next piece; opaque to the receiver.
        last: whether this is the last piece.
        past: the other state of the shard, with the first piece.
    """

    senders = ("server",)

    view: ViewId
    number: Number
    part: Part
    version: Number
    since: Number
    at: Number
    after: Number
    last: bool
    past: ReplicaHistory | None = None

    sizes: ClassVar[Sizes] = ()  # snapshots are exact
    merges: ClassVar[Merges] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.part,)
