"""Training strategies: the exchanges of a step and their times, as generators.

`Client.drive` runs a strategy on a cluster; `shoal.simulation` interleaves thousands of them.
"""

from shoal.strategies.base import (
    USUAL,
    Model,
    StepResult,
    Strategy,
    StrategyOptions,
    Traits,
    strategies,
)
from shoal.strategies.loop import leased_program, train_program

from . import (  # noqa: F401  (they register themselves)
    allreduce,
    delayed,
    diloco,
    elastic,
    local_updates,
    p2p,
    servers,
    streaming,
)

__all__ = [
    "USUAL",
    "Model",
    "StepResult",
    "Strategy",
    "StrategyOptions",
    "Traits",
    "leased_program",
    "strategies",
    "train_program",
]
