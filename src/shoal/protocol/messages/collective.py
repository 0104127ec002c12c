"""What workers say to each other around a ring."""

from __future__ import annotations

from shoal.protocol.messages.base import Body


class Piece(Body, frozen=True, array_like=True, tag=True):
    """A piece of a tensor on its way around the workers; its bytes follow.

    ring:    which workers these are; `number` counts their sums
    whole:   the sum of all; otherwise of those that it has passed so far
    total:   bytes of the tensor
    """

    ring: int
    number: int
    piece: int
    whole: bool
    total: int


class MissingPieces(Body, frozen=True, array_like=True, tag=True):
    """These pieces have not come: send again those that there are. With none it is a greeting."""

    ring: int
    number: int
    partial: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()


class SumAck(Body, frozen=True, array_like=True, tag=True):
    """All that you had to send of the sums up to this one is here."""

    ring: int
    number: int


class WorkerLeft(Body, frozen=True, array_like=True, tag=True):
    """The worker `name` has finished its work, and asks for no sums from number `asked` on."""

    ring: int
    name: str
    asked: int
