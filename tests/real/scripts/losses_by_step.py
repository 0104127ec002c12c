"""Trains, and prints the loss of each step: losses_by_step.py [double|allreduce]"""

import json
import sys

import torch

import shoal

STEPS = 40

more = {"strategy": "allreduce"} if "allreduce" in sys.argv else {}
with shoal.init() as context:
    torch.manual_seed(7)
    model = torch.nn.Linear(6, 1)
    if context.resumed_at:
        torch.nn.init.zeros_(model.weight)  # whatever is here, the checkpoint has the parameters
    if "double" in sys.argv:
        model.double()
    optimizer = shoal.Optimizer(torch.optim.Adam(model.parameters(), lr=0.05), **more)
    data = torch.randn(STEPS, 16, 6, generator=torch.Generator().manual_seed(context.rank))
    losses = {}
    for step in range(context.resumed_at, STEPS):
        optimizer.zero_grad()
        loss = (model(data[step]) - data[step].sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses[step] = loss.item()
    if context.rank == 0:
        print(json.dumps(losses))
