"""Optimizers that torch.optim computes: access methods that call torch's own implementation.

    nadam, radam, adamax, asgd, rprop

θ are rows, g is the update, t = step + 1 counts updates, and η is the learning rate, as in
`tables.dense.optimizers`. Where torch keeps one number for a whole parameter, a slot has it in each
element (`AccessMethod.scalars`), so that rows may be cut in any way. torch's implementations
allocate a few tensors of a block's size.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor

from shoal.tables.access import ADAM_OPTIONS, Slots
from shoal.tables.dense.gradient_method import COMMON_OPTIONS, GradientMethod
from shoal.tables.spec import Options

OPTIONS_OF_TORCH = {  # those with other names here, or with two values
    "betas": ("beta1", "beta2"),
    "etas": ("eta_minus", "eta_plus"),
    "step_sizes": ("step_min", "step_max"),
    "decoupled_weight_decay": ("decoupled",),
}
WHOLE_FLOATS = frozenset({"float32", "float64"})  # a count or a product fits these


class TorchMethod(GradientMethod):
    """An access method that runs an optimizer of torch.optim on a block of rows.

    Attributes:
        kind: the class of torch.optim.
        from_rate: the slots whose initial value is the first update's learning rate.
    """

    dtypes = WHOLE_FLOATS
    kind: ClassVar[type[torch.optim.Optimizer]]
    from_rate: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        left = {n: v for n, v in self.settings.items() if n in self.options}
        for name in ("lr", *COMMON_OPTIONS):
            left.pop(name, None)
        self._arguments: dict[str, Any] = {}
        for name, ours in OPTIONS_OF_TORCH.items():
            if ours[0] in left:
                values = tuple(left.pop(each) for each in ours)
                self._arguments[name] = values if len(ours) > 1 else values[0]
        self._arguments |= left

    @final
    def _block(self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float) -> None:
        if not rows.numel():
            return
        parameter = torch.nn.Parameter(rows)
        parameter.grad = update
        state: dict[str, Any] = {"step": torch.tensor(float(step))}
        for name, slot in slots.items():
            if step == 0 and name in self.from_rate:
                slot.fill_(lr)
            state[name] = slot[(0,) * slot.dim()].float() if name in self.scalars else slot
        optimizer = self.kind([parameter], lr=lr, foreach=False, **self._arguments)  # type: ignore[call-arg]
        optimizer.state[parameter] = state
        optimizer.step()
        for name in self.scalars:
            slots[name].fill_(float(state[name]))


@final
class NAdam(TorchMethod):
    """NAdam: Adam with Nesterov momentum.

    Update rule::

        μ_t = β1 (1 - 0.96^(t ψ) / 2),   M_t = μ_1 ... μ_t
        g' = g + λ θ              if decoupled: g' = g and θ ← (1 - η λ) θ
        m  ← m + (1 - β1) (g' - m)
        v  ← β2 v + (1 - β2) g'²
        m̂  = μ_{t+1} m / (1 - M_t μ_{t+1}) + (1 - μ_t) g' / (1 - M_t)
        θ  ← θ - η m̂ / (√(v / (1 - β2^t)) + ε)

    State: `exp_avg` (m), `exp_avg_sq` (v), `mu_product` (M, in each element).

    Keyword Args:
        lr: η, >= 0; 0.002 by default.
        beta1: β1, in [0, 1); 0.9 by default.
        beta2: β2, in [0, 1); 0.999 by default.
        eps: ε, >= 0; 1e-8 by default.
        weight_decay: λ, >= 0; 0 by default.
        momentum_decay: ψ, >= 0; 0.004 by default.
        decoupled: decay as in AdamW; false by default.

    Example:
        >>> rows = torch.tensor([1.0, 1.0])
        >>> slots = {"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
        >>> slots["mu_product"] = torch.ones(2)
        >>> NAdam({"lr": 0.5}).apply(rows, slots, torch.tensor([3.0, -4.0]), step=0)
        >>> rows
        tensor([0.4718, 1.5282])

    References:
        Dozat 2016, "Incorporating Nesterov momentum into Adam", algorithm 8.
    """

    name = "nadam"
    kind = torch.optim.NAdam
    scalars = frozenset({"mu_product"})
    options: ClassVar[Options] = {
        **ADAM_OPTIONS,
        "lr": 0.002,
        "momentum_decay": 0.004,
        "decoupled": False,
        **COMMON_OPTIONS,
    }

    def state(self) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0, "mu_product": 1.0}


@final
class RAdam(TorchMethod):
    """RAdam: Adam whose rate is rectified while the variance of its second moment is large.

    Update rule::

        g' = g + λ θ              if decoupled: g' = g and θ ← (1 - η λ) θ
        m  ← m + (1 - β1) (g' - m)
        v  ← β2 v + (1 - β2) g'²
        ρ  = 2 / (1 - β2) - 1,   ρ_t = ρ - 2 t β2^t / (1 - β2^t)
        r  = √( (ρ_t - 4) (ρ_t - 2) ρ / ((ρ - 4) (ρ - 2) ρ_t) )
        θ  ← θ - η m / (1 - β1^t) · r √(1 - β2^t) / (√v + ε)      if ρ_t > 5
        θ  ← θ - η m / (1 - β1^t)                                  otherwise

    State: `exp_avg` (m), `exp_avg_sq` (v).

    Keyword Args:
        lr: η, >= 0; 0.001 by default.
        beta1: β1, in [0, 1); 0.9 by default.
        beta2: β2, in [0, 1); 0.999 by default.
        eps: ε, >= 0; 1e-8 by default.
        weight_decay: λ, >= 0; 0 by default.
        decoupled: decay as in AdamW; false by default.

    Example:
        >>> rows, slots = torch.tensor([1.0]), {"exp_avg": torch.zeros(1)}
        >>> slots["exp_avg_sq"] = torch.zeros(1)
        >>> RAdam({"lr": 0.5}).apply(rows, slots, torch.tensor([3.0]), step=0)
        >>> rows
        tensor([-0.5000])

    References:
        Liu et al. 2020, "On the variance of the adaptive learning rate and beyond", algorithm 2.
    """

    name = "radam"
    kind = torch.optim.RAdam
    options: ClassVar[Options] = {**ADAM_OPTIONS, "decoupled": False, **COMMON_OPTIONS}

    def state(self) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}


@final
class Adamax(TorchMethod):
    """Adamax: Adam with the largest gradient of each element in place of the second moment.

    Update rule::

        g' = g + λ θ
        m  ← m + (1 - β1) (g' - m)
        u  ← max(β2 u, |g'| + ε)
        θ  ← θ - η / (1 - β1^t) · m / u

    State: `exp_avg` (m), `exp_inf` (u).

    Keyword Args:
        lr: η, >= 0; 0.002 by default.
        beta1: β1, in [0, 1); 0.9 by default.
        beta2: β2, in [0, 1); 0.999 by default.
        eps: ε, >= 0; 1e-8 by default.
        weight_decay: λ, >= 0; 0 by default.

    Example:
        >>> rows = torch.tensor([1.0])
        >>> slots = {"exp_avg": torch.zeros(1), "exp_inf": torch.zeros(1)}
        >>> Adamax({"lr": 0.5}).apply(rows, slots, torch.tensor([3.0]), step=0)
        >>> rows
        tensor([0.5000])

    References:
        Kingma & Ba 2015, section 7.1 and algorithm 2.
    """

    name = "adamax"
    kind = torch.optim.Adamax
    options: ClassVar[Options] = {**ADAM_OPTIONS, "lr": 0.002, **COMMON_OPTIONS}

    def state(self) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_inf": 0.0}


@final
class ASGD(TorchMethod):
    """Averaged stochastic gradient descent, with a mean of the rows over the last updates.

    Update rule, with h_0 = η and m_0 = 1::

        g' = g + λ θ
        θ  ← (1 - Λ h) θ - h g'
        a  ← a + m (θ - a)
        h  ← η / (1 + Λ η t)^α,   m ← 1 / max(1, t - t0)

    State: `eta` (h) and `mu` (m), in each element; `ax` (a), the mean.

    Keyword Args:
        lr: η, >= 0; 0.01 by default.
        lambd: Λ, the decay of the rate, >= 0; 1e-4 by default.
        alpha: α, in [0, 1]; 0.75 by default.
        t0: the number of updates before the mean begins, >= 0; 1e6 by default.
        weight_decay: λ, >= 0; 0 by default.

    Example:
        >>> rows, slots = torch.tensor([1.0]), {"eta": torch.zeros(1), "mu": torch.ones(1)}
        >>> slots["ax"] = torch.zeros(1)
        >>> ASGD({"lr": 0.5, "lambd": 0.0}).apply(rows, slots, torch.tensor([1.0]), step=0)
        >>> rows, slots["ax"]
        (tensor([0.5000]), tensor([0.5000]))

    References:
        Polyak & Juditsky 1992, "Acceleration of stochastic approximation by averaging".
    """

    name = "asgd"
    kind = torch.optim.ASGD
    scalars = frozenset({"eta", "mu"})
    from_rate = frozenset({"eta"})
    options: ClassVar[Options] = {
        "lr": 0.01,
        "lambd": 1e-4,
        "alpha": 0.75,
        "t0": 1e6,
        "weight_decay": 0.0,
        **COMMON_OPTIONS,
    }

    def state(self) -> dict[str, float]:
        return {"eta": 0.0, "mu": 1.0, "ax": 0.0}


@final
class Rprop(TorchMethod):
    """Resilient backpropagation: a step size for each element, by the signs of its gradients.

    Update rule, with s = η before the first update::

        s  ← clamp(s · (η⁺ if g p > 0, η⁻ if g p < 0, else 1), s_min, s_max)
        g' = 0 if g p < 0, else g
        θ  ← θ - s sign(g'),   p ← g'

    State: `prev` (p), `step_size` (s). A learning rate that changes later has no effect.

    Keyword Args:
        lr: η, >= 0; 0.01 by default.
        eta_minus: η⁻, in [0, 1); 0.5 by default.
        eta_plus: η⁺, > 1; 1.2 by default.
        step_min: s_min, >= 0; 1e-6 by default.
        step_max: s_max, >= 0; 50 by default.

    Example:
        >>> rows, slots = torch.tensor([1.0]), {"prev": torch.zeros(1), "step_size": torch.zeros(1)}
        >>> Rprop({"lr": 0.5}).apply(rows, slots, torch.tensor([-7.0]), step=0)
        >>> rows
        tensor([1.5000])

    References:
        Riedmiller & Braun 1993, section II.
    """

    name = "rprop"
    kind = torch.optim.Rprop
    from_rate = frozenset({"step_size"})
    options: ClassVar[Options] = {
        "lr": 0.01,
        "eta_minus": 0.5,
        "eta_plus": 1.2,
        "step_min": 1e-6,
        "step_max": 50.0,
        **COMMON_OPTIONS,
    }

    def state(self) -> dict[str, float]:
        return {"prev": 0.0, "step_size": 0.0}
