"""Peers: the part of a worker's machine for exchanges with other workers."""

from __future__ import annotations

from math import inf
from typing import get_args

from shoal.errors import ShoalError
from shoal.protocol.machine import Arrival, Asked, Effects, Event, PeerLost, Received, Send, Ticked
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.collective import (
    NeighbourPiece,
    NeighbourProbe,
    Piece,
    PieceProbe,
    WorkerLeft,
)
from shoal.protocol.messages.membership import HeartbeatSeen
from shoal.protocol.requests import Cancel, FinishWork, Gather, NeighbourExchange, Reduce
from shoal.protocol.session import Session
from shoal.protocol.views import NO_VIEW, NodeId
from shoal.protocol.worker.options import WorkerOptions
from shoal.protocol.worker.peers.neighbours import FromNeighbour, NeighbourExchanges
from shoal.protocol.worker.peers.ring import GATHERED_BYTES, PIECE_BYTES, FromRing, Ring

RING, NEIGHBOURS = frozenset(get_args(FromRing)), frozenset(get_args(FromNeighbour))


class Peers:
    """A worker's part in the ring of its group, and its exchanges with neighbours.

    Attributes:
        listens:   whether other workers send values that no request waits for
        sends_on:  whether bytes may be unsent that no request waits for
    """

    def __init__(
        self,
        session: Session,
        options: WorkerOptions,
        piece_bytes: int = PIECE_BYTES,
        gathered_bytes: int = GATHERED_BYTES,
    ) -> None:
        """Create the ring and the exchanges of a worker.

        piece_bytes:     the largest piece of a tensor that is sent at once
        gathered_bytes:  the most values of all workers that are gathered, not summed on their way
        """
        self.listens = self.sends_on = False
        self._session = session
        self.ring = Ring(session, piece_bytes, gathered_bytes)
        late_s = options.sync_timeout_s if options.on_timeout == "drop" else inf
        self.neighbours = NeighbourExchanges(session, piece_bytes, late_s)
        self._adopted = NO_VIEW  # the view of the ring and the neighbours
        self._leaving = False  # whether the caller has asked to finish

    @property
    def bytes_sent(self) -> int:
        """The payload bytes sent to other workers so far."""
        return self.ring.bytes_sent + self.neighbours.bytes_sent

    @property
    def bytes_received(self) -> int:
        """The payload bytes received from other workers so far."""
        return self.ring.bytes_received + self.neighbours.bytes_received

    @property
    def settled(self) -> bool:
        """Whether the next worker of the ring has the values of sums that are resolved here.

        A strategy with neighbours ends with such a sum.
        """
        return self.ring.settled

    def arriving(self, sender: NodeId, message: Piece | NeighbourPiece, nbytes: int) -> Arrival:
        """Return where the values of another worker go."""
        if isinstance(message, Piece):
            return self.ring.arriving(sender, message, nbytes)
        return self.neighbours.arriving(sender, message, nbytes)

    def problem_of(self, sender: NodeId, message: Message) -> str:
        """Return why no worker may send a message; empty if one may."""
        if type(message) in RING:
            return self.ring.problem_of(sender, message)
        return self.neighbours.problem_of(message) if type(message) in NEIGHBOURS else ""

    def handle(self, event: Event, now: float, out: Effects) -> bool:
        """Handle an event; return whether it concerns the peers alone.

        The machine handles all others too, and then calls `go_on`.
        """
        if isinstance(event, Received):
            return self._received(event, now, out)
        return isinstance(event, Asked) and self._asked(event, now, out)

    def _received(self, event: Received, now: float, out: Effects) -> bool:
        message = event.message
        if type(message) in RING:
            self.ring.handle(event, now, out)
            if isinstance(message, WorkerLeft):
                self.neighbours.leave_out(self.ring.left, now, out)
        elif type(message) in NEIGHBOURS:
            self.neighbours.handle(event, now, out)
        else:
            if isinstance(message, HeartbeatSeen):
                self.ring.end(message.finished)
                self.neighbours.leave_out(message.finished, now, out)
            return False
        return True

    def _asked(self, event: Asked, now: float, out: Effects) -> bool:
        request = event.request
        if isinstance(request, Gather | Reduce) and not self._session.ended:
            self.ring.ask(event.request_id, request, now, out)
            return True
        if isinstance(request, NeighbourExchange) and not self._session.ended:
            self.listens, self.sends_on = not request.ordered, True
            self.neighbours.ask(event.request_id, request, now, out)
            return True
        if isinstance(request, Cancel):
            self.ring.cancel(request.request_id, out)
            self.neighbours.cancel(request.request_id, out)
        elif isinstance(request, FinishWork):
            self._leaving = True
            self.ring.leave(out)
        return False

    def go_on(self, event: Event, now: float, out: Effects) -> None:
        """Do the work that is due after an event that the machine has handled; adopt its view."""
        if isinstance(event, Ticked):
            asked = len(out)
            self.ring.tick(now, out)
            self.neighbours.tick(now, out)
            for each in out[asked:]:
                if isinstance(each, Send) and isinstance(each.message, PieceProbe | NeighbourProbe):
                    self._session.unanswered.asked(each.to, out)
        elif isinstance(event, PeerLost):
            self.ring.peer_lost(event.node, now)
            self.neighbours.peer_lost(event.node, now)
        view = self._session.view
        if view is not None and view.id != self._adopted:
            self._adopted = view.id
            self.ring.adopt(view, out)
            if self._leaving:  # the ring of the new view has not heard so
                self.ring.leave(out)
            self.neighbours.adopt(view, now, out)

    def close(self, error: ShoalError, out: Effects) -> None:
        """Fail all exchanges with other workers: the run has ended."""
        self.ring.close(error, out)
        self.neighbours.close(error, out)

    def deadline(self) -> float:
        return min(self.ring.deadline(), self.neighbours.deadline())

    def address_of(self, node: NodeId) -> str:
        """Return where to connect to another worker; empty if it connects here."""
        return self.ring.address_of(node)

    def waiting(self) -> list[tuple[str, str]]:
        """Return (exchange, reason) of every exchange that waits."""
        return self.ring.waiting() + self.neighbours.waiting()
