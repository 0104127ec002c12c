"""A run's settings for its script's optimizers: the strategy, its settings, hyper-parameters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from shoal.client.defaults import OptimizerDefaults
from shoal.errors import InvalidValue, UsageError
from shoal.registry import unknown
from shoal.strategies import USUAL, Strategy, strategies

log = logging.getLogger("shoal")


def choose(
    said: OptimizerDefaults,
    inner: torch.optim.Optimizer,
    strategy: str | type[Strategy] | None,
    staleness: int | None,
    settings: Mapping[str, Any] | None,
) -> tuple[type[Strategy], dict[str, Any]]:
    """Return an optimizer's strategy and the fields of its `StrategyOptions`.

    The choices of the script count and, where it makes none, those of its run. The run's
    hyper-parameters are set in `inner`.

    Args:
        said: the choices of the run. Its settings and staleness are those of its strategy, so that
            an optimizer for which the script names another strategy does not get them.
        inner: the wrapped optimizer.
        strategy, staleness, settings: the choices of the script; None where it makes none.

    Raises:
        UnknownName: no such strategy, or no such hyper-parameter.
        InvalidValue: a hyper-parameter of the wrong type, out of its range, or without effect.
        UsageError: a learning rate that a scheduler would undo.
    """
    usual = strategies[said.strategy or USUAL]
    kind = strategies[strategy] if isinstance(strategy, str) else strategy or usual
    given = {"staleness": staleness or 0, "settings": dict(settings or {})}
    if kind.name == usual.name:
        given = {
            "staleness": said.staleness if staleness is None else staleness,
            "settings": {**said.settings, **(settings or {})},
        }
    elif said.strategy or said.settings:
        log.warning(
            "the script names strategy %r for an optimizer, which stays: --strategy %s and its "
            "settings are not used",
            kind.name,
            said.strategy or USUAL,
        )
    set_hyperparameters(inner, said.hyperparameters)
    return kind, given


def set_hyperparameters(optimizer: torch.optim.Optimizer, given: Mapping[str, Any]) -> None:
    """Set arguments of a torch optimizer, in all parameter groups that have not set their own.

    A group that has the value of the optimizer's argument has not set its own.

    Raises:
        UnknownName: the optimizer has no such argument.
        InvalidValue: a value of the wrong type or out of its range, or all groups set their own.
        UsageError: a learning-rate scheduler was made before, and has the initial rate.
    """
    before, kind = dict(optimizer.defaults), type(optimizer).__name__
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in before:
            raise unknown(f"hyper-parameter of {kind}", name, before)
        values[name] = _as(before[name], value, f"{name} of {kind}")
    _check_range(optimizer, values)
    groups = {
        name: [each for each in optimizer.param_groups if each[name] == before[name]]
        for name in values
    }
    for name, some in groups.items():
        if not some:
            raise InvalidValue(
                f"--optimizer-option {name}: each parameter group of this {kind} sets its own "
                f"{name}, which stays; give {name} to the optimizer and not to its groups"
            )
    if "lr" in values and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise UsageError(
            "--optimizer-option lr: a learning-rate scheduler was made for the optimizer before it "
            "was wrapped, and has its rate; make the scheduler for the shoal.Optimizer"
        )
    for name, value in values.items():
        for group in groups[name]:
            if name == "lr" and group.get("initial_lr") == group["lr"]:
                group["initial_lr"] = value  # of a scheduler that is still to be made
            group[name] = value
        optimizer.defaults[name] = value


def _as(before: Any, value: Any, what: str) -> Any:
    """Return a value in the form of the optimizer's former value.

    Raises:
        InvalidValue: the value is of another type.
    """
    if isinstance(before, Tensor) and _is_number(value):
        return torch.full_like(before, value)
    if isinstance(before, tuple) and isinstance(value, list) and len(value) == len(before):
        return tuple(value)
    if _kind(value) == _kind(before) or before is None:
        return value
    form = ", and such a value is given as [0.9,0.95]" if isinstance(before, tuple) else ""
    raise InvalidValue(
        f"--optimizer-option: {what} is {before!r}{form}; it cannot become {value!r}"
    )


def _kind(value: Any) -> type:
    return float if _is_number(value) else type(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_range(optimizer: torch.optim.Optimizer, values: Mapping[str, Any]) -> None:
    """Have torch check the values, as it does when such an optimizer is made.

    Raises:
        InvalidValue: torch refuses them.
    """
    kind: Any = type(optimizer)
    if not values or kind.__module__.partition(".")[0] != "torch":
        return  # what a class of the user's own does when it is made is unknown
    arguments = {**optimizer.defaults, **values}
    known = signature(kind).parameters
    try:
        kind(
            [torch.zeros(2, 2, requires_grad=True)],
            **{name: value for name, value in arguments.items() if name in known},
        )
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidValue(f"--optimizer-option: {kind.__name__}: {error}") from None
