"""Tensors as sums over all workers: the arithmetic that `collective.ring` is given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from shoal.client.values import bytes_of
from shoal.errors import InvalidValue
from shoal.protocol.requests import Reduce

Array = Callable[[memoryview], "np.ndarray | Tensor"]


def reduce_of(tensor: Tensor, mean: bool) -> Reduce:
    """The request that sums a tensor in place.

    Raises:
        InvalidValue: no contiguous CPU tensor of numbers, or the mean of whole numbers
    """
    if not isinstance(tensor, Tensor) or tensor.dtype == torch.bool or tensor.is_complex():
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InvalidValue(f"an allreduce is of a tensor of numbers, not of {kind}")
    if mean and not tensor.is_floating_point():
        raise InvalidValue(f"{tensor.dtype} has no mean; leave mean=True out")
    array = _array_of(tensor.dtype)

    def add(into: memoryview, other: memoryview) -> None:
        target = array(into)
        target += array(other)

    def divide(into: memoryview, workers: int) -> None:
        target = array(into)
        target /= workers

    values = bytes_of(tensor)
    if mean:
        return Reduce(values, add, divide)
    return Reduce(values, add)


def _array_of(dtype: torch.dtype) -> Array:
    """Numpy's arrays where it has the type: they are made in a third of the time."""
    try:
        numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return lambda memory: torch.frombuffer(_writable(memory), dtype=dtype)
    return lambda memory: np.frombuffer(memory, numpy_dtype)


def _writable(memory: memoryview) -> memoryview | bytearray:
    """Torch warns of memory that it may not write, such as a peer's."""
    return bytearray(memory) if memory.readonly else memory
