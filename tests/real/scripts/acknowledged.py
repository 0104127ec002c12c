"""Each push adds 1 to a key of its own; what was acknowledged is written down after it was.

acknowledged.py dense|sparse|bounded asp|ssp|bsp FOLDER
"""

import json
import sys
from pathlib import Path

import torch

import shoal

PUSHES = 300

kind, rule, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
context = shoal.init()
client, rank = context.client, context.rank
rows = PUSHES * context.world_size if kind == "dense" else 0
bound = {"max_rows": 4 * PUSHES * context.world_size} if kind == "bounded" else {}
kind = "dense" if kind == "dense" else "sparse"
consistency = {"asp": shoal.asp(), "ssp": shoal.ssp(1), "bsp": shoal.bsp()}[rule]
client.create_table(
    shoal.TableSpec("kv", rows, (2,), kind=kind, merge="sum", consistency=consistency, **bound)
)
if bound:  # a table in which keys make room for others all the time
    few = shoal.TableSpec("few", 0, (1,), kind="sparse", consistency=consistency, max_rows=32)
    client.create_table(few)
client.barrier("start")
acknowledged = []
for number in range(PUSHES):
    key = rank * PUSHES + number
    pushed = client.push("kv", torch.ones(1, 2), keys=torch.tensor([key]))
    if bound:
        client.push("few", torch.ones(9, 1), keys=torch.randperm(200)[:9]).wait()
    if rule != "asp":
        client.advance()
    pushed.wait()
    acknowledged.append(key)
    if number == PUSHES // 3:
        (folder / f"going-{rank}").touch()
    if number % 40 == 0:
        assert (client.pull("kv", keys=torch.tensor(acknowledged[-9:])).wait() == 1).all()
if rule != "asp":
    client.advance(last=True)
client.barrier("done")
(folder / f"{rank}.json").write_text(json.dumps(acknowledged))
if rank == 0:
    found = client.pull("kv", keys=torch.arange(PUSHES * context.world_size)).wait()
    (folder / "table.json").write_text(json.dumps(found.tolist()))
