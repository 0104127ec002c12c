import torch

import shoal

context = shoal.init()
model = torch.nn.Linear(2, 1)
optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).square().mean().backward()
    optimizer.step()
print("trained", context.client.clock)
