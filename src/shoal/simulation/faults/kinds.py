"""The kinds of faults, from which the injector draws."""

from __future__ import annotations

from shoal.simulation.faults.environment import ENVIRONMENT

ONE_SIDED = ("crash worker", "crash scheduler", "partition", "clog", "break")  # in any phase
FAULTS = (
    *(3 * ONE_SIDED),
    "crash scheduler before persist",
    "crash scheduler after persist",
    "crash worker in mid-payload",
    "crash worker in mid-advance",
    "break in mid-payload",
    "slow worker",
    "clog",
    "take for dead",
    "stop worker",
    "stop server",
    "stop scheduler",
    "busy worker",
    "busy server",
    "join",
    "join server",
    "leave server",
    "exit scheduler",
    "exit worker",
    *ENVIRONMENT,
)
LASTING = (
    "stop worker for long",
    "stop server for long",
    "stop scheduler for long",
    "hang server",
    "kill server",
)
ALL = (*FAULTS, *LASTING)
BY_PHASE = ("exit scheduler", "exit worker", *ENVIRONMENT)  # counted by phase as well
MOVES = (
    "join server",
    "leave server",
    "break in mid-payload",
    "refuse memory",
)  # of seeds with moving rows
