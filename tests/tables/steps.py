"""Steps of access methods on a table's rows, and of torch.optim, whose results are the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.tables.access import AccessMethod
from shoal.tables.dense.gradient_method import GradientMethod
from shoal.tables.dense.methods import access_methods, make
from shoal.tables.spec import Access

STEPS = 100
GRADIENT_METHODS = [
    name for name in access_methods if issubclass(access_methods[name], GradientMethod)
]


def gradients(
    dtype: torch.dtype, shape: Sequence[int] = (3, 5), steps: int = STEPS
) -> list[Tensor]:
    """Seeded gradients that differ in size from element to element by a factor of hundreds."""
    generator = torch.Generator().manual_seed(2011)
    scale = torch.logspace(-2, 0.5, torch.Size(shape).numel()).reshape(shape)
    noise = (torch.randn(shape, generator=generator) + 0.3 for _ in range(steps))
    return [(scale * each).to(dtype) for each in noise]


def new_slots(method: AccessMethod, rows: Tensor) -> dict[str, Tensor]:
    return {name: torch.full_like(rows, method.initial(name)) for name in method.slots()}


def by_table(access: Access, grads: Sequence[Tensor]) -> Tensor:
    """What a table's access method makes of ones."""
    method = make(access)
    rows = torch.ones_like(grads[0])
    slots = new_slots(method, rows)
    for step, grad in enumerate(grads):
        method.apply(rows, slots, grad, step)
    return rows


def by_torch(
    optimizer_class: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
    grads: Sequence[Tensor],
) -> Tensor:
    """What the optimizer's plain implementation makes of ones."""
    parameter = torch.nn.Parameter(torch.ones_like(grads[0]))
    optimizer = optimizer_class([parameter], **options, foreach=False)
    for grad in grads:
        parameter.grad = grad.clone()
        optimizer.step()
    return parameter.detach()
