"""LossModel: a torch module with its loss, as strategies see it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.pytorch.flat_parameters import FlatParams

LARGE = 1 << 16  # elements: gradients of larger parameters are copied to the buffer, not added


class LossModel(FlatParams):
    """A module with flat parameters and the cross entropy: the `Model` of `shoal.strategies`.

    Args:
        module: the module.
        transform: applied to each batch before the module.
    """

    def __init__(
        self,
        module: nn.Module,
        transform: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda x, y: (x, y),
    ) -> None:
        super().__init__(module.parameters())
        self.module = module
        self._places: dict[nn.Parameter, Tensor] = {}
        self._added: list[Tensor] = []
        self._come: set[nn.Parameter] = set()
        self._prepare()
        self._transform = transform

    def _prepare(self) -> None:
        """Have gradients of large parameters copied into the flat buffer when they are computed.

        Autograd adds to an existing `.grad`, which takes two more passes over memory. Gradients of
        small parameters are added, which needs no hook.
        """
        for parameter, place in self._gradients:
            if place.numel() < LARGE:
                self._added.append(place)
            else:
                self._places[parameter] = place
                parameter.grad = None
                parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]

    def _take(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        self._places[parameter].copy_(parameter.grad)
        parameter.grad = None
        self._come.add(parameter)

    def gradient(self, batch: tuple[Tensor, Tensor]) -> tuple[float, float]:
        """Fill `grads` with the mean gradient of a batch (x, y); returns (loss, samples)."""
        x, y = self._transform(*batch)
        if self._added:
            torch._foreach_zero_(self._added)
        self._come.clear()
        loss = functional.cross_entropy(self.module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter, place in self._places.items():
            if parameter not in self._come:
                place.zero_()
        return loss.item(), float(len(y))

    def evaluate(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """(accuracy, mean loss) on transformed samples."""
        was_training = self.module.training
        self.module.eval()
        with torch.no_grad():
            scores = self.module(x)
            loss = functional.cross_entropy(scores, y).item()
            accuracy = (scores.argmax(1) == y).float().mean().item()
        self.module.train(was_training)
        return accuracy, loss
