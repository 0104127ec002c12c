import torch
from striking import FOLDER, STEPS, strike

import shoal

context = shoal.init()
model = torch.nn.Linear(4, 1)
optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(context.client.clock, STEPS):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    strike(context.rank, step)
(FOLDER / f"done-{context.rank}").touch()
