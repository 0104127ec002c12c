"""Models of clicks: logits of rows of sparse features, from weights that live on servers.

lr       w₀ + Σ wᵢ xᵢ                                          FTRL (McMahan et al. 2013)
fm       ... + ½ Σ_f ((Σ vᵢ_f xᵢ)² - Σ vᵢ_f² xᵢ²)              Rendle 2010, equation 5
deepfm   ... + a multi-layer perceptron of the fields' factors  Guo et al. 2017
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from shoal.apps.ctr.readers import Batch
from shoal.apps.ctr.spec import CtrSpec
from shoal.runtime.context import Context
from shoal.runtime.embedding import Embedding, EmbeddingBag, Wanted, prefetch
from shoal.tables.spec import Access, Init, Options

HIDDEN = (64, 32)
FACTOR_STD = 0.01
CONSTANT = torch.zeros(1, dtype=torch.int64)  # the bias has one row


class Clicks(nn.Module):
    """Logits, (n,), of a batch.

    fields: deepfm: what its perceptron sees of a row; later fields only count in the other terms
    """

    def __init__(self, spec: CtrSpec, context: Context, fields: int) -> None:
        super().__init__()
        rate: Options = {"lr": spec.lr, "beta": spec.beta}
        plain, sparse = Access("ftrl", rate), Access("ftrl", {**rate, "l1": spec.l1, "l2": spec.l2})
        zeros = Init()
        self.bias = Embedding(None, 1, table="bias", access=plain, init=zeros, context=context)
        bound: dict[str, Any] = {"max_rows": spec.max_rows, "evict": spec.evict}
        self.linear = EmbeddingBag(
            None, 1, mode="sum", table="linear", access=sparse, init=zeros, context=context, **bound
        )
        self.factors: Embedding | None = None
        self.deep: nn.Module | None = None
        self._ahead: tuple[Batch, Tensor] | None = None
        self._fields = fields
        if spec.model != "lr":
            self.factors = Embedding(
                None,
                spec.factors,
                table="factors",
                access=Access("adagrad", {"lr": spec.factor_lr, "initial_accumulator_value": 1.0}),
                init=Init("normal", 0.0, FACTOR_STD, spec.seed),
                context=context,
                **bound,
            )
        if spec.model == "deepfm":
            torch.manual_seed(spec.seed)
            sizes = (fields * spec.factors, *HIDDEN)
            layers: list[nn.Module] = []
            for before, after in pairwise(sizes):
                layers += [nn.Linear(before, after), nn.ReLU()]
            self.deep = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def wanted(self, batch: Batch) -> list[Wanted]:
        """The rows that a batch looks up; the tensors are those that `forward` uses."""
        keys = torch.from_numpy(batch.keys.view("int64"))
        self._ahead = batch, keys
        found: list[Wanted] = [(self.bias, CONSTANT), (self.linear, keys)]
        if self.factors is not None:
            found.append((self.factors, keys))
        return found

    def forward(self, batch: Batch) -> Tensor:
        if self._ahead is None or self._ahead[0] is not batch:
            prefetch(*self.wanted(batch))
        assert self._ahead is not None
        keys, self._ahead = self._ahead[1], None
        values = torch.from_numpy(batch.values)
        logits: Tensor = self.bias(CONSTANT)[0] + self.linear(
            keys, torch.from_numpy(batch.offsets), per_sample_weights=values
        ).squeeze(1)
        if self.factors is not None:
            logits = logits + self._interactions(batch, self.factors(keys) * values.unsqueeze(1))
        return logits

    def _interactions(self, batch: Batch, factors: Tensor) -> Tensor:
        """Of all pairs of a row's keys; and what the perceptron makes of its fields."""
        count, width = len(batch), factors.shape[1]
        lengths = torch.diff(torch.from_numpy(batch.offsets), append=torch.tensor([len(factors)]))
        rows = torch.repeat_interleave(torch.arange(count), lengths)
        sums = factors.new_zeros(count, width).index_add(0, rows, factors)
        squares = factors.new_zeros(count, width).index_add(0, rows, factors.square())
        logits: Tensor = 0.5 * (sums.square() - squares).sum(1)
        if self.deep is not None:
            fields = torch.from_numpy(batch.fields)
            seen = fields < self._fields
            places = rows[seen] * self._fields + fields[seen]
            flat = factors.new_zeros(count * self._fields, width)
            inputs = flat.index_add(0, places, factors[seen])
            logits = logits + self.deep(inputs.view(count, -1)).squeeze(1)
        return logits
