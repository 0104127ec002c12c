import pathlib

import torch

import shoal

context = shoal.init()
model = torch.nn.Linear(2, 1)
optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
while True:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    pathlib.Path("trains").touch()
