"""Requests of workers to servers, and their replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from shoal.protocol.limits import PARTS_ASKED_MAX, WINDOW, Finite, Number, NumberOrNone, Text
from shoal.protocol.messages.base import PARTS_SHOWN, Lists, Message, Part, Sizes
from shoal.protocol.views import FOREVER, ViewId

Asked = Annotated[tuple[Part, ...], Meta(max_length=PARTS_ASKED_MAX)]


class Request(Message, frozen=True):
    """Push, advance and pull, in this order, of one worker at one server.

    Attributes:
        seq: the sequence number; with the incarnation it identifies the request.
        forget_below: the sequence number below which all requests are resolved; the server forgets
            them.
        clock: the clock of the worker at the push.
        advance: the clock of the worker afterwards, or -1.
        weight: the weight of this push in its round, > 0, such as its batch size.
        rates: the learning rate of each part of the push, in place of that of the table; or none at
            all.
        assign: whether the rows are written without the access method.
        follows: the earlier requests whose pushes the server has to admit before this one.
        updates: the number of updates that assigned rows with their slots have had.
    """

    senders = ("worker",)
    sizes: ClassVar[Sizes] = ()  # a request without codecs has not a byte more
    pulled: ClassVar[Sizes] = ()
    lists: ClassVar[Lists] = ()

    view: ViewId
    incarnation: Number
    seq: Number
    forget_below: Number
    clock: Number
    pushes: Asked = ()
    advance: NumberOrNone = -1
    pulls: Asked = ()
    weight: float = 1.0
    rates: Annotated[tuple[Finite | None, ...], Meta(max_length=PARTS_ASKED_MAX)] = ()
    assign: bool = False
    follows: Annotated[tuple[Number, ...], Meta(max_length=WINDOW)] = ()
    updates: Number = 0

    def key_counts(self) -> list[int]:
        """Return the number of keys of each part that names some."""
        return [part.keys for part in (*self.pushes, *self.pulls) if part.keys >= 0]

    def describe(self) -> str:
        words = [f"Request #{self.seq}"]
        words += [f"push {part.describe()}" for part in self.pushes[:PARTS_SHOWN]]
        if self.pushes:
            words.append(f"at clock {self.clock}")
        if self.advance >= 0:
            forever = self.advance == FOREVER
            words.append("advance forever" if forever else f"advance to {self.advance}")
        words += [f"pull {part.describe()}" for part in self.pulls[:PARTS_SHOWN]]
        return " ".join(words)

    def describe_for(self, tables: Sequence[str], rows: bool = True) -> str:
        """Return the request as text with names of tables; with `rows`, the first rows of each."""

        def of(part: Part) -> str:
            keys = f"{part.keys} keys of " if part.keys >= 0 else ""
            return f"{keys}{tables[part.table]}[{part.start}:{part.stop})"

        words = []
        for what, parts in (("push", self.pushes), ("pull", self.pulls)):
            each_once = [tables[number] for number in dict.fromkeys(part.table for part in parts)]
            named = [of(each) for each in parts[:PARTS_SHOWN]] if rows else each_once
            words += [f"{what} {each}" for each in named]
            if rows and len(parts) > PARTS_SHOWN:
                words.append(f"{what} {len(parts) - PARTS_SHOWN} more")
        clock = max(self.clock, self.advance)
        when = "after its last clock" if clock >= FOREVER else f"at clock {clock}"
        return f"{', '.join(words)} {when}"


class EncodedRequest(Request, frozen=True):
    """A request whose push or pull is encoded, or some parts of it.

    Attributes:
        sizes: of each part of the push, the bytes of its encoded fragments; none if it is as it is;
            or nothing at all.
        pulled: the same of the rows that are pulled.
    """

    sizes: Sizes = ()  # type: ignore[misc]  # a request as such has no such field
    pulled: Sizes = ()  # type: ignore[misc]


class ListedRequest(EncodedRequest, frozen=True):
    """A request some of whose lists of keys the server keeps, or has kept.

    Attributes:
        lists: how the keys of each part are sent that names some: of the pushes, then of the pulls.
    """

    lists: Lists = ()  # type: ignore[misc]


Code = Literal[
    "applied",
    "accepted",
    "refused",
    "round_closed",
    "missing",
    "keys",
    "waiting",
    "stale",
    "out_of_order",
]


class Reply(Message, frozen=True):
    """The answer to a request, or its current state.

    The codes:

    applied                 done; the pulled rows follow as payload
    accepted                held for its round; `applied` follows when the round closes
    waiting                 the pull waits; `reason` names the members that it waits for
    missing                 this server has not received the request: send it again
    keys                    it has not got a list of keys that the request names: send them
    stale                   the views differ; `view` is the view of the server
    out_of_order            a request that it follows is missing: send that one first
    refused, round_closed   final, with `reason`

    Attributes:
        updates: the largest number of updates of a fragment that was pulled with its slots, or -1.
    """

    senders = ("server",)

    incarnation: Number
    seq: Number
    view: ViewId
    code: Code
    reason: Text = ""
    clock_min: NumberOrNone = -1
    round_weight: float = -1.0
    payload: Number = 0
    updates: NumberOrNone = -1

    def describe(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        payload = f" {self.payload} bytes" if self.payload else ""
        return f"Reply #{self.seq} {self.code}{reason}{payload}"


class Probe(Message, frozen=True):
    """Ask for the state of a request. If `urgent` the server nudges workers that it waits for."""

    senders = ("worker",)

    view: ViewId
    incarnation: Number
    seq: Number
    urgent: bool = False

    def describe(self) -> str:
        return f"Probe #{self.seq}" + (" urgent" if self.urgent else "")


class Nudge(Message, frozen=True):
    """A request waits for the receiver, which should probe its outstanding requests."""

    senders = ("server",)

    reason: Text


class Computing(Message, frozen=True):
    """A worker's answer to a nudge: it lives, and waits for no other member.

    A server passes it on to the workers of its group when all the slowest ones have said so.
    """

    incarnation: Number
