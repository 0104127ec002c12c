"""A simulated node: a machine, its disk, and the program that uses it."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import Any

import msgspec

from shoal.errors import ShoalError
from shoal.protocol.machine import Machine, Outcome
from shoal.protocol.views import NodeId


class Sleep(msgspec.Struct, frozen=True):
    """Let a program compute for this long."""

    seconds: float


Program = Generator[Any, Any, None]


class Crash(Exception):
    """Raised inside a node to end it between two effects."""


class SimNode:
    """A machine, its disk, and the program that uses it."""

    def __init__(self, node: NodeId, machine: Machine, program: Program | None = None) -> None:
        self.node = node
        self.machine = machine
        self.program = program
        self.disk: bytes | None = None
        self.alive = True
        self.stopped = False
        self.error: ShoalError | None = None
        self.outcomes: dict[int, Outcome] = {}
        self.waits_for: int | None = None
        self.turn = 0  # of the program; a wake-up for an earlier turn is void
        self.tickets = count(1)
        self.tick_at: float | None = None
        self.turns = 0  # of its loop
        self.paused_until = 0.0  # its loop; and its whole process, if it is stopped:
        self.stopped_until = 0.0
