"""`powersgd`: a matrix becomes two factors of low rank, which an allreduce sums."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Annotated

from shoal.codecs.base import NamedCodec, option

if TYPE_CHECKING:
    from torch import Tensor


# fmt: off
class PowerSGD(NamedCodec, frozen=True):
    """The mean of matrices M_i over workers as P Q^T, with P of n x r and Q of m x r values.

    One step of the power method, which begins with the Q of the last mean::

        P = orthonormal(mean_i M_i Q)        Q = mean_i M_i^T P        mean_i M_i ~ P Q^T

    Both means are allreduces: no worker has to decode what others have sent. A tensor of more than
    two dimensions is a matrix of its first one; vectors travel as they are.

    Example:
        >>> from shoal.codecs import summed_codec_of
        >>> codec = summed_codec_of("powersgd:2")
        >>> codec.bytes_of((256, 64, 3, 3)), codec.bytes_of((256,))
        (6656, 1024)
    """

    argument = "rank"
    name = "powersgd"
    summary = "a matrix as two factors of low rank; for allreduce and DDP, not for servers"
    source = "Vogels 2019, algorithms 1 and 2"

    rank: Annotated[int, option("columns of each factor", ge=1, le=1024)] = 2
    # fmt: on

    @property
    def biased(self) -> bool:
        return True

    def matrix_of(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the rows, the columns and the rank of a tensor's matrix; rank 0 if it has none.

        It has none if its two factors are not fewer values.
        """
        rows, columns = (shape[0], prod(shape[1:])) if len(shape) > 1 else (prod(shape), 1)
        rank = min(self.rank, rows, columns)
        return rows, columns, rank if rank * (rows + columns) < rows * columns else 0

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        rows, columns, rank = self.matrix_of(shape)
        return 4 * (rank * (rows + columns) if rank else rows * columns)


def orthonormal(columns: Tensor) -> Tensor:
    """Return (n, r) orthonormal columns with the span of those that are given."""
    import torch

    found: Tensor = torch.linalg.qr(columns.double())[0]
    return found.to(columns.dtype)
