"""When to exchange, and what: training algorithms as generators.

Written once; `runtime.client` drives one of them on a real cluster, `sim` interleaves thousands.
"""

from shoal.strategies.base import Model, StepResult, Strategy, StrategyOptions, strategies
from shoal.strategies.loop import leased_program, train_program

from . import allreduce, servers  # noqa: F401  (they register themselves)

__all__ = [
    "Model",
    "StepResult",
    "Strategy",
    "StrategyOptions",
    "leased_program",
    "strategies",
    "train_program",
]
