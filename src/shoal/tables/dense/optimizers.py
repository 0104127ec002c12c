"""Optimizers: the access methods whose update is a gradient.

    sgd, adagrad, rmsprop, adadelta, adam

Each computes what the torch.optim class of that name computes (`tables.from_torch` reads one off
an optimizer), within the contract of `tables.access`: state is the caller's, everything is element
by element, and scratch is two blocks of BLOCK elements that every method in a thread uses again
and again.

Below, θ are rows, g the update, t = step + 1, η the rate: `lr`, or the table's schedule at `step`
(`shoal.tables.schedules`), or what the call says.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from math import sqrt
from typing import ClassVar, final

import torch
from torch import Tensor

from shoal.errors import InvalidValue
from shoal.tables.access import AccessMethod, require_alike
from shoal.tables.schedules import DEFAULT_SCHEDULE, PREFIX, schedule_lr
from shoal.tables.spec import Options

SGD_LR = 0.01
ADAGRAD_LR = 0.01
RMSPROP_LR = 0.01
ADADELTA_LR = 1.0
ADAM_LR = 0.001

# Rows are worked on in blocks of this many elements, one fragment of float32: scratch is bounded,
# and a fragment is still one block. Smaller blocks lose: a torch call costs more than L2 gains.
BLOCK = 1 << 18
SMALL = 1 << 12  # scratch up to this many elements comes from malloc's own caches, in less time

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
# Squared gradients do not fit a float16 (above 256 they overflow, below 2e-4 they are zero, and
# so is Adam's eps): torch.optim.Adam turns float16 parameters into infinities at the first step.
WIDE_FLOATS = FLOATS - {"float16"}

SCHEDULE_OPTIONS: Options = {"schedule": DEFAULT_SCHEDULE, f"{PREFIX}warmup": 0}


class GradientMethod(AccessMethod):
    """A method whose update is a gradient: it has a rate, and works block by block."""

    dtypes = FLOATS

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._rate = schedule_lr(self.settings)
        self._slots = self.slots()

    @abstractmethod
    def _block(
        self, rows: Tensor, slots: Mapping[str, Tensor], update: Tensor, step: int, lr: float
    ) -> None:
        """`apply` to one block; what this allocates is no larger than the block."""

    @final
    def apply(
        self,
        rows: Tensor,
        slots: Mapping[str, Tensor],
        update: Tensor,
        step: int,
        lr: float | None = None,
    ) -> None:
        require_alike(self.name, rows, update)
        rate = self._rate(step) if lr is None else lr
        tensors = (rows, update, *(slots[name] for name in self._slots))
        if rows.numel() <= BLOCK or not all(each.is_contiguous() for each in tensors):
            self._block(rows, slots, update, step, rate)
            return
        cut = [torch.split(each.view(-1), BLOCK) for each in tensors]
        for row_block, update_block, *state in zip(*cut, strict=True):
            by_name = dict(zip(self._slots, state, strict=True))
            self._block(row_block, by_name, update_block, step, rate)


class _Pool(threading.local):
    """Scratch that a thread keeps.

    A new megabyte from malloc may be new pages from the system each time, and touching those takes
    longer than the arithmetic (measured: Adam on a fragment 0.9 ms, against 0.5 ms).
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[torch.dtype, int], Tensor] = {}

    def like(self, tensor: Tensor, which: int) -> Tensor:
        """An uninitialised tensor as `tensor`; it is the same memory for the same `which`."""
        count = tensor.numel()
        # torch's own allocator is right where a stream may still be reading the last use (CUDA)
        if count <= SMALL or count > BLOCK or tensor.device.type != "cpu":
            return torch.empty_like(tensor)
        key = (tensor.dtype, which)
        if key not in self.kept:
            self.kept[key] = torch.empty(BLOCK, dtype=tensor.dtype)
        return self.kept[key][:count].view(tensor.shape)


_pool = _Pool()


def _decayed(update: Tensor, rows: Tensor, decay: float) -> Tensor:
    """g' = g + λ θ, in scratch 0; the update itself where λ is 0."""
    if not decay:
        return update
    return torch.add(update, rows, alpha=decay, out=_pool.like(rows, 0))


@final
class SGD(GradientMethod):
    """Gradient descent with (heavy-ball or Nesterov) momentum.

        g' = ±g + λ θ                     λ weight_decay; minus under `maximize`
        b  ← g' at step 0, then μ b + (1 - d) g'      μ momentum, d dampening
        θ  ← θ - η (g' + μ b if nesterov else b)      without momentum: θ - η g'

    Sutskever et al. 2013, section 2, with the rate outside the velocity, as torch has it. No
    scratch at all: g' is never formed, its two terms are added one after the other.

    >>> rows = torch.tensor([1.0, 2.0])
    >>> SGD({"lr": 0.5}).apply(rows, {}, torch.tensor([2.0, 2.0]), step=0)
    >>> rows
    tensor([0., 1.])
    """

    name = "sgd"
    options: ClassVar[Options] = {
        "lr": SGD_LR,
        "momentum": 0.0,
        "dampening": 0.0,
        "nesterov": False,
        "weight_decay": 0.0,
        "maximize": False,
        **SCHEDULE_OPTIONS,
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._momentum = self._number("momentum")
        self._dampening = self._number("dampening")
        self._decay = self._number("weight_decay")
        self._nesterov = self._flag("nesterov")
        self._sign = -1.0 if self._flag("maximize") else 1.0
        if self._nesterov and (self._momentum == 0 or self._dampening != 0):
            raise InvalidValue(
                f"sgd: nesterov=True needs momentum > 0 and dampening = 0, not "
                f"momentum={self._momentum}, dampening={self._dampening}"
            )

    def state(self) -> dict[str, float]:
        return {"momentum": 0.0} if self.settings["momentum"] else {}

    def _block(
        self, rows: Tensor, slots: Mapping[str, Tensor], update: Tensor, step: int, lr: float
    ) -> None:
        if self._momentum == 0:
            self._descend(rows, update, lr)
            return
        velocity = slots["momentum"]
        if step == 0:  # undampened, and whatever the slot held does not matter
            torch.mul(update, self._sign, out=velocity)
            fresh = 1.0
        else:
            fresh = 1.0 - self._dampening
            velocity.mul_(self._momentum).add_(update, alpha=fresh * self._sign)
        if self._decay:
            velocity.add_(rows, alpha=fresh * self._decay)
        if self._nesterov:
            self._descend(rows, update, lr)
            rows.add_(velocity, alpha=-lr * self._momentum)
        else:
            rows.add_(velocity, alpha=-lr)

    def _descend(self, rows: Tensor, update: Tensor, lr: float) -> None:
        """θ ← θ - η g', as (1 - η λ) θ - η (±g)."""
        if self._decay:
            rows.mul_(1.0 - lr * self._decay)
        rows.add_(update, alpha=-lr * self._sign)


@final
class Adagrad(GradientMethod):
    """A rate per element that shrinks with the squares seen there: made for sparse features.

        g' = g + λ θ                      λ weight_decay
        s  ← s + g'²                      s starts at initial_accumulator_value
        θ  ← θ - η / (1 + step δ) g' / (√s + ε)       δ lr_decay, ε eps

    Duchi, Hazan & Singer 2011, figure 1 (diagonal, without a proximal term).

    >>> rows, slots = torch.tensor([1.0, 1.0]), {"sum": torch.zeros(2)}
    >>> Adagrad({"lr": 1.0}).apply(rows, slots, torch.tensor([3.0, -4.0]), step=0)
    >>> rows, slots["sum"]
    (tensor([0., 2.]), tensor([ 9., 16.]))
    """

    name = "adagrad"
    dtypes = WIDE_FLOATS
    options: ClassVar[Options] = {
        "lr": ADAGRAD_LR,
        "lr_decay": 0.0,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
        **SCHEDULE_OPTIONS,
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._lr_decay = self._number("lr_decay")
        self._decay = self._number("weight_decay")
        self._eps = self._number("eps")

    def state(self) -> dict[str, float]:
        return {"sum": self._number("initial_accumulator_value")}

    def _block(
        self, rows: Tensor, slots: Mapping[str, Tensor], update: Tensor, step: int, lr: float
    ) -> None:
        squares = slots["sum"]
        gradient = _decayed(update, rows, self._decay)
        squares.addcmul_(gradient, gradient)
        scale = torch.sqrt(squares, out=_pool.like(rows, 1)).add_(self._eps)
        rows.addcdiv_(gradient, scale, value=-lr / (1.0 + step * self._lr_decay))


@final
class RMSprop(GradientMethod):
    """The gradient, divided by a running average of its recent magnitude.

        g' = g + λ θ                              λ weight_decay
        v  ← α v + (1 - α) g'²                    α alpha
        m  ← m + (1 - α) (g' - m)                 if centered
        r  = √v + ε, or √(v - m²) + ε if centered
        b  ← μ b + g' / r                         μ momentum
        θ  ← θ - η b                              without momentum: θ - η g' / r

    Tieleman & Hinton 2012, lecture 6.5; centered: Graves 2013, equations 38 to 41. As in torch, an
    element whose gradient stops varying has v = m² up to rounding, where `centered` divides by ε
    or takes the root of a negative: a larger eps is the remedy.

    >>> rows, slots = torch.tensor([1.0]), {"square_avg": torch.zeros(1)}
    >>> method = RMSprop({"lr": 1.0, "alpha": 0.75})
    >>> method.apply(rows, slots, torch.tensor([4.0]), step=0)
    >>> rows, slots["square_avg"]
    (tensor([-1.]), tensor([4.]))
    """

    name = "rmsprop"
    dtypes = WIDE_FLOATS
    options: ClassVar[Options] = {
        "lr": RMSPROP_LR,
        "alpha": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "centered": False,
        **SCHEDULE_OPTIONS,
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._alpha = self._number("alpha")
        self._eps = self._number("eps")
        self._decay = self._number("weight_decay")
        self._momentum = self._number("momentum")
        self._centered = self._flag("centered")

    def state(self) -> dict[str, float]:
        state = {"square_avg": 0.0}
        if self.settings["centered"]:
            state["grad_avg"] = 0.0
        if self.settings["momentum"]:
            state["momentum"] = 0.0
        return state

    def _block(
        self, rows: Tensor, slots: Mapping[str, Tensor], update: Tensor, step: int, lr: float
    ) -> None:
        squares = slots["square_avg"]
        gradient = _decayed(update, rows, self._decay)
        squares.mul_(self._alpha).addcmul_(gradient, gradient, value=1.0 - self._alpha)
        scale = _pool.like(rows, 1)
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
    """Steps in the units of the parameters: the ratio of two running root mean squares.

        g' = g + λ θ                      λ weight_decay
        v  ← ρ v + (1 - ρ) g'²            ρ rho
        Δ  = √(u + ε) / √(v + ε) g'
        u  ← ρ u + (1 - ρ) Δ²
        θ  ← θ - η Δ                      η is 1 in the paper

    Zeiler 2012, algorithm 1.

    >>> rows = torch.tensor([10.0])
    >>> slots = {"square_avg": torch.zeros(1), "acc_delta": torch.zeros(1)}
    >>> method = Adadelta({"rho": 0.75, "eps": 1.0, "lr": 2.0})
    >>> method.apply(rows, slots, torch.tensor([0.0]), step=0)
    >>> rows
    tensor([10.])
    """

    name = "adadelta"
    dtypes = WIDE_FLOATS
    options: ClassVar[Options] = {
        "lr": ADADELTA_LR,
        "rho": 0.9,
        "eps": 1e-6,
        "weight_decay": 0.0,
        **SCHEDULE_OPTIONS,
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._rho = self._number("rho")
        self._eps = self._number("eps")
        self._decay = self._number("weight_decay")

    def state(self) -> dict[str, float]:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def _block(
        self, rows: Tensor, slots: Mapping[str, Tensor], update: Tensor, step: int, lr: float
    ) -> None:
        squares, deltas = slots["square_avg"], slots["acc_delta"]
        gradient = _decayed(update, rows, self._decay)
        squares.mul_(self._rho).addcmul_(gradient, gradient, value=1.0 - self._rho)
        # Δ = g' / √(v + ε) √(u + ε): `scale` is one root after the other, Δ overwrites g'
        scale = torch.add(squares, self._eps, out=_pool.like(rows, 1)).sqrt_()
        delta = torch.div(gradient, scale, out=_pool.like(rows, 0))
        delta.mul_(torch.add(deltas, self._eps, out=scale).sqrt_())
        deltas.mul_(self._rho).addcmul_(delta, delta, value=1.0 - self._rho)
        rows.add_(delta, alpha=-lr)


@final
class Adam(GradientMethod):
    """Adaptive moments: a running mean of gradients over the root of one of their squares.

        g' = g + λ θ                      λ weight_decay; if decoupled, g' = g and θ ← (1 - η λ) θ
        m  ← m + (1 - β1) (g' - m)
        v  ← β2 v + (1 - β2) g'²
        w  ← max(w, v) if amsgrad, else v
        θ  ← θ - η_t m / (√w + ε √(1 - β2^t)),   η_t = η √(1 - β2^t) / (1 - β1^t)

    Kingma & Ba 2015, algorithm 1, its bias corrections folded into the rate as the end of section
    2 there proposes, but with ε scaled along, so that the result is algorithm 1's own. Decoupled
    is AdamW (Loshchilov & Hutter 2019, algorithm 2); torch's AdamW has weight_decay 0.01 by
    default, which here has to be given. AMSGrad: Reddi, Kale & Kumar 2018, algorithm 2.

    >>> rows = torch.tensor([1.0, 1.0])
    >>> slots = {"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
    >>> method = Adam({"lr": 0.5})
    >>> method.apply(rows, slots, torch.tensor([3.0, -4.0]), step=0)
    >>> rows
    tensor([0.5000, 1.5000])
    """

    name = "adam"
    dtypes = WIDE_FLOATS
    options: ClassVar[Options] = {
        "lr": ADAM_LR,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "amsgrad": False,
        "decoupled": False,
        **SCHEDULE_OPTIONS,
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._beta1 = self._number("beta1")
        self._beta2 = self._number("beta2")
        self._eps = self._number("eps")
        self._amsgrad = self._flag("amsgrad")
        decay, decoupled = self._number("weight_decay"), self._flag("decoupled")
        self._decay = 0.0 if decoupled else decay  # added to the gradient
        self._shrinks = decay if decoupled else 0.0  # taken off the rows

    def state(self) -> dict[str, float]:
        state = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
        if self.settings["amsgrad"]:
            state["max_exp_avg_sq"] = 0.0
        return state

    def _block(
        self, rows: Tensor, slots: Mapping[str, Tensor], update: Tensor, step: int, lr: float
    ) -> None:
        mean, squares = slots["exp_avg"], slots["exp_avg_sq"]
        if self._shrinks:
            rows.mul_(1.0 - lr * self._shrinks)
        gradient = _decayed(update, rows, self._decay)
        mean.lerp_(gradient, 1.0 - self._beta1)
        squares.mul_(self._beta2).addcmul_(gradient, gradient, value=1.0 - self._beta2)
        if self._amsgrad:
            largest = slots["max_exp_avg_sq"]
            squares = torch.maximum(largest, squares, out=largest)
        correction1 = 1.0 - self._beta1 ** (step + 1)
        correction2 = sqrt(1.0 - self._beta2 ** (step + 1))
        # g' is in both moments now, so its scratch is free again
        scale = torch.sqrt(squares, out=_pool.like(rows, 0)).add_(self._eps * correction2)
        rows.addcdiv_(mean, scale, value=-lr * correction2 / correction1)
