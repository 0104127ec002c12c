"""A worker of which one process is gone at its sixth step: gone.py FOLDER vanishes|stopped"""

import os
import signal
import sys
from pathlib import Path

import torch

import shoal

folder, how = sys.argv[1:]
context = shoal.init()
model = torch.nn.Linear(4, 1)
optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), strategy="asgd")
struck = Path(folder, "struck")
for step in range(20):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if context.rank == 1 and step == 5 and not struck.exists():
        struck.touch()
        if how == "vanishes":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
Path(folder, f"done-{context.rank}").touch()
