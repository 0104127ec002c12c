"""Pure functions on a batch `(x, y)`, applied when the batch is used.

Data sets keep their stored dtype (images are bytes), which is small and quick to load; a transform
turns a batch into a model's input. Transforms are values: two with equal arguments are equal,
they pickle, and they never change the tensors that they are given.

>>> to_unit = Compose(Scale(1 / 255), Scale(2, -1))
>>> x, y = to_unit(torch.full((2, 4, 4), 255, dtype=torch.uint8), torch.tensor([0, 1]))
>>> x.shape, x.max().item()
(torch.Size([2, 4, 4]), 1.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from shoal.errors import InvalidValue

Batch: TypeAlias = tuple[Tensor, Tensor]


class Transform(Protocol):
    """`transform(x, y) -> (x, y)`, with n samples along the first dimension of both."""

    def __call__(self, x: Tensor, y: Tensor) -> Batch:
        """Return the transformed batch; leave `x` and `y` as they are."""
        ...


@dataclass(frozen=True, init=False)
class Compose:
    """The transforms one after the other, in their order; `Compose()` changes nothing."""

    steps: tuple[Transform, ...]

    def __init__(self, *steps: Transform) -> None:
        object.__setattr__(self, "steps", steps)

    def __call__(self, x: Tensor, y: Tensor) -> Batch:
        for step in self.steps:
            x, y = step(x, y)
        return x, y


@dataclass(frozen=True)
class Scale:
    """`x * factor + offset`; whole numbers become torch's default dtype."""

    factor: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not (isfinite(self.factor) and isfinite(self.offset)):
            raise InvalidValue(f"scale({self.factor}, {self.offset}) must be finite")

    def __call__(self, x: Tensor, y: Tensor) -> Batch:
        return _as_real(x) * self.factor + self.offset, y


@dataclass(frozen=True)
class Standardise:
    """`(x - mean) / std` per feature, x of shape (n, features).

    The statistics are those of the training samples, for training and test batches alike. They are
    tuples, not tensors, so that transforms compare, hash and pickle as values.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise InvalidValue(f"{len(self.mean)} means for {len(self.std)} standard deviations")
        if not all(isfinite(mean) for mean in self.mean):
            raise InvalidValue("means must be finite")
        if not all(isfinite(std) and std > 0 for std in self.std):
            raise InvalidValue("standard deviations must be finite and above 0")

    @classmethod
    def of(cls, x: Tensor) -> Standardise:
        """Return the transform for `x`, shape (n, features); a constant feature gets std 1."""
        if x.ndim != 2 or len(x) == 0:
            raise InvalidValue(f"statistics need x of shape (n, features), not {tuple(x.shape)}")
        wide = x.double()
        std = wide.std(0, correction=0)
        # A constant column's deviation is 0 only up to the rounding of its mean.
        constant = (wide == wide[0]).all(0)
        std = torch.where(constant, torch.ones_like(std), std)
        return cls(tuple(wide.mean(0).tolist()), tuple(std.tolist()))

    @cached_property
    def _tensors(self) -> Batch:
        return torch.tensor(self.mean), torch.tensor(self.std)

    def __call__(self, x: Tensor, y: Tensor) -> Batch:
        if x.ndim != 2 or x.shape[1] != len(self.mean):
            raise InvalidValue(
                f"standardise of {len(self.mean)} features got x of shape {tuple(x.shape)}"
            )
        x = _as_real(x)
        mean, std = (part.to(x.device, x.dtype) for part in self._tensors)
        return (x - mean) / std, y


def _as_real(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())
