"""Keys and values: 10,000 keys anywhere in 64 bits, 50 pushes with 10 in flight, one pull."""

from collections import deque

import numpy as np
import torch

import shoal

context = shoal.init()  # alone under python, one of several under `shoal run` or torchrun
client, workers = context.client, context.world_size
client.create_table(shoal.TableSpec("kv", kind="sparse"))  # a row for any key; `sum`, asynchronous

keys = np.arange(10_000, dtype=np.uint64) * np.uint64((1 << 64) // 10_000)
values = torch.rand(10_000, generator=torch.Generator().manual_seed(context.rank))
in_flight = deque()
for _ in range(50):
    in_flight.append(client.push("kv", values, keys))
    if len(in_flight) == 10:
        in_flight.popleft().wait()
for push in in_flight:
    push.wait()

client.barrier("everybody has pushed")
pulled = client.pull("kv", keys).wait()
everybody = [torch.rand(10_000, generator=torch.Generator().manual_seed(r)) for r in range(workers)]
error = (pulled - 50 * torch.stack(everybody).sum(0)).abs().max()
assert error < 1e-2, error
print(f"worker {context.rank} of {workers}: the sum is right to {error:.0e}")
