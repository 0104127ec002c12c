"""Click-through-rate models: logits of rows of sparse features, from weights that live on servers.

lr       w₀ + Σ wᵢ xᵢ                                          logistic.py, without torch's graph
fm       ... + ½ Σ_f ((Σ vᵢ_f xᵢ)² - Σ vᵢ_f² xᵢ²)              Rendle 2010, equation 5
deepfm   ... + a multi-layer perceptron of the fields' factors  Guo et al. 2017
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.apps.ctr.logistic import Logistic
from shoal.apps.ctr.readers import Batch
from shoal.apps.ctr.spec import CtrSpec
from shoal.apps.ctr.tables import bias_options, factor_options, linear_options
from shoal.client.context import Context
from shoal.errors import InvalidValue
from shoal.pytorch.embedding import Embedding, Wanted, prefetch, push
from shoal.pytorch.embedding_bag import EmbeddingBag
from shoal.pytorch.flat_parameters import FlatParams
from shoal.pytorch.optimizer import Optimizer
from shoal.storage.shards import SavedShards

HIDDEN = (64, 32)
LAYERS = "params.float32"  # the table of an Optimizer's parameters
CONSTANT = torch.zeros(1, dtype=torch.int64)  # the id of the bias, which has one row


class Model(Protocol):
    """The model that a worker trains."""

    def score(self, batch: Batch) -> np.ndarray:
        """Return the logits of a batch, (n,) float32."""

    def learn(self, batch: Batch, following: Batch | None) -> tuple[np.ndarray, float]:
        """Learn a batch; return its logits before that, and its summed loss.

        following: the next batch, whose rows may be pulled in the same message
        """

    def idle(self) -> None:
        """End a clock without a batch."""

    def finish(self) -> None:
        """Pull the parameters that `score` does not pull by itself."""


def model_of(spec: CtrSpec, context: Context) -> Model:
    """Return the model of a run."""
    return Logistic(spec, context) if spec.model == "lr" else Factored(spec, context)


class Factored:
    """A model with factors, trained with torch's autograd."""

    def __init__(self, spec: CtrSpec, context: Context) -> None:
        self._client = context.client
        self._asynchronous = spec.consistency.name == "asp"
        self.module = Clicks(spec, context)
        self._optimizer: Optimizer | None = None
        if self.module.deep is not None:
            if spec.init:
                flat = FlatParams(self.module.deep.parameters())
                flat.values["float32"].copy_(saved_layers(Path(spec.init), flat))
            inner = torch.optim.Adam(self.module.deep.parameters(), lr=spec.dense_lr)
            self._optimizer = Optimizer(
                inner, spec.strategy, staleness=spec.staleness, context=context
            )

    def score(self, batch: Batch) -> np.ndarray:
        with torch.no_grad():
            logits: np.ndarray = self.module(batch).numpy()
        return logits

    def learn(self, batch: Batch, following: Batch | None) -> tuple[np.ndarray, float]:
        logits = self.module(batch)
        labels = torch.from_numpy(batch.labels)
        loss = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        ahead: list[Wanted] = []
        if self._asynchronous and following is not None:
            ahead = self.module.wanted(following)
        pushed = push(self.module, weight=len(batch), then=ahead)
        if self._optimizer is not None:
            self._optimizer.step(weight=len(batch))  # it ends the clock
        else:
            clock = self._client.advance()  # checkpoints are taken at clocks, of any strategy
            if not self._asynchronous or following is None:
                clock.wait()
        if following is None and pushed is not None:
            pushed.wait()  # the next lease says that this batch is done
        return logits.detach().numpy(), loss.item()

    def idle(self) -> None:
        if self._optimizer is not None:
            self._optimizer.zero_grad()
            self._optimizer.step(weight=0)
        else:
            self._client.advance().wait()

    def finish(self) -> None:
        if self._optimizer is not None:
            self._client.blocking.pull(LAYERS, out=self._optimizer.flat["float32"])


def saved_layers(run: Path, flat: FlatParams) -> Tensor:
    """Return the dense layers of a run of deepfm as one flat tensor."""
    saved = SavedShards(run)
    if LAYERS not in saved.tables:
        raise InvalidValue(f"{run} is no run of a deepfm: it has no dense layers")
    layers = saved.merged(LAYERS)["rows"]
    if layers.shape != flat.values["float32"].shape:
        raise InvalidValue(f"{run} has dense layers for other --fields or --factors")
    return layers


class Clicks(nn.Module):
    """The logits of a batch, (n,), from a model with factors.

    The perceptron of deepfm sees the first `spec.fields` fields of a row; later fields count only
    in the other terms.
    """

    def __init__(self, spec: CtrSpec, context: Context) -> None:
        super().__init__()
        self.bias = Embedding(None, 1, table="bias", context=context, **bias_options(spec))
        self.linear = EmbeddingBag(
            None, 1, mode="sum", table="linear", context=context, **linear_options(spec)
        )
        self.factors = Embedding(
            None, spec.factors, table="factors", context=context, **factor_options(spec)
        )
        self.deep: nn.Module | None = None
        self._ahead: tuple[Batch, Tensor] | None = None
        self._fields = spec.fields
        if spec.model == "deepfm":
            self.deep = dense_layers(spec)

    def wanted(self, batch: Batch) -> list[Wanted]:
        """Return the lookups of a batch, with the tensors that `forward` uses."""
        keys = torch.from_numpy(batch.keys.view("int64"))
        self._ahead = batch, keys
        return [(self.bias, CONSTANT), (self.linear, keys), (self.factors, keys)]

    def forward(self, batch: Batch) -> Tensor:
        if self._ahead is None or self._ahead[0] is not batch:
            prefetch(*self.wanted(batch))
        assert self._ahead is not None
        keys, self._ahead = self._ahead[1], None
        values = torch.from_numpy(batch.values)
        logits: Tensor = self.bias(CONSTANT)[0] + self.linear(
            keys, torch.from_numpy(batch.offsets), per_sample_weights=values
        ).squeeze(1)
        factors = self.factors(keys) * values.unsqueeze(1)
        return logits + interactions(batch, factors, self.deep, self._fields)


def dense_layers(spec: CtrSpec) -> nn.Module:
    """Return the perceptron of a deepfm with its initial parameters."""
    torch.manual_seed(spec.seed)
    sizes = (spec.fields * spec.factors, *HIDDEN)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))


def interactions(batch: Batch, factors: Tensor, deep: nn.Module | None, seen_fields: int) -> Tensor:
    """Return the interactions of a row's keys, plus the perceptron's output, for each row, (n,).

    factors:  (m, width), the factor of each key of the batch, times its value
    """
    count, width = len(batch), factors.shape[1]
    lengths = torch.diff(torch.from_numpy(batch.offsets), append=torch.tensor([len(factors)]))
    rows = torch.repeat_interleave(torch.arange(count), lengths)
    sums = factors.new_zeros(count, width).index_add(0, rows, factors)
    squares = factors.new_zeros(count, width).index_add(0, rows, factors.square())
    logits: Tensor = 0.5 * (sums.square() - squares).sum(1)
    if deep is not None:
        fields = torch.from_numpy(batch.fields)
        seen = fields < seen_fields
        places = rows[seen] * seen_fields + fields[seen]
        flat = factors.new_zeros(count * seen_fields, width)
        inputs = flat.index_add(0, places, factors[seen])
        logits = logits + deep(inputs.view(count, -1)).squeeze(1)
    return logits
