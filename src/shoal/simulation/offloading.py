"""Offloaded work in a simulated cluster: it takes virtual time, and is done at its end."""

from __future__ import annotations

from shoal.errors import ShoalError
from shoal.protocol.machine import Offload, Offloaded
from shoal.protocol.views import NodeId
from shoal.simulation.draws import Draws

WORK_S, LONG_S, LONG = 0.003, 1.0, 0.01  # at most; at most if it is long; share that is long


class OffloadedWork:
    """Draws how long work takes, and does it.

    at_work:  whether work is being done
    """

    def __init__(self, draws: Draws) -> None:
        self.at_work = False
        self._draws = draws

    def seconds(self, node: NodeId, effect: object) -> float:
        """Return how long a node's next piece of work takes."""
        random = self._draws["work", node, type(effect).__name__]
        return random.random() * (LONG_S if random.random() < LONG else WORK_S)

    def result(self, effect: Offload) -> Offloaded:
        """Do the work, and return its result; nothing has seen its effects before."""
        self.at_work = True
        try:
            return Offloaded(effect.ticket, effect.work())
        except ShoalError as error:
            return Offloaded(effect.ticket, error=error)
        finally:
            self.at_work = False
