"""Messages between workers around an allreduce ring."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shoal.protocol.limits import LISTED_MAX, Name, Number, NumberOrNone
from shoal.protocol.messages.base import Body

Pieces = Annotated[tuple[Number, ...], Meta(max_length=LISTED_MAX)]


class Piece(Body, frozen=True, array_like=True, tag=True):
    """A piece of a tensor on its way around the ring; its bytes follow.

    Attributes:
        ring: identifies the workers of the ring.
        number: number of the allreduce in this ring.
        piece: number of the piece.
        whole: the sum over all workers; otherwise over those that the piece has passed.
        total: bytes of the tensor.
    """

    ring: Number
    number: Number
    piece: Number
    whole: bool
    total: Number


class MissingPieces(Body, frozen=True, array_like=True, tag=True):
    """These pieces have not arrived: send those that exist again. Without pieces, a greeting."""

    ring: Number
    number: Number
    partial: Pieces = ()
    whole: Pieces = ()


class SumAck(Body, frozen=True, array_like=True, tag=True):
    """All pieces of the allreduces up to this one have arrived from the receiver."""

    ring: Number
    number: NumberOrNone


class WorkerLeft(Body, frozen=True, array_like=True, tag=True):
    """Worker `name` has finished: it takes part in no allreduce from number `asked` on."""

    ring: Number
    name: Name
    asked: Number
