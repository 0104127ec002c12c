"""Small problems with known minima, and simulated runs on them."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.simulation.training import SimulatedWorker, simulate_training
from shoal.strategies import StrategyOptions, strategies
from shoal.strategies.base import WIRE_TAIL
from shoal.tables.spec import Access

SGD = Access("sgd", {"lr": 0.1})


class FlatModel:
    """A `Model` of one buffer in float64: `loss_of(x, batch)` and its gradient by autograd."""

    def __init__(self, size: int, loss_of) -> None:
        self.values = {"x": torch.zeros(size, dtype=torch.float64)}
        self.wires = {"x": torch.zeros(size + WIRE_TAIL, dtype=torch.float64)}
        self.grads = {"x": self.wires["x"][:-WIRE_TAIL]}
        self.spans, self.absent, self.idle = {}, {}, ()
        self._loss_of = loss_of

    @property
    def x(self) -> Tensor:
        return self.values["x"]

    def gradient(self, batch) -> tuple[float, float]:
        x = self.x.clone().requires_grad_()
        loss = self._loss_of(x, batch)
        loss.backward()
        self.grads["x"].copy_(x.grad)
        return loss.item(), 1.0


class Repeated:
    """A worker's batches: the same list in every epoch."""

    def __init__(self, batches) -> None:
        self._batches = batches

    def epoch(self, epoch: int):
        return iter(self._batches)


SCALES = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
CENTRE = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)


def quadratic(x: Tensor, batch: Tensor) -> Tensor:
    """sum_j s_j (x_j - b_j)^2 / 2, of a batch b."""
    return (SCALES * (x - batch) ** 2).sum() / 2


def smooth(x: Tensor, batch: Tensor) -> Tensor:
    """sum_j s_j log cosh(x_j - b_j), whose gradient s tanh(x - b) is not linear."""
    return (SCALES * torch.log(torch.cosh(x - batch))).sum()


def logistic_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(64, 3, generator=generator, dtype=torch.float64)
    labels = (inputs @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) > 0.3).double()
    return inputs, labels


def logistic(x: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean log-loss of a linear classifier with a ridge, which has one minimum."""
    inputs, labels = batch
    scores = inputs @ x
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
    return loss + 0.05 * (x @ x)


def train(
    name: str,
    batches,
    loss_of=quadratic,
    access: Access = SGD,
    epochs: int = 1,
    servers: int = 2,
    batch_s=0.01,
    seed: int = 0,
    network=None,
    max_steps: int = 0,
    size: int = 3,
    watched=None,
    codec_times=None,
    **settings,
) -> list[SimulatedWorker]:
    """Train one worker for each list of batches; settings are the strategy's."""
    redundancy = settings.pop("redundancy", 1)
    seconds = batch_s if isinstance(batch_s, list) else [batch_s] * len(batches)
    of_options = {
        name: settings.pop(name)
        for name in ("staleness", "apply_at", "codec", "server_codec")
        if name in settings
    }
    workers = [
        SimulatedWorker(
            strategies[name](
                StrategyOptions(
                    access,
                    workers=len(batches),
                    rank=rank,
                    redundancy=redundancy,
                    settings=settings,
                    **of_options,
                )
            ),
            FlatModel(size, loss_of),
            Repeated(own),
            epochs,
            seconds[rank],
            watched,
        )
        for rank, own in enumerate(batches)
    ]
    simulate_training(workers, servers, seed, network, max_steps, codecs=codec_times)
    return workers


def around(workers: int, count: int, spread: float = 0.0, seed: int = 1) -> list[list[Tensor]]:
    """Each worker's batches, around the quadratic's centre."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [
            CENTRE + spread * torch.randn(3, generator=generator, dtype=torch.float64)
            for _ in range(count)
        ]
        for _ in range(workers)
    ]
