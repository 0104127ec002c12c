"""`shoal.nn`: modules whose parameters live on servers.

Embedding, EmbeddingBag    rows by id, in sparse tables
prefetch, push             one pull before, one push after a batch, for all of a model's tables
"""

from __future__ import annotations

from shoal.pytorch.embedding import Embedding, EmbeddingBag, prefetch, push

__all__ = ["Embedding", "EmbeddingBag", "prefetch", "push"]
