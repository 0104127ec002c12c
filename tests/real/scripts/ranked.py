"""Trains as one rank of several: ranked.py [kill FILE]; rank 3 is killed once, as FILE says."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

import shoal

context = shoal.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(30):
    optimizer.zero_grad()
    (model(torch.randn(8, 4)) - 1).square().mean().backward()
    optimizer.step()
    if step == 0 and context.rank == 0 and len(sys.argv) > 2:
        with Path(sys.argv[2] + ".steps").open("a") as file:
            file.write(f"{time.time()}\n")
    if step == 20 and context.rank == 3 and len(sys.argv) > 2 and not Path(sys.argv[2]).exists():
        Path(sys.argv[2]).write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
servers = len(context.client.view.servers)
weight = round(model.weight.sum().item(), 5)
sys.stdout.write(f"rank {context.rank} of {context.world_size}, {servers} servers: {weight}\n")
