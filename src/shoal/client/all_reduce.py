"""shoal.all_reduce: a sum or mean over all workers, as torch.distributed has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shoal.client.context import Context, current
from shoal.errors import InvalidValue

if TYPE_CHECKING:
    from torch import Tensor


def all_reduce(
    tensor: Tensor, op: Literal["sum", "mean"] = "sum", *, context: Context | None = None
) -> None:
    """Replace a tensor by its sum or mean over all workers, in place.

    With P workers each sends 2 (P - 1) / P of the tensor. All workers call it for the same tensors
    in the same order, and all get bitwise the same result. `Client.all_reduce` returns a future.

    Args:
        tensor: a contiguous CPU tensor of numbers.
        op: "sum", or "mean" for the sum divided by the number of workers.
        context: the context of `shoal.init()` by default.

    Raises:
        InvalidValue: no contiguous CPU tensor of numbers, the mean of integers, or another `op`.
        RingBroken: a worker joined or left meanwhile; some may have the result.
        UsageError: `shoal.init()` was not called.

    Example:
        >>> import shoal, torch
        >>> context = shoal.init()
        >>> ones = torch.ones(2)
        >>> shoal.all_reduce(ones, "mean")
        >>> ones
        tensor([1., 1.])

    References:
        Patarasuk and Yuan 2009, section 3 (the ring).
    """
    if op not in ("sum", "mean"):
        raise InvalidValue(f"op is 'sum' or 'mean', not {op!r}")
    (context or current()).client.blocking.all_reduce(tensor, mean=op == "mean")
