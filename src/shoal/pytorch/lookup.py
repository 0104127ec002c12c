"""Lookups: the ids of one forward pass of an embedding, and their rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.tables.sparse.distinct import distinct


class Lookup:
    """The rows of one forward pass.

    Attributes:
        ids: the ids of the batch, of any shape.
        keys: (n,) uint64, the distinct ids without the padding.
        numbers: the index in `rows` of each id, shaped as the ids.
        rows: the (n, dim) rows, or (n + 1, dim) with the padding's zeros last; a leaf of the graph.
        version: torch's version counter of the ids, which may be changed in place.
    """

    def __init__(self, ids: Tensor, padding_idx: int | None) -> None:
        self.ids = ids
        self.version = version_of(ids)
        flat = ids.detach().reshape(-1).to("cpu", torch.int64).numpy()
        self.keys, numbers = distinct(flat.view(np.uint64))
        self.padding: int | None = None
        if padding_idx is not None:
            found = np.flatnonzero(self.keys == np.uint64(padding_idx % (1 << 64)))
            if len(found):
                at = int(found[0])
                last = len(self.keys) - 1
                self.keys = np.delete(self.keys, at)
                moved = np.arange(last + 1)
                moved[at], moved[at + 1 :] = last, moved[at + 1 :] - 1
                numbers = moved[numbers]
                self.padding = last
        self.numbers = torch.from_numpy(numbers.astype(np.int64)).view(ids.shape)
        self.rows = torch.empty(0)

    def fill(self, rows: Tensor) -> None:
        if self.padding is not None:
            rows = torch.cat([rows, rows.new_zeros((1, rows.shape[1]))])
        self.rows = rows


def version_of(ids: Tensor) -> int:
    """Return torch's count of writes to a tensor; 0 for inference tensors, which have none."""
    return 0 if ids.is_inference() else ids._version
