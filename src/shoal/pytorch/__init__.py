"""PyTorch modules and optimizers on top of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.lazy import public

if TYPE_CHECKING:
    from shoal.pytorch.flat_parameters import FlatParams
    from shoal.pytorch.optimizer import Optimizer
    from shoal.pytorch.table_state import TableState

__all__ = [
    "FlatParams",
    "Optimizer",
    "TableState",
]

__getattr__, __dir__ = public(
    __name__,
    {
        "shoal.pytorch.flat_parameters": "FlatParams",
        "shoal.pytorch.optimizer": "Optimizer",
        "shoal.pytorch.table_state": "TableState",
    },
)
