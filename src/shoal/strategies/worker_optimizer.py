"""The optimizer of strategies that update parameters on workers: an access method, or a caller's.

It is the access method that a server would run, on the worker's own flat parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from shoal.errors import InvalidValue
from shoal.strategies.base import StrategyOptions, restore

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.tables.access import Prepared


class Values(Protocol):
    """What has parameters by buffer: a model, or copies of its parameters."""

    @property
    def values(self) -> dict[str, Tensor]: ...


class WorkerOptimizer:
    """Updates a model's parameters from its gradients.

    Args:
        options: the optimizers of the buffers, or the caller's `update`.

    Attributes:
        updates: number of updates so far.
    """

    def __init__(self, options: StrategyOptions) -> None:
        self._options = options
        self._slots: dict[str, dict[str, Tensor]] = {}
        self._apply: dict[str, Prepared] = {}
        self.updates = 0

    def bind(self, model: Values, updates: Mapping[str, Tensor]) -> None:
        """Prepare for a model; `updates` holds, by buffer, the (n,) gradients of every step.

        Raises:
            InvalidValue: the state that was loaded is another optimizer's.
        """
        import torch

        from shoal.tables.methods import make

        self._apply.clear()
        if self._options.update is not None:
            return
        for buffer, values in sorted(model.values.items()):
            access = make(self._options.access_of(buffer))
            fresh = {slot: torch.full_like(values, access.initial(slot)) for slot in access.slots()}
            slots = self._slots.setdefault(buffer, fresh)
            if slots.keys() != fresh.keys():
                raise InvalidValue(
                    f"the state that is loaded has {', '.join(slots) or 'no slots'} for each "
                    f"parameter, and this optimizer has {', '.join(fresh) or 'none'}: continue "
                    "with the optimizer of that run, and its options"
                )
            self._apply[buffer] = access.prepared(values, self._slots[buffer], updates[buffer])

    def step(self, rates: Mapping[str, float]) -> None:
        """Update the parameters once, with these learning rates by buffer."""
        for buffer, apply in self._apply.items():
            apply(self.updates, rates.get(buffer))
        if self._options.update is not None:
            self._options.update()
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        """The number of updates, and the slots of each buffer."""
        return {"updates": self.updates, "slots": self._slots}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` has returned."""
        self.updates = int(state["updates"])
        for buffer, slots in state["slots"].items():
            restore(self._slots.setdefault(buffer, {}), slots)
