"""`shoal.nn`: torch modules whose parameters are rows of sparse tables on servers.

Embedding, EmbeddingBag    lookups by id
prefetch, push             one pull before and one push after a batch, for all tables of a model
"""

from __future__ import annotations

from shoal.pytorch.embedding import Embedding, prefetch, push
from shoal.pytorch.embedding_bag import EmbeddingBag

__all__ = ["Embedding", "EmbeddingBag", "prefetch", "push"]
