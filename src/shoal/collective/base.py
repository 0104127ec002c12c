"""What a collective is, and how a strategy asks for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class AllReduce:
    """Sum `tensor` over all workers, in place. What a strategy yields; the same one again and
    again where it can, so that it is prepared once.

    mean:     divide the sum by the number of workers
    request:  what a client has made of it, and keeps here
    """

    tensor: Tensor
    mean: bool = False
    request: Any = None


class Collective(Protocol):
    """Every member calls the same operations in the same order."""

    rank: int
    world_size: int

    def all_reduce(self, tensor: Tensor, mean: bool = False) -> None:
        """Replace `tensor` by its sum (or mean) over the members."""
        ...

    def barrier(self) -> None: ...
    def close(self) -> None: ...
