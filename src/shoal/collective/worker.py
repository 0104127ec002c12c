"""CollectiveWorker: a worker's state machine with a ring allreduce, and with neighbours."""

from __future__ import annotations

from math import inf
from typing import get_args

from shoal.collective.neighbours import FromNeighbour, NeighbourExchanges
from shoal.collective.ring import GATHERED_BYTES, PIECE_BYTES, FromRing, Ring
from shoal.errors import RunAborted
from shoal.protocol.machine import (
    Arrival,
    Asked,
    Effects,
    Event,
    PeerLost,
    Received,
    Send,
    Stop,
    Ticked,
)
from shoal.protocol.messages import (
    HeartbeatSeen,
    Message,
    NeighbourPiece,
    NeighbourProbe,
    Piece,
    PieceProbe,
    WorkerLeft,
)
from shoal.protocol.requests import Cancel, FinishWork, NeighbourExchange, Reduce
from shoal.protocol.session import Session
from shoal.protocol.views import NO_VIEW, NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.protocol.worker.options import WorkerOptions

RING, NEIGHBOURS = frozenset(get_args(FromRing)), frozenset(get_args(FromNeighbour))


class CollectiveWorker(WorkerMachine):
    """A worker's machine that passes events between workers to its ring and its neighbours."""

    def __init__(
        self,
        session: Session,
        options: WorkerOptions | None = None,
        piece_bytes: int = PIECE_BYTES,
        gathered_bytes: int = GATHERED_BYTES,
    ) -> None:
        super().__init__(session, options)
        self.ring = Ring(session, piece_bytes, gathered_bytes)
        drops = self.options.on_timeout == "drop"
        late_s = self.options.sync_timeout_s if drops else inf
        self.neighbours = NeighbourExchanges(session, piece_bytes, late_s)
        self._adopted = NO_VIEW  # the view that both have

    @property
    def bytes_sent(self) -> int:
        """Payload bytes sent so far, to servers and to other workers."""
        return self.bytes_pushed + self.ring.bytes_sent + self.neighbours.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Payload bytes received so far, from servers and from other workers."""
        received = self.ring.bytes_received + self.neighbours.bytes_received
        return self.bytes_pulled + received

    def arriving(self, sender: NodeId, message: Message, nbytes: int) -> Arrival:
        if isinstance(message, Piece):
            return self.ring.arriving(sender, message, nbytes)
        if isinstance(message, NeighbourPiece):
            return self.neighbours.arriving(sender, message, nbytes)
        return super().arriving(sender, message, nbytes)

    def problem_of(self, received: Received) -> str:
        problem, message = super().problem_of(received), received.message
        if not problem and type(message) in RING:
            return self.ring.problem_of(received.sender, message)
        if not problem and type(message) in NEIGHBOURS:
            return self.neighbours.problem_of(message)
        return problem

    def handle(self, event: Event, now: float) -> Effects:
        out: Effects = []
        if isinstance(event, Received):
            message = event.message
            if self.session.unanswered.counts:
                self.session.unanswered.heard(event.sender)
            if type(message) in RING:
                self.ring.handle(event, now, out)
                if isinstance(message, WorkerLeft):
                    self.neighbours.leave_out(self.ring.left, now, out)
                return out
            if type(message) in NEIGHBOURS:
                self.neighbours.handle(event, now, out)
                return out
            if isinstance(message, HeartbeatSeen):
                self.ring.ended |= {*message.finished}
                self.neighbours.leave_out(message.finished, now, out)
        elif isinstance(event, Asked):
            request = event.request
            if isinstance(request, Reduce) and not self.session.ended:
                self.ring.ask(event.request_id, request, now, out)
                return out
            if isinstance(request, NeighbourExchange) and not self.session.ended:
                self.listens, self.sends_on = not request.ordered, True
                self.neighbours.ask(event.request_id, request, now, out)
                return out
            if isinstance(request, Cancel):
                self.ring.cancel(request.request_id, out)
                self.neighbours.cancel(request.request_id, out)
            elif isinstance(request, FinishWork):
                self.ring.leave(out)
        out += super().handle(event, now)
        if isinstance(event, Ticked):
            asked = len(out)
            self.ring.tick(now, out)
            self.neighbours.tick(now, out)
            for each in out[asked:]:
                if isinstance(each, Send) and isinstance(each.message, PieceProbe | NeighbourProbe):
                    self.session.unanswered.asked(each.to, out)
        elif isinstance(event, PeerLost):
            self.ring.peer_lost(event.node, now)
            self.neighbours.peer_lost(event.node, now)
        view = self.session.view
        if view is not None and view.id != self._adopted:
            self._adopted = view.id
            self.ring.adopt(view, out)
            self.neighbours.adopt(view, now, out)
        return out

    def _end(self, out: Effects) -> None:
        stop = next((each for each in out if isinstance(each, Stop)), None)
        error = (stop.error if stop is not None else None) or RunAborted("the run has ended")
        self.ring.close(error, out)
        self.neighbours.close(error, out)
        super()._end(out)

    def deadline(self) -> float | None:
        other = super().deadline()
        due = min(self.ring.deadline(), self.neighbours.deadline(), inf if other is None else other)
        return due if due < inf else None

    def address_of(self, node: NodeId) -> str | None:
        return super().address_of(node) or self.ring.address_of(node)

    def waiting(self) -> list[tuple[str, str]]:
        return super().waiting() + self.ring.waiting() + self.neighbours.waiting()
