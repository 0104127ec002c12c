"""Dense optimizers: access methods whose update is a gradient.

    sgd, adagrad, rmsprop, adadelta, adam         (further ones: `tables.dense.torch_methods`)

Each computes what the torch.optim class of that name computes; `tables.from_torch` translates an
optimizer. Below, θ are rows, g is the update, t = step + 1 counts updates, and η is the learning
rate: the push's `lr`, or the table's schedule (`shoal.tables.schedules`) at `step`. Each has the
option `maximize` (false by default), under which g is the negated update: it ascends.
"""

from __future__ import annotations

from math import sqrt
from typing import ClassVar, final

import torch
from torch import Tensor

from shoal.errors import InvalidValue
from shoal.tables.access import ADAGRAD_LR, ADAM_OPTIONS, SGD_LR, Slots
from shoal.tables.dense.gradient_method import (
    COMMON_OPTIONS,
    FLOATS,
    GradientMethod,
    decayed,
    pool,
)
from shoal.tables.spec import Options


@final
class SGD(GradientMethod):
    """SGD with heavy-ball or Nesterov momentum.

    Update rule::

        g' = g + λ θ
        b  ← g' at step 0, then μ b + (1 - d) g'
        θ  ← θ - η (g' + μ b if nesterov else b)      without momentum: θ - η g'

    State: `momentum` (b), if momentum > 0. No scratch is used: g' is never formed.

    Keyword Args:
        lr: η, >= 0; 0.01 by default.
        momentum: μ, >= 0; 0 by default.
        dampening: d; 0 by default.
        nesterov: whether to look ahead; false by default. Needs momentum > 0 and dampening 0.
        weight_decay: λ, >= 0; 0 by default.

    Example:
        >>> rows = torch.tensor([1.0, 2.0])
        >>> SGD({"lr": 0.5}).apply(rows, {}, torch.tensor([2.0, 2.0]), step=0)
        >>> rows
        tensor([0., 1.])

    References:
        Sutskever et al. 2013, section 2; with the rate outside the velocity, as in torch.
    """

    name = "sgd"
    dtypes = FLOATS
    options: ClassVar[Options] = {
        "lr": SGD_LR,
        "momentum": 0.0,
        "dampening": 0.0,
        "nesterov": False,
        "weight_decay": 0.0,
        **COMMON_OPTIONS,
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._momentum = self._number("momentum")
        self._dampening = self._number("dampening")
        self._nesterov = self._flag("nesterov")
        if self._nesterov and (self._momentum == 0 or self._dampening != 0):
            raise InvalidValue(
                f"sgd: nesterov=True needs momentum > 0 and dampening = 0, not "
                f"momentum={self._momentum}, dampening={self._dampening}"
            )

    def state(self) -> dict[str, float]:
        return {"momentum": 0.0} if self.settings["momentum"] else {}

    def _block(self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float) -> None:
        if self._momentum == 0:
            self._descend(rows, update, lr)
            return
        velocity = slots["momentum"]
        if step == 0:  # undampened, and independent of the slot's old value
            velocity.copy_(update)
            fresh = 1.0
        else:
            fresh = 1.0 - self._dampening
            velocity.mul_(self._momentum).add_(update, alpha=fresh)
        if self._decay:
            velocity.add_(rows, alpha=fresh * self._decay)
        if self._nesterov:
            self._descend(rows, update, lr)
            rows.add_(velocity, alpha=-lr * self._momentum)
        else:
            rows.add_(velocity, alpha=-lr)

    def _descend(self, rows: Tensor, update: Tensor, lr: float) -> None:
        """Compute θ ← θ - η g' as (1 - η λ) θ - η g."""
        if self._decay:
            rows.mul_(1.0 - lr * self._decay)
        rows.add_(update, alpha=-lr)


@final
class Adagrad(GradientMethod):
    """AdaGrad: a learning rate per element, divided by the root of its summed squared gradients.

    Update rule::

        g' = g + λ θ
        s  ← s + g'²
        θ  ← θ - η / (1 + step δ) g' / (√s + ε)

    State: `sum` (s), from initial_accumulator_value.

    Keyword Args:
        lr: η, >= 0; 0.01 by default.
        lr_decay: δ, >= 0; 0 by default.
        weight_decay: λ, >= 0; 0 by default.
        initial_accumulator_value: initial s, >= 0; 0 by default.
        eps: ε, >= 0; 1e-10 by default.

    Example:
        >>> rows, slots = torch.tensor([1.0, 1.0]), {"sum": torch.zeros(2)}
        >>> Adagrad({"lr": 1.0}).apply(rows, slots, torch.tensor([3.0, -4.0]), step=0)
        >>> rows, slots["sum"]
        (tensor([0., 2.]), tensor([ 9., 16.]))

    References:
        Duchi, Hazan & Singer 2011, figure 1 (diagonal, without a proximal term).
    """

    name = "adagrad"
    options: ClassVar[Options] = {
        "lr": ADAGRAD_LR,
        "lr_decay": 0.0,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
        **COMMON_OPTIONS,
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._lr_decay = self._number("lr_decay")
        self._eps = self._number("eps")

    def state(self) -> dict[str, float]:
        return {"sum": self._number("initial_accumulator_value")}

    def _block(self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float) -> None:
        squares = slots["sum"]
        gradient = decayed(update, rows, self._decay)
        squares.addcmul_(gradient, gradient)
        scale = torch.sqrt(squares, out=pool.like(rows, 1)).add_(self._eps)
        rows.addcdiv_(gradient, scale, value=-lr / (1.0 + step * self._lr_decay))


@final
class RMSprop(GradientMethod):
    """RMSprop: the gradient divided by a running average of its recent magnitude.

    Update rule::

        g' = g + λ θ
        v  ← α v + (1 - α) g'²
        m  ← m + (1 - α) (g' - m)                 if centered
        r  = √v + ε, or √(v - m²) + ε if centered
        b  ← μ b + g' / r
        θ  ← θ - η b                              without momentum: θ - η g' / r

    State: `square_avg` (v); `grad_avg` (m) if centered; `momentum` (b) if momentum > 0. As in
    torch, an element whose gradient stops varying has v = m² up to rounding, where `centered`
    divides by ε or takes the root of a negative number: use a larger eps.

    Keyword Args:
        lr: η, >= 0; 0.01 by default.
        alpha: α, 0 to 1; 0.99 by default.
        eps: ε, >= 0; 1e-8 by default.
        weight_decay: λ, >= 0; 0 by default.
        momentum: μ, >= 0; 0 by default.
        centered: whether to divide by the standard deviation; false by default.

    Example:
        >>> rows, slots = torch.tensor([1.0]), {"square_avg": torch.zeros(1)}
        >>> method = RMSprop({"lr": 1.0, "alpha": 0.75})
        >>> method.apply(rows, slots, torch.tensor([4.0]), step=0)
        >>> rows, slots["square_avg"]
        (tensor([-1.]), tensor([4.]))

    References:
        Tieleman & Hinton 2012, lecture 6.5; centered: Graves 2013, equations 38 to 41.
    """

    name = "rmsprop"
    options: ClassVar[Options] = {
        "lr": 0.01,
        "alpha": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "centered": False,
        **COMMON_OPTIONS,
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._alpha = self._number("alpha")
        self._eps = self._number("eps")
        self._momentum = self._number("momentum")
        self._centered = self._flag("centered")

    def state(self) -> dict[str, float]:
        state = {"square_avg": 0.0}
        if self.settings["centered"]:
            state["grad_avg"] = 0.0
        if self.settings["momentum"]:
            state["momentum"] = 0.0
        return state

    def _block(self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float) -> None:
        squares = slots["square_avg"]
        gradient = decayed(update, rows, self._decay)
        squares.mul_(self._alpha).addcmul_(gradient, gradient, value=1.0 - self._alpha)
        scale = pool.like(rows, 1)
        if self._centered:
            mean = slots["grad_avg"].lerp_(gradient, 1.0 - self._alpha)
            torch.addcmul(squares, mean, mean, value=-1.0, out=scale).sqrt_()
        else:
            torch.sqrt(squares, out=scale)
        scale.add_(self._eps)
        if self._momentum:
            velocity = slots["momentum"].mul_(self._momentum).addcdiv_(gradient, scale)
            rows.add_(velocity, alpha=-lr)
        else:
            rows.addcdiv_(gradient, scale, value=-lr)


@final
class Adadelta(GradientMethod):
    """AdaDelta: steps in the units of the parameters, a ratio of running root mean squares.

    Update rule::

        g' = g + λ θ
        v  ← ρ v + (1 - ρ) g'²
        Δ  = √(u + ε) / √(v + ε) g'
        u  ← ρ u + (1 - ρ) Δ²
        θ  ← θ - η Δ                      η is 1 in the paper

    State: `square_avg` (v), `acc_delta` (u).

    Keyword Args:
        lr: η, >= 0; 1 by default.
        rho: ρ, 0 to 1; 0.9 by default.
        eps: ε, >= 0; 1e-6 by default.
        weight_decay: λ, >= 0; 0 by default.

    Example:
        >>> rows = torch.tensor([10.0])
        >>> slots = {"square_avg": torch.zeros(1), "acc_delta": torch.zeros(1)}
        >>> method = Adadelta({"rho": 0.75, "eps": 1.0, "lr": 2.0})
        >>> method.apply(rows, slots, torch.tensor([0.0]), step=0)
        >>> rows
        tensor([10.])

    References:
        Zeiler 2012, algorithm 1.
    """

    name = "adadelta"
    options: ClassVar[Options] = {
        "lr": 1.0,
        "rho": 0.9,
        "eps": 1e-6,
        "weight_decay": 0.0,
        **COMMON_OPTIONS,
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._rho = self._number("rho")
        self._eps = self._number("eps")

    def state(self) -> dict[str, float]:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def _block(self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float) -> None:
        squares, deltas = slots["square_avg"], slots["acc_delta"]
        gradient = decayed(update, rows, self._decay)
        squares.mul_(self._rho).addcmul_(gradient, gradient, value=1.0 - self._rho)
        # Δ = g' / √(v + ε) √(u + ε): `scale` is one root after the other, Δ overwrites g'
        scale = torch.add(squares, self._eps, out=pool.like(rows, 1)).sqrt_()
        delta = torch.div(gradient, scale, out=pool.like(rows, 0))
        delta.mul_(torch.add(deltas, self._eps, out=scale).sqrt_())
        deltas.mul_(self._rho).addcmul_(delta, delta, value=1.0 - self._rho)
        rows.add_(delta, alpha=-lr)


@final
class Adam(GradientMethod):
    """Adam, AdamW and AMSGrad: a running mean of gradients over the root of that of their squares.

    Update rule::

        g' = g + λ θ              if decoupled: g' = g and θ ← (1 - η λ) θ
        m  ← m + (1 - β1) (g' - m)
        v  ← β2 v + (1 - β2) g'²
        w  ← max(w, v) if amsgrad, else v
        θ  ← θ - η_t m / (√w + ε √(1 - β2^t)),   η_t = η √(1 - β2^t) / (1 - β1^t)

    State: `exp_avg` (m), `exp_avg_sq` (v); `max_exp_avg_sq` (w) with amsgrad.

    Keyword Args:
        lr: η, >= 0; 0.001 by default.
        beta1: β1, in [0, 1); 0.9 by default.
        beta2: β2, in [0, 1); 0.999 by default.
        eps: ε, >= 0; 1e-8 by default.
        weight_decay: λ, >= 0; 0 by default (torch's AdamW: 0.01).
        amsgrad: whether to compute AMSGrad; false by default.
        decoupled: whether to compute AdamW; false by default.

    Example:
        >>> rows = torch.tensor([1.0, 1.0])
        >>> slots = {"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
        >>> Adam({"lr": 0.5}).apply(rows, slots, torch.tensor([3.0, -4.0]), step=0)
        >>> rows
        tensor([0.5000, 1.5000])

    References:
        Kingma & Ba 2015, algorithm 1; its bias corrections are folded into the rate as at the end
        of section 2, and ε is scaled along, so that the result is algorithm 1's. AdamW: Loshchilov
        & Hutter 2019, algorithm 2. AMSGrad: Reddi, Kale & Kumar 2018, algorithm 2.
    """

    name = "adam"
    options: ClassVar[Options] = {
        **ADAM_OPTIONS,
        "amsgrad": False,
        "decoupled": False,
        **COMMON_OPTIONS,
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._beta1 = self._number("beta1")
        self._beta2 = self._number("beta2")
        self._eps = self._number("eps")
        self._amsgrad = self._flag("amsgrad")
        self._shrinks = 0.0  # the decoupled weight decay
        if self._flag("decoupled"):
            self._shrinks, self._decay = self._decay, 0.0

    def state(self) -> dict[str, float]:
        state = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
        if self.settings["amsgrad"]:
            state["max_exp_avg_sq"] = 0.0
        return state

    def _block(self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float) -> None:
        mean, squares = slots["exp_avg"], slots["exp_avg_sq"]
        if self._shrinks:
            rows.mul_(1.0 - lr * self._shrinks)
        gradient = decayed(update, rows, self._decay)
        mean.lerp_(gradient, 1.0 - self._beta1)
        squares.mul_(self._beta2).addcmul_(gradient, gradient, value=1.0 - self._beta2)
        if self._amsgrad:
            largest = slots["max_exp_avg_sq"]
            squares = torch.maximum(largest, squares, out=largest)
        correction1 = 1.0 - self._beta1 ** (step + 1)
        correction2 = sqrt(1.0 - self._beta2 ** (step + 1))
        # g' is in both moments now, so that its scratch can be reused
        scale = torch.sqrt(squares, out=pool.like(rows, 0)).add_(self._eps * correction2)
        rows.addcdiv_(mean, scale, value=-lr * correction2 / correction1)
