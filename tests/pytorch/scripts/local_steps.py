"""A strategy with local steps: python local_steps.py STRATEGY SETTINGS KIND, settings in JSON"""

import json
import sys

import torch
from torch import nn

import shoal

strategy, settings, kind = sys.argv[1:]
context = shoal.init()
torch.manual_seed(0)
model = nn.Linear(4, 1)
torch.manual_seed(1 + context.rank)
data = [torch.randn(8, 4) for _ in range(12)]
inner = getattr(torch.optim, kind)(model.parameters(), lr=0.05)
optimizer = shoal.Optimizer(inner, strategy=strategy, settings=json.loads(settings))
for x in data:
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step(weight=8)
optimizer.flush()
state = optimizer.state_dict()
steps = {int(each["step"]) for each in state["state"].values() if "step" in each}
print("W", context.rank, model.weight.detach().flatten().tolist(), steps)
optimizer.load_state_dict(state)
context.client.barrier("over")
