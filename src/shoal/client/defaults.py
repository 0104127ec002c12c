"""OptimizerDefaults: a run's settings for the optimizers of its script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class OptimizerDefaults:
    """The settings of `shoal run` and `shoal worker` for each `shoal.Optimizer` of a script.

    Attributes:
        strategy: the strategy of optimizers for which the script names none; "" for the usual one.
        settings: the settings of that strategy, by name.
        staleness: the staleness of that strategy, in clocks.
        hyperparameters: the arguments of the wrapped torch optimizers, in place of the script's.
    """

    strategy: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    staleness: int = 0
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
