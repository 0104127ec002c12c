"""A classifier that is fine-tuned: its body is frozen at first, and trained with a smaller rate later.

The body has BatchNorm, whose statistics move while it is frozen. The optimizer has all parameters from its beginning,
as torch's may. DistributedDataParallel has to be made anew after the body is unfrozen; Shoal has not.

Lines changed for Shoal: 5; for DistributedDataParallel: 6.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import shoal  # shoal

# ddp: import torch.distributed as dist
# ddp: from torch.nn.parallel import DistributedDataParallel as DDP


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        return self.fc(self.body(x))


def pretrained(images, labels):
    """A classifier of the digits 0 to 4, as it would come from a file."""
    model = Classifier(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in zip(images.split(64)[:8], labels.split(64), strict=False):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def train(steps=12):
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    model = pretrained(images[labels < 5], labels[labels < 5])
    dataset = TensorDataset(images[labels >= 5], labels[labels >= 5] - 5)

    model.fc = nn.Linear(model.fc.in_features, 5)  # a new head
    body = model.body
    for param in body.parameters():
        param.requires_grad = False
    groups = [{"params": body.parameters(), "lr": 0.01}, {"params": model.fc.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-3)
    # plain: loader = DataLoader(dataset, 32, shuffle=True, drop_last=True)
    context = shoal.init()  # shoal
    optimizer = shoal.Optimizer(optimizer, "sync", module=model)  # shoal
    sampler = DistributedSampler(dataset, context.world_size, context.rank)  # shoal
    loader = DataLoader(dataset, 32, sampler=sampler, drop_last=True)  # shoal
    # ddp: model = DDP(model, broadcast_buffers=False)
    # ddp: loader = DataLoader(dataset, 32, sampler=DistributedSampler(dataset), drop_last=True)
    losses = []
    for step, (x, y) in zip(range(steps), loader, strict=False):
        if step == steps // 2:
            for param in body.parameters():
                param.requires_grad = True
            # ddp: model = DDP(model.module, broadcast_buffers=False)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    # ddp: dist.init_process_group("gloo")
    for step, loss in enumerate(train()):
        print(f"step {step}: loss {loss:.4f}")
