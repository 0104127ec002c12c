"""Optimizer state as torch.optim has it, from and to the state of flat parameters.

torch keeps a state for each parameter, under its own names and with a count of steps. Tables keep
it for a whole buffer of parameters, with a count for each of them.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from shoal.errors import InvalidValue, UsageError
from shoal.pytorch.flat_parameters import FlatParams
from shoal.pytorch.spreading import spread
from shoal.strategies.base import Program, Strategy
from shoal.strategies.servers import OptimizerState, StateInTables
from shoal.tables.access import AccessMethod
from shoal.tables.dense.methods import make
from shoal.tables.spec import Access

TORCH_NAMES = {"momentum": "momentum_buffer"}  # of slots; the others are called as in torch
Dict = dict[str, Any]


def to_torch(
    inner: torch.optim.Optimizer,
    flat: FlatParams,
    accesses: Mapping[str, AccessMethod],
    states: Mapping[str, OptimizerState],
) -> dict[Tensor, Dict]:
    """Return the state of each parameter, as `inner` would have it after as many steps."""
    found: dict[Tensor, Dict] = {}
    for place in flat.places:
        state, scalars = states[place.buffer], accesses[place.buffer].scalars
        updates = state.updates[place.number] if state.updates else 0  # counted with slots only
        if not updates and not isinstance(inner, torch.optim.Adagrad):
            continue  # torch makes most states in the first step
        of_one: Dict = {}
        if not isinstance(inner, torch.optim.SGD):
            of_one["step"] = torch.tensor(float(updates))
        for name, slot in state.slots.items():
            values = slot[place.rows].as_strided(place.value.shape, place.value.stride())
            if name in scalars:
                values = values[(0,) * values.dim()].float().clone()
            of_one[TORCH_NAMES.get(name, name)] = values
        if of_one:
            found[place.parameter] = of_one
    return found


def from_torch_state(
    inner: torch.optim.Optimizer, flat: FlatParams, accesses: Mapping[str, AccessMethod]
) -> dict[str, OptimizerState]:
    """Return the state of the flat parameters, by buffer, from `inner`'s state of each parameter.

    A parameter without a state, which torch has never updated, has had no update.

    Raises:
        InvalidValue: a state of another shape.
    """
    found: dict[str, OptimizerState] = {}
    for buffer, values in flat.values.items():
        access = accesses[buffer]
        slots = {name: torch.full_like(values, access.initial(name)) for name in access.slots()}
        found[buffer] = OptimizerState([0] * len(flat.spans[buffer]), slots)
    for index, place in enumerate(flat.places):
        of_one = inner.state.get(place.parameter) or {}
        state = found[place.buffer]
        for name, slot in state.slots.items():
            given = of_one.get(TORCH_NAMES.get(name, name))
            if given is None:
                continue
            if name in accesses[place.buffer].scalars:
                given = torch.as_tensor(given).expand(place.parameter.shape)
            if given.shape != place.parameter.shape:
                raise InvalidValue(
                    f"{TORCH_NAMES.get(name, name)} of parameter {index} has shape "
                    f"{tuple(given.shape)} in the state, but the parameter has "
                    f"{tuple(place.parameter.shape)}"
                )
            slot[place.rows].as_strided(place.value.shape, place.value.stride()).copy_(given)
            state.updates[place.number] = int(of_one.get("step", 1))
    return found


def loaded(inner: torch.optim.Optimizer, state_dict: Dict) -> torch.optim.Optimizer:
    """Return a copy of `inner` that has another state and the same parameters.

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


def before_load(optimizer: Any, state_dict: Dict) -> Dict:
    """Call torch's hooks before a state is loaded; return the state that they leave."""
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        found = hook(optimizer, state_dict)
        state_dict = state_dict if found is None else found
    return state_dict


def after_load(optimizer: Any) -> None:
    """Call the hooks that torch calls after a state was loaded."""
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


class StateOnServers:
    """The state of an optimizer whose tables' access methods compute what `inner` computes."""

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        flat: FlatParams,
        strategy: StateInTables,
        accesses: Mapping[str, AccessMethod],
    ) -> None:
        self._inner = inner
        self._flat: Any = flat
        self._strategy = strategy
        self._accesses = accesses

    def begin(self, rank: int, clock: int) -> Program:
        """Begin the strategy, on rank 0 with the state of `inner`."""
        states = self._states_of(self._inner)
        if not any(any(state.updates) for state in states.values()):
            states = {}
        yield from self._strategy.begin(self._flat, rank, clock, states)
        self._inner.state.clear()  # it is on the servers

    def read(self) -> Generator[Any, Any, Mapping[Tensor, Dict]]:
        """Return the state of each parameter."""
        states = yield from self._strategy.read_state(self._flat)
        return to_torch(self._inner, self._flat, self._accesses, states)

    def check(self, other: torch.optim.Optimizer) -> None:
        """Refuse a state that servers cannot hold."""
        self._states_of(other)

    def write(self, other: torch.optim.Optimizer, writes: bool) -> Program:
        """Spread the parameters, and the state of `other`, of the worker that `writes`."""
        states = self._states_of(other) if writes else {}
        yield from self._strategy.write_state(self._flat, states, writes)

    def _states_of(self, optimizer: torch.optim.Optimizer) -> dict[str, OptimizerState]:
        return from_torch_state(optimizer, self._flat, self._accesses)


class StateOnWorkers:
    """The state of an optimizer that runs on every worker, which is the state of `inner`.

    Args:
        one_for_all: whether the state is the same on all workers, as their parameters are.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        flat: FlatParams,
        strategy: Strategy,
        one_for_all: bool,
    ) -> None:
        self._inner = inner
        self._flat: Any = flat
        self._strategy = strategy
        self._one_for_all = one_for_all

    def begin(self, rank: int, clock: int) -> Program:
        """Begin the strategy, with the state of rank 0 if it is the same on all workers."""
        yield from self._strategy.begin(self._flat, rank, clock)
        if self._one_for_all:
            yield from self._spread(self._inner, rank == 0)

    def read(self) -> Generator[Any, Any, Mapping[Tensor, Dict]]:
        """Return the state of each parameter."""
        yield from ()
        return self._inner.state

    def check(self, other: torch.optim.Optimizer) -> None:
        """Accept any state."""

    def write(self, other: torch.optim.Optimizer, writes: bool) -> Program:
        """Spread the parameters of the worker that `writes`, and take the state of `other`.

        If the state is the same on all workers, all take the one of the worker that `writes`.
        """
        yield from self._strategy.spread(self._flat, writes)
        if self._one_for_all:
            yield from self._spread(other, writes)
        else:
            self._inner.state = other.state

    def _spread(self, other: torch.optim.Optimizer, writes: bool) -> Program:
        packed = other.state_dict()
        state = yield from spread(packed["state"], writes)
        self._inner.state = loaded(self._inner, {**packed, "state": state}).state


def state_of(
    inner: torch.optim.Optimizer,
    flat: FlatParams,
    strategy: Strategy,
    accesses: Mapping[str, Access],
) -> StateOnServers | StateOnWorkers:
    """Return the state of an optimizer, which is on workers or servers as the strategy says.

    Args:
        accesses: the access method of each buffer, if it is on servers.

    Raises:
        UsageError: the strategy has its optimizer on servers, and cannot read or write the state.
    """
    if strategy.traits.optimizer_on_workers:
        return StateOnWorkers(inner, flat, strategy, one_for_all=strategy.traits.sends_gradients)
    if not isinstance(strategy, StateInTables):
        raise UsageError(
            f"strategy {strategy.name!r} has its optimizer on servers, and no read_state or "
            "write_state: shoal.Optimizer cannot show, load or save its state"
        )
    methods = {buffer: make(access) for buffer, access in accesses.items()}
    return StateOnServers(inner, flat, strategy, methods)
