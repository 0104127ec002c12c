"""OptimizerDefaults: what a run says of its script's optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class OptimizerDefaults:
    """What `shoal run` and `shoal worker` say of each `shoal.Optimizer` of a script.

    Attributes:
        strategy: the strategy of those for which the script names none; "" for the usual one.
        settings: of that strategy, by name.
        staleness: of that strategy, in clocks.
        hyperparameters: arguments of the wrapped torch optimizers, in place of the script's.
    """

    strategy: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    staleness: int = 0
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
