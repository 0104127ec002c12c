"""Optimizer state as torch.optim has it, from and to the state of flat parameters.

torch keeps a state for each parameter, under its own names and with a count of steps. Tables and
allreduce keep it for all parameters of a dtype together, with one count.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from shoal.errors import InvalidValue
from shoal.pytorch.flat_parameters import FlatParams
from shoal.strategies.base import OptimizerState
from shoal.tables.access import AccessMethod

TORCH_NAMES = {"momentum": "momentum_buffer"}  # of slots; the others are called as in torch
Dict = dict[str, Any]


def to_torch(
    inner: torch.optim.Optimizer, flat: FlatParams, states: Mapping[str, OptimizerState]
) -> dict[Tensor, Dict]:
    """The state of each parameter, as `inner` would have it after as many steps."""
    found: dict[Tensor, Dict] = {}
    for place in flat.places:
        state = states[place.dtype]
        if not state.updates and not isinstance(inner, torch.optim.Adagrad):
            continue  # torch makes most states in the first step
        of_one: Dict = {}
        if not isinstance(inner, torch.optim.SGD):
            of_one["step"] = torch.tensor(float(state.updates))
        for name, slot in state.slots.items():
            of_one[TORCH_NAMES.get(name, name)] = slot[place.rows].view(place.parameter.shape)
        if of_one:
            found[place.parameter] = of_one
    return found


def from_torch_state(
    inner: torch.optim.Optimizer, flat: FlatParams, access: AccessMethod
) -> dict[str, OptimizerState]:
    """The state of the flat parameters, by dtype, from what `inner` holds for each parameter.

    A parameter without a state, which torch has never updated, gets the state of one whose
    gradients were 0.

    Raises:
        InvalidValue: parameters with different numbers of steps, or a state of another shape.
    """
    steps: dict[int, Tensor] = {}
    found: dict[str, OptimizerState] = {}
    for dtype, values in flat.values.items():
        slots = {name: torch.full_like(values, access.initial(name)) for name in access.slots()}
        found[dtype] = OptimizerState(0, slots)
    for index, place in enumerate(flat.places):
        of_one = inner.state.get(place.parameter) or {}
        for name, slot in found[place.dtype].slots.items():
            given = of_one.get(TORCH_NAMES.get(name, name))
            if given is None:
                continue
            if given.shape != place.parameter.shape:
                raise InvalidValue(
                    f"{TORCH_NAMES.get(name, name)} of parameter {index} has shape "
                    f"{tuple(given.shape)} in the state, but the parameter has "
                    f"{tuple(place.parameter.shape)}"
                )
            slot[place.rows] = given.reshape(-1)
            steps.setdefault(int(of_one.get("step", 1)), place.parameter)
    if len(steps) > 1:
        raise InvalidValue(
            f"the state counts {' and '.join(map(str, sorted(steps)))} steps for different "
            "parameters; Shoal counts the steps of all parameters together"
        )
    for state in found.values():
        state.updates = max(steps, default=0)
    return found


def loaded(inner: torch.optim.Optimizer, state_dict: Dict) -> torch.optim.Optimizer:
    """A copy of `inner` with another state, which shares its parameters. `inner` does not change.

    Raises:
        InvalidValue: it is not a state of such an optimizer.
    """
    copied = copy.copy(inner)
    try:
        copied.load_state_dict(state_dict)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidValue(
            f"this is no state_dict of {type(inner).__name__} with these parameters: {error}"
        ) from error
    return copied
