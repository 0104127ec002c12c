"""ServerState: the state that all parts of a server share."""

from __future__ import annotations

from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import EventTime
from shoal.protocol.server.state.replica import Replica
from shoal.protocol.server.state.replicas import Replicas
from shoal.protocol.server.state.rounds import Rounds
from shoal.protocol.session import Session
from shoal.protocol.views import Member, View


class ServerState:
    """A server's session, clocks, replicas and open rounds.

    Attributes:
        session:  the conversation with the scheduler
        time:     the time of the event that is being handled
        clocks:   the clocks of the view's workers
        rounds:   the pushes that wait here until their round closes
        workers:  the view's workers, by incarnation
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.time = EventTime()
        self.clocks = Clocks()
        self.rounds = Rounds()
        self.workers: dict[int, Member] = {}
        self.placed = Replicas()

    @property
    def replicas(self) -> dict[int, Replica]:
        """The replicas on this server, by number."""
        return self.placed.by_number

    def enter_workers(self, view: View) -> list[Member]:
        """Replace the workers by those of a view, and return those that are gone."""
        here = {member.id for member in view.workers}
        gone = [member for member in self.workers.values() if member.id not in here]
        self.workers.clear()
        self.workers.update((member.incarnation, member) for member in view.workers)
        return gone
