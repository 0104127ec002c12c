"""A worker that forks in the middle of its steps: forks.py STRATEGY CHILD STATUS"""

import os
import sys

import torch

import shoal

strategy, how, status = sys.argv[1], sys.argv[2], int(sys.argv[3])


def child():
    match how:
        case "closes":
            context.close()
        case "raises":
            raise RuntimeError("in the fork")
        case "leaves":
            context.__exit__(ValueError, ValueError(), None)
    sys.exit(status)


context = shoal.init()
model = torch.nn.Linear(2, 1)
optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), strategy)
for step in range(6):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).square().mean().backward()
    optimizer.step()
    if step == 2 and (pid := os.fork()) == 0:
        child()
    if step == 2:
        print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
optimizer.flush()
print("steps", step + 1)
