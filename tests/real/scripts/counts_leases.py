"""Counts each batch that it is leased, and prints the counts: counts_leases.py RUNS CLOCK

At a clock it waits for a checkpoint of the only run in a folder, and ends.
"""

import json
import sys

import torch
from checkpoint_wait import wait_for_a_checkpoint

import shoal

with shoal.init() as context:
    client = context.client
    rule = {"access": shoal.tables.Access("sum"), "merge": "sum", "consistency": shoal.bsp()}
    client.create_table(shoal.TableSpec("done", 60, **rule))
    for epoch, batch in shoal.leases(epochs=2, batches=30):
        if batch is not None:
            client.push("done", torch.ones(1), torch.tensor([30 * epoch + batch]))
        client.advance().wait()
        if client.clock == int(sys.argv[2]):
            wait_for_a_checkpoint(sys.argv[1])
            sys.exit("enough")
    client.advance(last=True).wait()
    client.barrier("done")
    out = torch.empty(60)
    client.blocking.pull("done", out=out)
    if context.rank == 0:
        print(json.dumps(out.tolist()))
