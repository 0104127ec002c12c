"""Rounds that push parts of tables; rank 0 prints what it reads after each, from the first one on.

With checkpoints: from the one that the run is resumed from.
"""

import json
from zlib import crc32

import torch
from msgspec.structs import replace

import shoal
from shoal.keys import KeyRange

ROWS, STEPS = 12_000, 24
RATE = {"schedule": "exponential", "schedule_gamma": 0.9}
METHODS = {
    "adam": shoal.tables.Access("adam", {"lr": 0.01}),
    "in pieces": shoal.tables.Access("adam", {"lr": 0.01}),
    "scheduled": shoal.tables.Access("sgd", {"lr": 0.1, "momentum": 0.9, **RATE}),
}

with shoal.init() as context:
    client, rank = context.client, context.rank
    for name, access in METHODS.items():
        size = 1700 if name == "in pieces" else 0  # several on a server, whatever its number
        spec = shoal.TableSpec(name, ROWS, access=access, fragment_rows=size)
        client.create_table(replace(spec, consistency=shoal.bsp()))
    found = {}
    for step in range(context.resumed_at, STEPS):
        draw = torch.Generator().manual_seed(100 * step + rank)
        pushed = []
        for name in METHODS:
            start, stop = sorted(torch.randint(ROWS, (2,), generator=draw).tolist())
            chosen = [KeyRange(0, ROWS), KeyRange(start, stop + 1), KeyRange(0, 700)][step % 3]
            values = torch.randn(len(chosen), generator=draw)
            pushed.append(client.push(name, values, chosen, weight=rank + 1.0))
            if step % 4 == 1:
                keys = torch.randint(start, stop + 1, (40,), generator=draw)
                within = KeyRange(start, stop + 1)
                values = torch.randn(40, generator=draw)
                pushed.append(client.push(name, values, keys, within=within))
        client.advance().wait()
        for each in pushed:
            each.wait()
        rows = [client.blocking.pull(name) for name in METHODS]
        found[step] = [crc32(each.numpy()) for each in rows]
    client.advance(last=True).wait()
    client.barrier("done")
    if rank == 0:
        print(json.dumps(found))
