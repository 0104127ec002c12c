"""EmbeddingBag: sums, means and maxima of rows that are in sparse tables on servers."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor
from torch.nn import functional

from shoal.errors import InvalidValue
from shoal.pytorch.embedding import Embedding


class EmbeddingBag(Embedding):
    """`torch.nn.EmbeddingBag` with rows in a sparse table: sums, means or maxima of bags.

    Call it with ids (bags, n), or with flat ids and the `offsets` (bags,) where each bag begins; it
    returns (bags, embedding_dim). With `per_sample_weights`, shaped as the ids, a bag is the
    weighted sum (mode "sum" only).

    Args:
        num_embeddings: as in `Embedding`.
        embedding_dim: as in `Embedding`.
        padding_idx: the id that bags leave out.
        mode: the reduction of a bag: "sum", "mean" or "max".
        include_last_offset: whether the offsets have one more element, the number of ids.
        options: the other arguments of `Embedding`.

    Raises:
        InvalidValue: as `Embedding`, or another mode.
        UsageError: as `Embedding`.

    Example:
        >>> import shoal, torch
        >>> context = shoal.init()
        >>> ones = shoal.tables.Init("constant", 1.0)
        >>> bags = shoal.nn.EmbeddingBag(None, 2, mode="sum", init=ones, table="docs/bags")
        >>> bags(torch.tensor([[3, 99, 3], [1, 2, 3]])).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        mode: Literal["sum", "mean", "max"] = "mean",
        include_last_offset: bool = False,
        **options: Any,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise InvalidValue(f"an EmbeddingBag's mode is 'sum', 'mean' or 'max', not {mode!r}")
        super().__init__(num_embeddings, embedding_dim, padding_idx, **options)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Return the bags' sums, means or maxima, (bags, embedding_dim)."""
        lookup = self._look_up(ids)
        return functional.embedding_bag(
            lookup.numbers,
            lookup.rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=lookup.padding,
        )
