"""Hyper-parameters of a torch optimizer that servers run: they are those of its tables."""

from __future__ import annotations

from typing import Any

import torch

from shoal.errors import InvalidValue
from shoal.strategies import Strategy
from shoal.tables.from_torch import KERNEL_CHOICES


class FixedHyperparameters:
    """All groups' hyper-parameters but the learning rate, which is sent with every push.

    Args:
        optimizer: the torch optimizer, when it was wrapped.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._names = [name for name in optimizer.defaults if name != "lr"]
        self._before = self._of(optimizer.param_groups)

    def _of(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: group.get(name) for name in self._names} for group in groups]

    def check_unchanged(self, groups: list[dict[str, Any]]) -> None:
        """Refuse changes that servers would not see.

        Raises:
            InvalidValue: a hyper-parameter has changed.
        """
        now = self._of(groups)
        if now == self._before:
            return
        for before, after in zip(self._before, now, strict=True):
            for name, value in after.items():
                if value != before[name]:
                    raise InvalidValue(
                        f"{name} was {before[name]!r} when the optimizer was wrapped and is "
                        f"{value!r} now; servers run it, so that only the learning rate may change "
                        "(a scheduler that cycles the momentum as well takes cycle_momentum=False; "
                        "strategy 'allreduce' takes any change)"
                    )

    def check_state(self, groups: list[dict[str, Any]]) -> None:
        """Refuse a loaded state with other hyper-parameters than servers have.

        Raises:
            InvalidValue: a hyper-parameter differs.
        """
        for before, group in zip(self._before, groups, strict=True):
            for name, value in before.items():
                if name not in KERNEL_CHOICES and group[name] != value:
                    raise InvalidValue(
                        f"{name} is {group[name]!r} in this state, but was {value!r} when the "
                        f"optimizer was wrapped; wrap one with {name}={group[name]!r}"
                    )


def norm_for(strategy: Strategy, clip_norm: float | None) -> float | None:
    """Return `clip_norm`, if workers have the gradient that it clips.

    Raises:
        InvalidValue: servers average the gradients of several workers, or the norm is not above 0.
    """
    if clip_norm is None:
        return None
    if not clip_norm > 0:
        raise InvalidValue(f"clip_norm is a number above 0, not {clip_norm}")
    if strategy.options.workers > 1 and not strategy.traits.optimizer_on_workers:
        raise InvalidValue(
            f"strategy {strategy.name!r} averages gradients on servers, each of its own rows, so "
            "that no worker has the mean gradient for clip_norm. Use strategy 'allreduce', or clip "
            "each worker's gradient with shoal.clip_grad_norm_ before step"
        )
    return clip_norm
