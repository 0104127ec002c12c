"""FlatParams: parameters and gradients as views of flat buffers, one per dtype and parameter group.

Pulls write into the model and pushes read from the gradients without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from shoal.errors import InvalidValue

if TYPE_CHECKING:
    from shoal.client.client import Client

ALIGN = 16  # elements: every parameter starts at an address aligned for vector instructions


class Place(NamedTuple):
    """Where a parameter is: `rows` of a flat buffer."""

    parameter: nn.Parameter
    buffer: str
    rows: slice


class FlatParams:
    """Trainable parameters and their gradients as views of flat buffers.

    There is a buffer for each dtype and parameter group. It has the dtype's name for the first
    group, such as "float32", and the group's number behind it for the others, such as "float32.1".

    Args:
        parameters: parameters or, as torch.optim takes them, groups: dicts with the parameters
            under "params". They are flattened in this order; those without `requires_grad` are left
            out.

    Attributes:
        values: by buffer, (n,) tensor whose pieces are the parameters' `.data`, each aligned to 16
            elements.
        grads: by buffer, (n,) tensor whose pieces are the parameters' `.grad`.
        wires: by buffer, (n + 1,) tensor: `grads` with one more element, for a weight that travels
            along.
        places: where each parameter is, in the order of the buffers.
        groups: by buffer, the number of its parameter group.

    Raises:
        InvalidValue: there are no trainable parameters.

    Example:
        >>> flat = FlatParams(nn.Linear(2, 3).parameters())
        >>> flat.values["float32"].shape, flat.sizes
        (torch.Size([32]), {'float32': 32})
    """

    def __init__(self, parameters: Iterable[nn.Parameter] | Iterable[Mapping[str, Any]]) -> None:
        self.values: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor] = {}
        self.wires: dict[str, Tensor] = {}
        self.places: list[Place] = []
        self.groups: dict[str, int] = {}
        self._gradients: list[tuple[nn.Parameter, Tensor]] = []  # each with its place in `grads`
        for buffer, (number, members) in _buffers(parameters).items():
            self.groups[buffer] = number
            self._flatten(buffer, members)
        if not self.places:
            raise InvalidValue("there are no trainable parameters (requires_grad)")

    def _flatten(self, buffer: str, parameters: list[nn.Parameter]) -> None:
        total = sum(-(-p.numel() // ALIGN) * ALIGN for p in parameters)
        values = torch.zeros(total, dtype=parameters[0].dtype)
        wire = torch.zeros(total + 1, dtype=values.dtype)
        grads = wire[:-1]
        offset = 0
        for parameter in parameters:
            rows = slice(offset, offset + parameter.numel())
            values[rows] = parameter.detach().reshape(-1)
            parameter.data = values[rows].view(parameter.shape)
            parameter.grad = grads[rows].view(parameter.shape)
            self._gradients.append((parameter, parameter.grad))
            self.places.append(Place(parameter, buffer, rows))
            offset += -(-parameter.numel() // ALIGN) * ALIGN
        self.values[buffer] = values
        self.grads[buffer] = grads
        self.wires[buffer] = wire

    @property
    def sizes(self) -> dict[str, int]:
        """Elements by buffer."""
        return {buffer: len(values) for buffer, values in self.values.items()}

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
        pulls = [client.pull(f"{prefix}.{buffer}", out=v) for buffer, v in self.values.items()]
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


def _buffers(
    parameters: Iterable[nn.Parameter] | Iterable[Mapping[str, Any]],
) -> dict[str, tuple[int, list[nn.Parameter]]]:
    """By buffer, the number of its group and its trainable parameters."""
    given = list(parameters)
    groups = [each["params"] for each in given if isinstance(each, Mapping)] or [given]
    found: dict[str, tuple[int, list[nn.Parameter]]] = {}
    for number, group in enumerate(groups):
        for parameter in group:
            if parameter.requires_grad:
                dtype = str(parameter.dtype).removeprefix("torch.")
                buffer = f"{dtype}.{number}" if number else dtype
                found.setdefault(buffer, (number, []))[1].append(parameter)
    return found
