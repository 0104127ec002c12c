"""Trains, and prints what its optimizer and its run are: tells_options.py [NAME=JSON|WORD]...

NAME=JSON: an argument of shoal.Optimizer. KILLED_IN=EPOCH in the environment: all of a worker's
processes are killed at the beginning of the first epoch, for "first", or at the end of this one,
once the run in the folder RUNS has a checkpoint.
"""

import json
import os
import signal
import sys

import torch
from checkpoint_wait import wait_for_a_checkpoint
from torch.utils.data import DataLoader, TensorDataset

import shoal

own = dict(each.split("=") for each in sys.argv[1:] if "=" in each)
killed_in = os.environ.get("KILLED_IN", "")

torch.manual_seed(0)
x = torch.randn(240, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
context = shoal.init()
inner = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = shoal.Optimizer(inner, **{name: json.loads(each) for name, each in own.items()})
loader = DataLoader(data, batch_size=20, sampler=shoal.Sampler(data, batch_size=20))
epochs, evaluated = {}, []
for epoch in range(context.first_epoch(loader), 5):
    if killed_in == "first":
        os.kill(0, signal.SIGKILL)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        epochs[epoch] = epochs.get(epoch, 0) + 1
    if killed_in == str(epoch):
        wait_for_a_checkpoint(os.environ["RUNS"])
        os.kill(0, signal.SIGKILL)
    evaluated.append(epoch)
optimizer.flush()
found = optimizer._strategy
if context.rank == 0:
    told = {
        "strategy": found.name,
        "staleness": found.options.staleness,
        "set": dict(found.options.settings),
        "lr": optimizer.param_groups[0]["lr"],
        "betas": optimizer.param_groups[0]["betas"],
        "workers": context.world_size,
        "servers": len(context.client.view.servers),
        "began_at": context.began_at,
        "epochs": epochs,
        "evaluated": evaluated,
        "args": sys.argv[1:],
    }
    print(json.dumps(told), flush=True)
