"""Shards that are pushed to, saved and opened again."""

from itertools import pairwise

import numpy as np
import torch

from shoal.keys import SLOTS, KeyRange, split_evenly
from shoal.tables.init import Init
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec

DENSE = TableSpec("w", 20, (2,), access=Access("adam", {"lr": 0.1}), fragment_rows=3)
SPARSE = TableSpec(
    "e", 0, (3,), kind="sparse", access=Access("adagrad"), init=Init("normal"), fragment_rows=16
)
KEYS = np.random.default_rng(0).integers(0, 1 << 64, 500, dtype=np.uint64)


def ranges(spec, servers):
    if spec.sparse:
        return split_evenly(SLOTS, servers)
    edges = [20 * i // servers // 3 * 3 for i in range(servers)] + [20]
    return [KeyRange(a, b) for a, b in pairwise(edges)]


def pushed(shard, values, keys=None):
    load = shard.stage(shard.held, -1 if keys is None else len(keys))
    if keys is None:
        load.values[:] = values
    else:
        load.keys[:], load.values[:] = keys, values
    shard.apply(load, None)


def mine(shard):
    from shoal.tables.sparse.distinct import within

    return KEYS[within(KEYS, shard.held.start, shard.held.stop)]


def update(shards, step):
    """The same updates, however many servers there are."""
    dense, sparse = shards
    for shard in dense:
        rows = torch.arange(40.0).view(20, 2).sin() * step
        pushed(shard, rows[shard.held.start : shard.held.stop])
    for shard in sparse:
        keys = mine(shard)
        pushed(shard, np.stack([(keys % 7).astype(np.float32) * step] * 3, 1), keys)


def opened(servers, open_=open_shard):
    return [[open_(spec, held) for held in ranges(spec, servers)] for spec in (DENSE, SPARSE)]


def rows_of(shards):
    dense, sparse = shards
    found = {}
    for shard in sparse:
        for number, key in enumerate(shard.keys.tolist()):
            found[key] = shard.records[number * shard.stride :][: shard.stride].tolist()
    return torch.cat([s.rows for s in dense]), found
