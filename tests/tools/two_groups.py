"""What a second parameter group costs: steps of AdamW with two groups beside steps with one.

    OMP_NUM_THREADS=1 shoal run --workers 2 --servers 2 tests/tools/two_groups.py

Blocks of steps take turns in one run; medians and quartiles of 15 paired ratios.
"""

import statistics
import time

import torch

import shoal

BLOCKS, BATCH = 15, 64
SIZES = ((64, 60), (512, 20))  # width of four layers, steps of a block


def model(width):
    torch.manual_seed(1)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])


def groups(module):
    matrices = [p for p in module.parameters() if p.dim() > 1]
    others = [p for p in module.parameters() if p.dim() == 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def block(module, optimizer, steps, x):
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - began) / steps


def main():
    context = shoal.init()
    for width, steps in SIZES:
        for strategy in ("sync", "allreduce"):
            one, two = model(width), model(width)
            of_one = shoal.Optimizer(torch.optim.AdamW(one.parameters(), lr=1e-4), strategy)
            of_two = shoal.Optimizer(torch.optim.AdamW(groups(two), lr=1e-4), strategy)
            x, times = torch.randn(BATCH, width), []
            for _ in range(BLOCKS):
                times.append((block(one, of_one, steps, x), block(two, of_two, steps, x)))
            low, middle, high = statistics.quantiles([b / a for a, b in times], n=4)
            if context.rank == 0:
                count = sum(p.numel() for p in one.parameters())
                usual = 1e3 * statistics.median(a for a, _ in times)
                print(
                    f"{count:,} parameters, {strategy}: x {middle:.3f} ({low:.3f}..{high:.3f}) of "
                    f"{usual:.2f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
