import torch
from torch.utils.data import DataLoader, Dataset

import shoal


class Rows(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, number):
        return torch.full((2,), float(number))


context = shoal.init()
model = torch.nn.Linear(2, 1)
optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.001))
rows = Rows()
loader = DataLoader(rows, 4, sampler=shoal.Sampler(rows), num_workers=2)
steps = 0
for _ in range(2):
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        steps += 1
print("steps", steps)
