import torch

import shoal

context = shoal.init()
client = context.client
print(context.rank, context.world_size, sorted(client.groups), [t.name for t in client.view.tables])
model = torch.nn.Linear(3, 1)
optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
print("stepped")
