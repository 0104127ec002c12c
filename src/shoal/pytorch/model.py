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
        transform: the function applied to each batch before the module.
    """

    def __init__(
        self,
        module: nn.Module,
        transform: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda x, y: (x, y),
    ) -> None:
        names = {parameter: name for name, parameter in module.named_parameters()}
        super().__init__(module.parameters(), names=names)
        self.module = module
        self._transform = transform
        self._large: dict[nn.Parameter, int] = {}  # by parameter, its number
        self._small: list[int] = []
        self._come: set[int] = set()
        self._prepare()

    def _prepare(self) -> None:
        """Copy the gradients of large parameters to the flat buffer as soon as they are computed.

        A gradient is in the cache then, and its memory is free for the next one.
        """
        for number, parameter in enumerate(self.parameters):
            if parameter.numel() < LARGE:
                self._small.append(number)
            else:
                self._large[parameter] = number
                parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]

    def _take(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        number = self._large[parameter]
        self._gradients[number].copy_(parameter.grad)
        parameter.grad = None
        self._come.add(number)

    def gradient(self, batch: tuple[Tensor, Tensor]) -> tuple[float, float]:
        """Fill `grads` with the mean gradient of a batch (x, y); return (loss, samples)."""
        x, y = self._transform(*batch)
        self.drop_grads()
        self._come.clear()
        loss = functional.cross_entropy(self.module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self._collect(self._small, self._come)
        return loss.item(), float(len(y))

    def evaluate(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """Return (accuracy, mean loss) on transformed samples."""
        was_training = self.module.training
        self.module.eval()
        with torch.no_grad():
            scores = self.module(x)
            loss = functional.cross_entropy(scores, y).item()
            accuracy = (scores.argmax(1) == y).float().mean().item()
        self.module.train(was_training)
        return accuracy, loss
