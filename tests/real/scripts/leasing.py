"""Trains on leased batches; a worker is killed at its sixth: leasing.py FOLDER STRATEGY [RANK]

Without a rank it is worker 1, and nobody takes its place. With one a new process of that rank goes
on, and the others wait for it.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import shoal

folder, strategy, *victim = sys.argv[1:]
killed, again = Path(folder, "killed"), Path(folder, "again")
context = shoal.init()
model = torch.nn.Linear(4, 1)
if victim:
    torch.nn.init.zeros_(model.weight)
inner = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = shoal.Optimizer(inner, strategy=strategy)
done = []
for epoch, batch in shoal.leases(epochs=2, batches=20):
    optimizer.zero_grad()
    if batch is not None:
        if context.rank == int(victim[0] if victim else 1):
            if killed.exists():
                again.touch()
            elif len(done) == 5:
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        model(torch.ones(1, 4)).sum().backward()
        done.append((epoch, batch))
        waits = victim and killed.exists() and not again.exists()
        time.sleep(0.5 if waits else 0.01)  # until the other process is there
    before = model.weight[0, 0].item()
    optimizer.step(weight=0.0 if batch is None else 1.0)
    if victim:
        assert model.weight[0, 0].item() <= before, "somebody has written the first weights again"
Path(folder, f"{context.rank}.json").write_text(json.dumps(done))
