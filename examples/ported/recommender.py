"""A recommender of two towers: users and items meet in a dot product, and a batch's other items are the negatives.

Each worker takes the negatives of its own batch, with both kinds of distribution. Tables are `torch.nn.Embedding`;
`shoal.nn.Embedding` would have their rows on servers.

Lines changed for Shoal: 5; for DistributedDataParallel: 5.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import shoal  # shoal

# ddp: import torch.distributed as dist
# ddp: from torch.nn.parallel import DistributedDataParallel as DDP
USERS, ITEMS, WIDTH = 200, 100, 16


def clicks(count=2000):
    """Users and what each of them clicked on: items near their tastes."""
    tastes, kinds = torch.randn(USERS, 4), torch.randn(ITEMS, 4)
    users = torch.randint(USERS, (count,))
    items = torch.multinomial((2 * tastes[users] @ kinds.T).softmax(1), 1)[:, 0]
    return TensorDataset(users, items)


class Tower(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.embedding = nn.Embedding(rows, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))

    def forward(self, ids):
        return F.normalize(self.mlp(self.embedding(ids)), dim=1)


class TwoTowers(nn.Module):
    def __init__(self, temperature=0.1):
        super().__init__()
        self.users, self.items, self.temperature = Tower(USERS), Tower(ITEMS), temperature

    def forward(self, users, items):
        scores = self.users(users) @ self.items(items).T / self.temperature
        same = items[None] == items[:, None]  # the same item twice is no negative
        scores = scores.masked_fill(same & ~torch.eye(len(items), dtype=torch.bool), -torch.inf)
        return F.cross_entropy(scores, torch.arange(len(items)))


def train(steps=12):
    torch.manual_seed(0)
    dataset = clicks()
    model = TwoTowers()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    # plain: loader = DataLoader(dataset, 64, shuffle=True)
    context = shoal.init()  # shoal
    optimizer = shoal.Optimizer(optimizer, "sync", module=model)  # shoal
    sampler = DistributedSampler(dataset, context.world_size, context.rank)  # shoal
    loader = DataLoader(dataset, 64, sampler=sampler)  # shoal
    # ddp: model = DDP(model)
    # ddp: loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    losses = []
    for _, (users, items) in zip(range(steps), loader, strict=False):
        optimizer.zero_grad()
        loss = model(users, items)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    # ddp: dist.init_process_group("gloo")
    for step, loss in enumerate(train()):
        print(f"step {step}: loss {loss:.4f}")
