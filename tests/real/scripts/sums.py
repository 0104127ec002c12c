"""Sums tensors of every dtype over the workers, as the ring has to, and by a future."""

import sys

import torch

import shoal

context = shoal.init()
workers, rank = context.world_size, context.rank
total = sum(range(1, workers + 1))
for dtype in (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
):
    for n in (1, 5, 100_000):
        tensor = torch.full((n,), rank + 1).to(dtype)
        shoal.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((n,), total).to(dtype)), (dtype, tensor)
tensor = torch.full((3,), float(rank))
future = context.client.all_reduce(tensor, mean=True)
future.wait()
assert torch.equal(tensor, torch.full((3,), (workers - 1) / 2)), tensor
sys.stdout.write("all as they should be\n")
