"""Messages between workers: around an allreduce ring, and between neighbours in a graph."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shoal.protocol.limits import LISTED_MAX, Name, Number, NumberOrNone, Rank
from shoal.protocol.messages.base import Message

Pieces = Annotated[tuple[Number, ...], Meta(max_length=LISTED_MAX)]
Clocks = Annotated[dict[Rank, Number], Meta(max_length=1 << 16)]


class Piece(Message, frozen=True):
    """A piece of a tensor on its way around the ring; its bytes follow.

    Attributes:
        ring: the identifier of the ring's workers.
        number: the number of the allreduce in this ring.
        piece: the number of the piece.
        whole: whether it is the sum over all workers; otherwise over those that it has passed.
        total: the bytes of the tensor.
    """

    senders = ("worker",)

    ring: Number
    number: Number
    piece: Number
    whole: bool
    total: Number


class MissingPieces(Message, frozen=True):
    """These pieces have not arrived and are to be sent again. Without pieces, a greeting.

    probe: the number of the `PieceProbe` that this answers; 0 for none
    """

    senders = ("worker",)

    ring: Number
    number: Number
    partial: Pieces = ()
    whole: Pieces = ()
    probe: Number = 0


class PieceProbe(Message, frozen=True):
    """Asks which pieces of an allreduce have not arrived; it is sent after the pieces.

    probe:   the number of this probe among those of the sender for this allreduce
    failed:  the last allreduces that have failed at the sender, which the receiver cannot finish
    """

    senders = ("worker",)

    ring: Number
    number: Number
    probe: Number
    failed: Pieces = ()


class SumAck(Message, frozen=True):
    """All pieces of the allreduces up to this one have arrived from the receiver."""

    senders = ("worker",)

    ring: Number
    number: NumberOrNone


class WorkerLeft(Message, frozen=True):
    """Worker `name` has finished: it takes part in no allreduce from number `asked` on."""

    senders = ("worker",)

    ring: Number
    name: Name
    asked: Number


class NeighbourPiece(Message, frozen=True):
    """A piece of a worker's values for one of its neighbours; its bytes follow.

    Attributes:
        name: the name of the exchange, such as that of a model.
        phase, round: the version of the values; a later version is greater, phase first.
        piece: the number of the piece.
        total: the bytes of all values.
        clocks: the number of steps of each worker by rank, as far as the sender knows; FOREVER
            after a worker's last step.
    """

    senders = ("worker",)

    name: Name
    phase: Number
    round: Number
    piece: Number
    total: Number
    clocks: Clocks


class NeighbourProbe(Message, frozen=True):
    """Asks which pieces of a version have not arrived; the version (0, 0) is a greeting.

    number: the number of this probe among those of the sender to this neighbour
    """

    senders = ("worker",)

    name: Name
    phase: Number
    round: Number
    number: Number


class NeighbourAck(Message, frozen=True):
    """These pieces of a version are missing; without any, all of it has arrived.

    number: the number of the probe that this answers; 0 for none
    """

    senders = ("worker",)

    name: Name
    phase: Number
    round: Number
    number: Number = 0
    missing: Pieces = ()
