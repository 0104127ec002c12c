"""What the features share: how a loop trains, on which rows, and small models."""

import torch
from torch import nn

STEPS, ROWS, WIDTH = 5, 16, 6
SETTINGS = {"diloco": {"tau": 1, "outer_lr": 1.0, "outer_momentum": 0.0}}
SGD, Adam = torch.optim.SGD, torch.optim.Adam
FEATURES = {}


class Setting:
    """How a feature trains: by which strategy, and on which rows."""

    def __init__(self, strategy, rank, world):
        self.strategy, self.rank, self.world = strategy, rank, world

    def wrap(self, inner, **more):
        if not self.strategy:
            return inner
        import shoal

        settings = SETTINGS.get(self.strategy, {})
        return shoal.Optimizer(inner, self.strategy, settings=settings, **more)

    def batch(self, step, whole=False):
        """Rows and targets of a step: this worker's share of them, or all."""
        generator = torch.Generator().manual_seed(100 + step)
        x = torch.randn(ROWS, WIDTH, generator=generator)
        y = torch.randn(ROWS, 1, generator=generator)
        if whole or self.strategy not in ("sync", "allreduce"):
            return x, y
        return x[self.rank :: self.world], y[self.rank :: self.world]


def feature(function):
    FEATURES[function.__name__] = function
    return function


def net(*more):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), *more, nn.Linear(5, 1))


def images():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(6, 1))


def pictures(x):
    return torch.cat([x, x], 1).view(-1, 2, 2, 3)


def loop(at, model, optimizer, steps=STEPS, before=None, after=None, whole=False, inputs=None):
    """The loop that most features vary: something happens before or after each step."""
    for step in range(steps):
        x, y = at.batch(step, whole)
        optimizer.zero_grad()
        (model(inputs(x) if inputs else x) - y).square().mean().backward()
        if before:
            before(step)
        optimizer.step()
        if after:
            after(step)
    return model
