"""FlatParams: parameters and gradients as views of flat buffers, one per dtype.

A pull lands in the model and a push leaves from the gradient, uncopied: `values[dtype]` and
`grads[dtype]` are one-dimensional tensors whose pieces are the module's own `.data` and `.grad`.
`wires[dtype]` is `grads[dtype]` with one element more behind it, for what travels along.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from shoal.errors import InvalidValue

if TYPE_CHECKING:
    from shoal.client.client import Client

ALIGN = 16  # elements: every parameter starts where vector instructions like it


class FlatParams:
    """Trainable parameters, flattened in the order given.

    >>> flat = FlatParams(nn.Linear(2, 3).parameters())
    >>> flat.values["float32"].shape, flat.sizes
    (torch.Size([32]), {'float32': 32})
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.values: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor] = {}
        self.wires: dict[str, Tensor] = {}
        groups: dict[str, list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                groups.setdefault(str(parameter.dtype).removeprefix("torch."), []).append(parameter)
        if not groups:
            raise InvalidValue("there are no trainable parameters")
        self._parameters = groups
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
                offset += -(-parameter.numel() // ALIGN) * ALIGN
            self.values[dtype] = values
            self.grads[dtype] = grads
            self.wires[dtype] = wire

    @property
    def sizes(self) -> dict[str, int]:
        return {dtype: len(values) for dtype, values in self.values.items()}

    def zero_grads(self) -> None:
        for grads in self.grads.values():
            grads.zero_()
        self.attach_grads()

    def pull(self, client: Client, prefix: str = "params") -> None:
        """Read the parameters from the tables in which an `Optimizer` or `shoal train` has them.

        prefix: of the tables' names; from another group `/params` are the first one's

        Raises:
            InvalidValue: no such tables, or of another model

        >>> with shoal.connect(run, group="eval") as client:            # doctest: +SKIP
        ...     FlatParams(model.parameters()).pull(client, "/params")
        """
        pulls = [client.pull(f"{prefix}.{dtype}", out=v) for dtype, v in self.values.items()]
        for each in pulls:
            each.wait()

    @property
    def version(self) -> int:
        """Grows with every write to a parameter that torch sees; a pull is none."""
        return sum(p._version for group in self._parameters.values() for p in group)

    def attach_grads(self) -> None:
        """Make every `.grad` a view of the flat buffer again (`zero_grad` sets them to None)."""
        for dtype, parameters in self._parameters.items():
            grads = self.grads[dtype]
            offset = 0
            for parameter in parameters:
                view = grads[offset : offset + parameter.numel()].view(parameter.shape)
                held = parameter.grad
                if held is None or held.data_ptr() != view.data_ptr():
                    if held is None:  # not used in this step; the buffer has the last one's
                        view.zero_()
                    else:
                        view.copy_(held)
                    parameter.grad = view
                offset += -(-parameter.numel() // ALIGN) * ALIGN
