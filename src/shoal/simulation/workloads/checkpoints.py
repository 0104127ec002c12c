"""Checkpoints that workers ask for while they train, in some seeds."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from shoal.protocol.machine import Outcome
from shoal.protocol.messages.admin import CheckpointPlanned
from shoal.protocol.requests import SaveCheckpoint
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import violated
from shoal.simulation.draws import Draws

ASKING, ASKED = 0.2, 0.08  # share of the seeds, and of the clocks after which a worker asks
OFTEN, ASKED_OFTEN = 0.25, 0.6  # share of these seeds in which workers ask often


class CheckpointWorkload:
    """Asks for checkpoints.

    planned:  the clocks of the answers
    """

    def __init__(self, draws: Draws) -> None:
        self.planned: set[int] = set()
        self._random = draws["asks for a checkpoint"]
        often = draws.happens("asks for checkpoints often", OFTEN)
        asks = draws.happens("asks for checkpoints", ASKING)
        self._asked = (ASKED_OFTEN if often else ASKED) if asks else 0.0

    def ask(self, machine: WorkerMachine) -> Generator[Any, Any, None]:
        """Perhaps ask for a checkpoint; check `planned`: it has this worker's earlier pushes."""
        if self._random.random() >= self._asked:
            return
        before = machine.clock
        outcome: Outcome = yield SaveCheckpoint()
        if isinstance(outcome.value, CheckpointPlanned):
            self.planned.add(outcome.value.clock)
            if outcome.value.clock < before:
                text = f"checkpoint {outcome.value.clock} was asked for at clock {before}"
                raise violated("planned", text)
