"""Workers without servers, one of which takes long for a step: late_neighbour.py FOLDER"""

import json
import sys
import time
from pathlib import Path

import torch

import shoal

with shoal.init() as context:
    model = torch.nn.Linear(4, 1)
    optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), strategy="p2p")
    began = time.monotonic()
    for step in range(20):
        if context.rank == 1 and step == 5:
            time.sleep(8)  # stands for compute: one step is longer than the time-out
        optimizer.zero_grad()
        (model(torch.ones(8, 4)) - 1).square().mean().backward()
        optimizer.step()
    seconds = time.monotonic() - began
    optimizer.flush()
    told = {"seconds": seconds, "ends": [p.tolist() for p in model.parameters()]}
    Path(sys.argv[1], f"{context.rank}.json").write_text(json.dumps(told))
