"""Strategy "noisy": synchronous SGD with gradient noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

from shoal.protocol.requests import Exchange
from shoal.strategies.base import Model, StrategyOptions, strategies
from shoal.strategies.servers import ServerStrategy
from shoal.strategies.settings import StrategySettings, setting
from shoal.tables.consistency import bsp


class NoisySettings(StrategySettings, frozen=True, kw_only=True):
    """Settings of "noisy"."""

    eta: Annotated[float, setting("eta: variance of the noise at step 0", ge=0)] = 0.01
    gamma: Annotated[float, setting("gamma: decay of the variance", ge=0)] = 0.55


class Noisy(ServerStrategy):
    """Strategy "noisy": synchronous SGD with Gaussian noise that fades.

    Each worker adds noise to its gradient of step t::

        g' = g + N(0, eta / (1 + t)^gamma)

    State: in the tables only.

    References:
        Neelakantan et al. 2015, equation 1.
    """

    name: ClassVar[str] = "noisy"
    summary: ClassVar[str] = "synchronous SGD with noise on the gradients, which fades"
    traits = replace(
        ServerStrategy.traits,
        in_step=True,
        state="in the tables, which checkpoints have",
        late_workers="late workers are waited for",
    )
    Settings: ClassVar[type[StrategySettings]] = NoisySettings
    source: ClassVar[str] = "Neelakantan et al. 2015"

    def __init__(self, options: StrategyOptions) -> None:
        super().__init__(options)
        self.consistency = bsp()

    def _exchange(self, model: Model, weight: float) -> Exchange:
        import torch

        deviation = (self.settings.eta / (1 + self.clock) ** self.settings.gamma) ** 0.5
        for gradient in model.grads.values() if weight else ():
            gradient.add_(torch.randn_like(gradient), alpha=deviation)
        return super()._exchange(model, weight)


strategies.add(Noisy.name, Noisy)
