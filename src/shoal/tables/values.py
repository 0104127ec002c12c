"""Tensors as bytes: checks and views of the buffers that clients push and pull."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.errors import InvalidValue
from shoal.tables.dense.rows import DTYPES
from shoal.tables.spec import TableSpec

Lens = Tensor | np.ndarray | Sequence[int] | None


def bytes_of(tensor: Tensor) -> memoryview:
    """Return a tensor's memory as bytes.

    Raises:
        InvalidValue: the tensor is not contiguous or not on the CPU.
    """
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise InvalidValue(
            f"values have to be contiguous CPU tensors, not a tensor on {tensor.device.type} with "
            f"strides {tensor.stride()}; use .cpu().contiguous()"
        )
    if not tensor.numel():
        return memoryview(bytearray())
    view: memoryview = tensor.detach().view(-1).view(torch.uint8).numpy().data
    return view


def check_values(spec: TableSpec, values: Tensor) -> None:
    """Refuse anything but a tensor of the table's dtype."""
    if not isinstance(values, Tensor):
        raise InvalidValue(
            f"table {spec.name!r}: values have to be a torch.Tensor, not a "
            f"{type(values).__name__}; use torch.as_tensor"
        )
    if values.dtype != DTYPES[spec.dtype]:
        raise InvalidValue(f"table {spec.name!r} holds {spec.dtype} values, not {values.dtype}")
