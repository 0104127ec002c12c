"""Gradient methods: the base class of the dense optimizers, and their scratch memory."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import final

import torch
from torch import Tensor

from shoal.tables.access import AccessMethod, Slots, require_alike
from shoal.tables.schedules import SCHEDULE_OPTIONS, schedule_lr
from shoal.tables.spec import Options

# Rows are updated in blocks of this many elements, one fragment of float32: scratch is bounded, and
# a fragment is one block. Smaller blocks are slower: a torch call costs more than L2 gains.
BLOCK = 1 << 18
SMALL = 1 << 12  # elements; malloc serves smaller scratch from its own caches, in less time

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
# Squared gradients do not fit a float16: above 256 they overflow, below 2e-4 they are zero, and so
# is Adam's eps. torch.optim.Adam turns float16 parameters into infinities at the first step.
WIDE_FLOATS = FLOATS - {"float16"}


COMMON_OPTIONS: Options = {"maximize": False, **SCHEDULE_OPTIONS}
NEGATED, MERGED = 3, 4  # the `which` of a negated update, and of a merged one


class GradientMethod(AccessMethod):
    """An access method whose update is a gradient. It has a learning rate and works in blocks."""

    dtypes = WIDE_FLOATS

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._rate = schedule_lr(self.settings)
        self._slots = self.slots()
        self._decay = float(self.settings.get("weight_decay", 0.0))  # added to the gradient
        self._ascends = self._flag("maximize")

    @abstractmethod
    def _block(self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float) -> None:
        """Apply an update to one block; allocate no more than the block's size."""

    @final
    def apply(
        self, rows: Tensor, slots: Slots, update: Tensor, step: int, lr: float | None = None
    ) -> None:
        require_alike(self.name, rows, update)
        rate = self._rate(step) if lr is None else lr
        tensors = (rows, update, *(slots[name] for name in self._slots))
        if rows.numel() <= BLOCK or not all(each.is_contiguous() for each in tensors):
            self._do(rows, slots, update, step, rate)
            return
        cut = [torch.split(each.view(-1), BLOCK) for each in tensors]
        for row_block, update_block, *state in zip(*cut, strict=True):
            by_name = dict(zip(self._slots, state, strict=True))
            self._do(row_block, by_name, update_block, step, rate)

    def _do(self, rows: Tensor, slots: Slots, update: Tensor, step: int, rate: float) -> None:
        if self._ascends:
            update = torch.neg(update, out=pool.like(update, NEGATED))
        self._block(rows, slots, update, step, rate)


class _Pool(threading.local):
    """Scratch memory, kept by each thread.

    A megabyte from malloc may be fresh pages of the system each time, and touching those takes
    longer than the arithmetic (measured: Adam on a fragment 0.9 ms, against 0.5 ms).
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[torch.dtype, int], Tensor] = {}

    def like(self, tensor: Tensor, which: int) -> Tensor:
        """Return an uninitialised tensor like `tensor`; calls with one `which` may share memory."""
        count = tensor.numel()
        # torch's allocator handles streams that may still read the previous use (CUDA)
        if count <= SMALL or count > BLOCK or tensor.device.type != "cpu":
            return torch.empty_like(tensor)
        key = (tensor.dtype, which)
        if key not in self.kept:
            self.kept[key] = torch.empty(BLOCK, dtype=tensor.dtype)
        return self.kept[key][:count].view(tensor.shape)


pool = _Pool()


def decayed(update: Tensor, rows: Tensor, decay: float) -> Tensor:
    """Return g' = g + λ θ, in scratch 0; the update itself if λ is 0."""
    if not decay:
        return update
    return torch.add(update, rows, alpha=decay, out=pool.like(rows, 0))
