"""Messages between workers around an allreduce ring."""

from __future__ import annotations

from shoal.protocol.messages.base import Body


class Piece(Body, frozen=True, array_like=True, tag=True):
    """A piece of a tensor on its way around the ring; its bytes follow.

    Attributes:
        ring: identifies the workers of the ring.
        number: number of the allreduce in this ring.
        piece: number of the piece.
        whole: the sum over all workers; otherwise over those that the piece has passed.
        total: bytes of the tensor.
    """

    ring: int
    number: int
    piece: int
    whole: bool
    total: int


class MissingPieces(Body, frozen=True, array_like=True, tag=True):
    """These pieces have not arrived: send those that exist again. Without pieces, a greeting."""

    ring: int
    number: int
    partial: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()


class SumAck(Body, frozen=True, array_like=True, tag=True):
    """All pieces of the allreduces up to this one have arrived from the receiver."""

    ring: int
    number: int


class WorkerLeft(Body, frozen=True, array_like=True, tag=True):
    """Worker `name` has finished: it takes part in no allreduce from number `asked` on."""

    ring: int
    name: str
    asked: int
