"""Logistic regression without a graph: logits, loss and gradients in two passes over a batch.

    x_i = w0 + sum_j w_j v_ij              p_i = 1 / (1 + exp(-x_i))
    loss = -sum_i log |1 - y_i - p_i|      d loss / d w_j = sum_i (p_i - y_i) v_ij

A batch of some hundred rows takes a few thousand additions. The overhead of torch's autograd would
be a hundred times as long (`shoal bench ctr` has the bare loop as its ceiling).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch

from shoal.apps.ctr.readers import Batch
from shoal.apps.ctr.spec import CtrSpec
from shoal.apps.ctr.tables import bias_options, linear_options
from shoal.client.context import Context
from shoal.client.sparse.exchanges import Batch as Keys
from shoal.jit import U, kernel
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.tables.spec import TableSpec
from shoal.tables.values import bytes_of

BIAS = np.zeros(1, np.uint64)  # the only key of the bias


class _Ahead(msgspec.Struct):
    """A batch, and the memory that its weights are pulled to."""

    batch: Batch
    keys: Keys
    numbers: np.ndarray
    weights: torch.Tensor
    bias: torch.Tensor


class Logistic:
    """A click-through-rate model, trained by FTRL on servers (McMahan et al. 2013, algorithm 1)."""

    def __init__(self, spec: CtrSpec, context: Context) -> None:
        self._client = context.client
        self._bias = TableSpec("bias", 0, (1,), kind="sparse", **bias_options(spec))
        self._linear = TableSpec("linear", 0, (1,), kind="sparse", **linear_options(spec))
        for table in (self._bias, self._linear):
            self._client.create_table(table)
        self._ahead: _Ahead | None = None
        self._one = Keys(self._bias, BIAS, self._client.view)
        none, offsets = np.empty(0, np.float32), np.zeros(0, np.int64)
        keys = np.empty(0, np.uint64)
        logits_of(none, 0.0, keys, none, offsets, none)  # compiles it, or fetches it from disk
        gradients_of(none, none, keys, none, offsets, none)

    def score(self, batch: Batch) -> np.ndarray:
        """Return the logits of a batch, (n,) float32."""
        ahead = self._wanted(batch)
        self._exchange((), ahead, 1.0, False)
        return self._logits(ahead)

    def learn(self, batch: Batch, following: Batch | None) -> tuple[np.ndarray, float]:
        """Learn a batch; return its logits before that, and its summed loss."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.batch is not batch:
            ahead = self._wanted(batch)
            self._exchange((), ahead, 1.0, False)
        logits = self._logits(ahead)
        gradients = torch.zeros_like(ahead.weights)
        loss, slope = gradients_of(
            logits, batch.labels, ahead.numbers, batch.values, batch.offsets, gradients.numpy()
        )
        pushes = (
            PushOp("bias", self._bias.keys, bytes_of(torch.tensor([slope])), *self._one.named),
            PushOp("linear", self._linear.keys, bytes_of(gradients), *ahead.keys.named),
        )
        self._ahead = self._wanted(following) if following is not None else None
        self._exchange(pushes, self._ahead, float(len(batch)), True)
        return logits, loss

    def idle(self) -> None:
        """End a clock without a batch."""
        self._client.advance().wait()

    def finish(self) -> None:
        """Do nothing, because all weights are pulled for each batch."""

    def _wanted(self, batch: Batch) -> _Ahead:
        keys = Keys(self._linear, batch.keys, self._client.view)
        return _Ahead(batch, keys, keys.numbers, torch.empty(len(keys.chosen)), torch.empty(1))

    def _exchange(
        self, pushes: tuple[PushOp, ...], ahead: _Ahead | None, weight: float, advance: bool
    ) -> None:
        pulls: tuple[PullOp, ...] = ()
        if ahead is not None:
            pulls = (
                PullOp("bias", self._bias.keys, bytes_of(ahead.bias), *self._one.named),
                PullOp("linear", self._linear.keys, bytes_of(ahead.weights), *ahead.keys.named),
            )
        self._client.exchange(Exchange(pushes, advance, pulls, weight=weight)).wait()

    def _logits(self, ahead: _Ahead) -> np.ndarray:
        batch = ahead.batch
        logits = np.empty(len(batch), np.float32)
        weights, bias = ahead.weights.numpy(), float(ahead.bias)
        logits_of(weights, bias, ahead.numbers, batch.values, batch.offsets, logits)
        return logits


@kernel
def logits_of(
    weights: Any, bias: Any, numbers: Any, values: Any, offsets: Any, logits: Any
) -> None:
    """Write the logits of a batch; `numbers` has the place of each key's weight in `weights`."""
    rows = U(logits.size)
    for i in range(rows):
        stop = U(offsets[i + U(1)]) if i + U(1) < rows else U(numbers.size)
        total = np.float64(bias)
        for j in range(U(offsets[i]), stop):
            total += np.float64(weights[numbers[j]]) * np.float64(values[j])
        logits[i] = total


@kernel
def gradients_of(
    logits: Any, labels: Any, numbers: Any, values: Any, offsets: Any, gradients: Any
) -> Any:
    """Add to `gradients`; return the summed loss, and its derivative by the bias."""
    rows, loss, slope = U(logits.size), 0.0, 0.0
    for i in range(rows):
        stop = U(offsets[i + U(1)]) if i + U(1) < rows else U(numbers.size)
        x, y = np.float64(logits[i]), np.float64(labels[i])
        loss += max(x, 0.0) - x * y + np.log1p(np.exp(-abs(x)))
        error = 1.0 / (1.0 + np.exp(-x)) - y
        slope += error
        for j in range(U(offsets[i]), stop):
            gradients[numbers[j]] += error * np.float64(values[j])
    return loss, slope
