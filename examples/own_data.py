"""Data of one's own: shoal train --data examples/own_data.py:rings"""

import torch
from torch import Tensor


def rings(samples: int = 2000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points on two noisy rings, and on which of them each is: train_x, train_y, test_x, test_y."""
    random = torch.Generator().manual_seed(0)  # every worker makes the same ones
    y = torch.randint(0, 2, (samples,), generator=random)
    angle = 6.2832 * torch.rand(samples, generator=random)
    radius = 1.0 + y + 0.2 * torch.randn(samples, generator=random)
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    held = samples // 5
    return x[held:], y[held:], x[:held], y[:held]
