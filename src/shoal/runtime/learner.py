"""Learner: a module with a loss, as strategies see it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoal.runtime.params import FlatParams

Loss = Callable[[Tensor, Tensor], Tensor]


class Learner:
    """A module, its flat parameters and its loss: the `Model` of `shoal.strategies`.

    transform: applied to each batch before the module sees it
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = nn.functional.cross_entropy,
        transform: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda x, y: (x, y),
    ) -> None:
        self.module = module
        self.flat = FlatParams(module.parameters())
        self.values = self.flat.values
        self.grads = self.flat.grads
        self.wires = self.flat.wires
        self._loss = loss
        self._transform = transform

    def gradient(self, batch: tuple[Tensor, Tensor]) -> tuple[float, float]:
        """Fill `grads` with the mean gradient of a batch (x, y); returns (loss, samples)."""
        x, y = self._transform(*batch)
        for grads in self.grads.values():
            grads.zero_()
        loss = self._loss(self.module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item(), float(len(y))

    def evaluate(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """(accuracy, mean loss) on samples that are transformed already."""
        was_training = self.module.training
        self.module.eval()
        with torch.no_grad():
            scores = self.module(x)
            loss = self._loss(scores, y).item()
            accuracy = (scores.argmax(1) == y).float().mean().item()
        self.module.train(was_training)
        return accuracy, loss
