"""AllReduce and AllGather: the requests of collectives that strategies yield."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Collective = Literal["ring", "mpi"]  # what sums tensors over the workers


@dataclass(slots=True, frozen=True)
class AllGather:
    """The request that a strategy yields for the bytes of all workers.

    Its outcome has the bytes of all workers as its value, by rank, which must not change.

    Attributes:
        data: (n,) uint8, with the same n on all workers.
    """

    data: np.ndarray


@dataclass(slots=True)
class AllReduce:
    """The request that a strategy yields to sum `tensor` over all workers, in place.

    Reuse the object in every step, so that it is prepared once.

    Attributes:
        tensor: the contiguous CPU tensor.
        mean: whether the sum is divided by the number of workers.
        request: the cache of the client.
    """

    tensor: Tensor
    mean: bool = False
    request: Any = None

    def prepared(self, make: Callable[[Tensor, bool], Any]) -> Any:
        """Return the request that sums the tensor; `make` is called once to create it."""
        if self.request is None:
            self.request = make(self.tensor, self.mean)
        return self.request
