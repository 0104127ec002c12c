"""Offloaded work in a simulated cluster: it takes virtual time, and is done at its end."""

from __future__ import annotations

from random import Random

from shoal.errors import ShoalError
from shoal.protocol.machine import Offload, Offloaded

WORK_S, LONG_S, LONG = 0.003, 1.0, 0.01  # at most; at most if it is long; share that is long


class OffloadedWork:
    """Draws how long work takes, and does it.

    at_work:  whether work is being done
    """

    def __init__(self, random: Random) -> None:
        self.at_work = False
        self._random = random

    def seconds(self) -> float:
        """Return how long the next piece of work takes."""
        return self._random.random() * (LONG_S if self._random.random() < LONG else WORK_S)

    def result(self, effect: Offload) -> Offloaded:
        """Do the work, and return its result; nothing has seen its effects before."""
        self.at_work = True
        try:
            return Offloaded(effect.ticket, effect.work())
        except ShoalError as error:
            return Offloaded(effect.ticket, error=error)
        finally:
            self.at_work = False
