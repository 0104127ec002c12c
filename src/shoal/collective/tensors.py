"""Allreduce of tensors: the arithmetic for `protocol.worker.peers.ring`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from shoal.collective.base import AllGather, AllReduce
from shoal.errors import InvalidValue
from shoal.protocol.requests import Gather, Reduce
from shoal.tables.values import bytes_of

Array = Callable[[memoryview], "np.ndarray | Tensor"]


def prepared(asked: AllReduce | AllGather) -> Reduce | Gather:
    """Return the request of a strategy's collective; that of an allreduce is made once.

    Raises:
        InvalidValue: as `reduce_of` says.
    """
    if isinstance(asked, AllGather):
        return Gather(asked.data.data)
    request: Reduce = asked.prepared(reduce_of)
    return request


def reduce_of(tensor: Tensor, mean: bool) -> Reduce:
    """Return the request that sums a tensor in place.

    Raises:
        InvalidValue: not a contiguous CPU tensor of numbers, or the mean of integers.
    """
    if not isinstance(tensor, Tensor) or tensor.dtype == torch.bool or tensor.is_complex():
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InvalidValue(f"allreduce needs a tensor of numbers, not {kind}")
    try:
        torch.zeros(1, dtype=tensor.dtype).add_(0)
    except (RuntimeError, NotImplementedError):
        raise InvalidValue(f"allreduce needs numbers that torch adds, not {tensor.dtype}") from None
    if mean and not tensor.is_floating_point():
        raise InvalidValue(f"{tensor.dtype} tensors have no mean; leave out mean=True")
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
    """Return a function that views memory as an array, of numpy where it has the dtype.

    Numpy takes a third of torch's time.
    """
    try:
        numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return lambda memory: torch.frombuffer(_writable(memory), dtype=dtype)
    return lambda memory: np.frombuffer(memory, numpy_dtype)


def _writable(memory: memoryview) -> memoryview | bytearray:
    """Return a copy of read-only memory, about which torch warns, and other memory as it is."""
    return bytearray(memory) if memory.readonly else memory
