"""What workers ask servers, and what these answer."""

from __future__ import annotations

from typing import Literal

from shoal.protocol.messages.base import Body, Part
from shoal.protocol.views import ViewId


class Request(Body, frozen=True, array_like=True, tag=True):
    """What one worker asks of one server, in this order: push, advance, pull.

    seq:            with the incarnation, the request id
    forget_below:  every request below this is settled; the server forgets them
    clock:          the worker's clock at the push
    advance:        the worker's clock afterwards, or -1
    weight:         of this push among its round's (0 < weight), such as its batch size
    lr:             overrides the table's learning rate for this push
    assign:         write the rows instead of handing an update to the access method
    follows:        earlier requests, whose pushes have to be taken before this one is
    """

    view: ViewId
    incarnation: int
    seq: int
    forget_below: int
    clock: int
    pushes: tuple[Part, ...] = ()
    advance: int = -1
    pulls: tuple[Part, ...] = ()
    weight: float = 1.0
    lr: float | None = None
    assign: bool = False
    follows: tuple[int, ...] = ()


Code = Literal[
    "applied", "accepted", "refused", "round_closed", "missing", "waiting", "stale", "out_of_order"
]


class Reply(Body, frozen=True, array_like=True, tag=True):
    """The answer to a request, or its present state.

    applied:       done; the pulled rows follow as payload
    accepted:      in the round's accumulator; `applied` comes when the round closes
    parked:        the pull waits; `reason` says for whom
    missing:       this server has not seen it: send it again
    stale:         the views differ; `view` is the server's
    early:         one that it follows is missing: send that, and then this again
    refused, round_closed: final, with `reason`
    """

    incarnation: int
    seq: int
    view: ViewId
    code: Code
    reason: str = ""
    clock_min: int = -1
    round_weight: float = -1.0
    payload: int = 0


class Probe(Body, frozen=True, array_like=True, tag=True):
    """Ask what became of a request. `urgent` asks the server to nudge those it waits for."""

    view: ViewId
    incarnation: int
    seq: int
    urgent: bool = False


class Nudge(Body, frozen=True, array_like=True, tag=True):
    """Somebody waits for you: send again what you have outstanding."""

    reason: str
