"""The optimizer of strategies that update parameters on workers.

It is the access method that a server would run, on the worker's own flat parameters, or the
caller's function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from shoal.errors import InvalidValue
from shoal.strategies.base import NONE, Numbers, StrategyOptions, restore
from shoal.tables.spec import Span

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.tables.access import AccessMethod


class Values(Protocol):
    """Parameters by buffer: those of a model, or copies of them."""

    @property
    def values(self) -> dict[str, Tensor]: ...
    @property
    def spans(self) -> Mapping[str, Sequence[Span]]: ...


class WorkerOptimizer:
    """Updates a model's parameters from its gradients.

    Args:
        options: the optimizers of the buffers, or the caller's `update`.

    Attributes:
        updates: the number of updates so far.
    """

    def __init__(self, options: StrategyOptions) -> None:
        self._options = options
        self._slots: dict[str, dict[str, Tensor]] = {}
        self._buffers: dict[str, _Buffer] = {}
        self._behind: dict[str, list[int]] = {}  # by buffer, from the loaded state
        self.updates = 0

    def bind(self, model: Values, updates: Mapping[str, Tensor]) -> None:
        """Prepare for a model; `updates` holds, by buffer, the (n,) gradients of every step.

        Raises:
            InvalidValue: the loaded state is that of another optimizer.
        """
        import torch

        from shoal.tables.dense.methods import make

        self._buffers.clear()
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
            self._buffers[buffer] = _Buffer(
                access,
                values,
                self._slots[buffer],
                updates[buffer],
                model.spans.get(buffer, ()),
                self._behind.get(buffer),
            )

    def step(self, rates: Mapping[str, float], absent: Numbers = NONE) -> None:
        """Update all parameters but the absent ones, with these learning rates by buffer."""
        for name, buffer in self._buffers.items():
            buffer.update(self.updates, rates.get(name), absent.get(name, ()))
        if self._options.update is not None:
            self._options.update(absent)
        self.updates += 1

    def skip(self) -> None:
        """Count an update that this worker skips."""
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the number of updates, the slots by buffer, and the parameters' missed updates."""
        import torch

        behind = {name: torch.tensor(each.behind) for name, each in self._buffers.items()}
        found = {name: each for name, each in behind.items() if bool(each.any())}
        return {
            "updates": self.updates,
            "slots": self._slots,
            **({"behind": found} if found else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` has returned."""
        self.updates = int(state["updates"])
        self._behind = {name: each.tolist() for name, each in state.get("behind", {}).items()}
        for buffer, slots in state["slots"].items():
            restore(self._slots.setdefault(buffer, {}), slots)


class _Buffer:
    """A buffer with its optimizer, which may update some of its parameters only.

    Attributes:
        behind: for each parameter, the number of updates that have left it out.
        apart: whether any update has left out a parameter.
    """

    def __init__(
        self,
        access: AccessMethod,
        values: Tensor,
        slots: dict[str, Tensor],
        gradients: Tensor,
        spans: Sequence[Span],
        behind: list[int] | None,
    ) -> None:
        self._access = access
        self._values, self._slots, self._gradients = values, slots, gradients
        starts = [span.start for span in spans] or [0]
        self._rows = [slice(*edge) for edge in pairwise([*starts, len(values)])]
        self._apply = access.prepared(values, slots, gradients)
        self.behind = behind or [0] * len(self._rows)
        self.apart = any(self.behind)

    def update(self, step: int, rate: float | None, absent: Sequence[int]) -> None:
        """Update the parameters, but for the `absent` ones, which stay as they are."""
        if not self.apart and not absent:
            self._apply(step, rate)
            return
        left_out = {*absent}
        for number, rows in enumerate(self._rows):
            if number in left_out:
                self.behind[number] += 1
                self.apart = True
                continue
            slots = {name: slot[rows] for name, slot in self._slots.items()}
            at = step - self.behind[number]
            self._access.apply(self._values[rows], slots, self._gradients[rows], at, rate)
