"""FlatParams: parameters and gradients as views of flat buffers, one per dtype.

Pulls write into the model and pushes read from the gradients without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from shoal.errors import InvalidValue

if TYPE_CHECKING:
    from shoal.client.client import Client

ALIGN = 16  # elements: every parameter starts at an address aligned for vector instructions


class Place(NamedTuple):
    """Where a parameter is: `rows` of the flat buffer of its dtype."""

    parameter: nn.Parameter
    dtype: str
    rows: slice


class FlatParams:
    """Trainable parameters and their gradients as views of flat buffers, one buffer per dtype.

    Args:
        parameters: flattened in this order; those without `requires_grad` are left out.

    Attributes:
        values: by dtype, (n,) tensor whose pieces are the parameters' `.data`, each aligned to 16
            elements.
        grads: by dtype, (n,) tensor whose pieces are the parameters' `.grad`.
        wires: by dtype, (n + 1,) tensor: `grads` with one more element, for a weight that travels
            along.
        places: where each parameter is, in the order of the buffers.

    Raises:
        InvalidValue: there are no trainable parameters.

    Example:
        >>> flat = FlatParams(nn.Linear(2, 3).parameters())
        >>> flat.values["float32"].shape, flat.sizes
        (torch.Size([32]), {'float32': 32})
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.values: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor] = {}
        self.wires: dict[str, Tensor] = {}
        self.places: list[Place] = []
        groups: dict[str, list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                groups.setdefault(str(parameter.dtype).removeprefix("torch."), []).append(parameter)
        if not groups:
            raise InvalidValue("there are no trainable parameters (requires_grad)")
        self._gradients: list[tuple[nn.Parameter, Tensor]] = []  # each with its place in `grads`
        for dtype, group in groups.items():
            total = sum(-(-p.numel() // ALIGN) * ALIGN for p in group)
            values = torch.zeros(total, dtype=group[0].dtype)
            wire = torch.zeros(total + 1, dtype=values.dtype)
            grads = wire[:-1]
            offset = 0
            for parameter in group:
                stop = offset + parameter.numel()
                values[offset:stop] = parameter.detach().reshape(-1)
                parameter.data = values[offset:stop].view(parameter.shape)
                parameter.grad = grads[offset:stop].view(parameter.shape)
                self._gradients.append((parameter, parameter.grad))
                self.places.append(Place(parameter, dtype, slice(offset, stop)))
                offset += -(-parameter.numel() // ALIGN) * ALIGN
            self.values[dtype] = values
            self.grads[dtype] = grads
            self.wires[dtype] = wire

    @property
    def sizes(self) -> dict[str, int]:
        """Elements by dtype."""
        return {dtype: len(values) for dtype, values in self.values.items()}

    def zero_grads(self) -> None:
        """Zero all gradients."""
        for grads in self.grads.values():
            grads.zero_()
        self.attach_grads()

    def pull(self, client: Client, prefix: str = "params") -> None:
        """Pull the parameters from the tables of an `Optimizer` or of `shoal train`.

        Args:
            client: a connected client.
            prefix: prefix of the tables' names; "/params" for the first group's from another group.

        Raises:
            InvalidValue: no such tables, or tables of another model.

        Example:
            >>> with shoal.connect(run, group="eval") as client:  # doctest: +SKIP
            ...     FlatParams(model.parameters()).pull(client, "/params")
        """
        pulls = [client.pull(f"{prefix}.{dtype}", out=v) for dtype, v in self.values.items()]
        for each in pulls:
            each.wait()

    @property
    def version(self) -> int:
        """Counter that grows with every write to a parameter that torch sees; not with pulls."""
        return sum(parameter._version for parameter, _ in self._gradients)

    def attach_grads(self) -> None:
        """Make every `.grad` a view of the flat buffer again, after `module.zero_grad()`."""
        for parameter, place in self._gradients:
            held = parameter.grad
            if held is None:  # unused in this step; the buffer has the last gradient
                place.zero_()
            elif held.data_ptr() != place.data_ptr():
                place.copy_(held)
            parameter.grad = place
