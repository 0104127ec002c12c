"""Tensors in memory that servers of this host read in place."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from shoal.errors import InvalidValue
from shoal.transport.arena import arena
from shoal.transport.shared import SHARED_BYTES


def shared_zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor of zeros that is pushed to servers of this host without a copy.

    A server reads the values where they are: the worker copies nothing, and small pushes take less
    time (`shoal bench dense`, "in place"). As with all pushed tensors, the values must not change
    before the push's future is done. Servers of other hosts, and pushes of less than 32 KiB, get a
    copy. The gradients of `shoal.Optimizer` and of `FlatParams` are in such memory.

    A fork of this process that writes to the tensor writes to memory of its own. What it reads
    before that is undefined.

    Args:
        size: the sizes of the dimensions, in elements.
        dtype: the dtype.

    Returns:
        A tensor of shape `size` on the CPU, with a storage of its own, which cannot be resized.
        It is in ordinary memory where the system has no memory to share.

    Raises:
        InvalidValue: a negative size.

    Example:
        >>> shared_zeros(2, 3)
        tensor([[0., 0., 0.],
                [0., 0., 0.]])
    """
    if any(each < 0 for each in size):
        raise InvalidValue(f"a tensor has sizes of 0 or more, not {size}")
    nbytes = prod(size) * dtype.itemsize
    if nbytes >= SHARED_BYTES:
        try:
            return torch.frombuffer(arena.zeros(nbytes), dtype=dtype).view(size)
        except OSError:
            pass
    return torch.zeros(size, dtype=dtype)
