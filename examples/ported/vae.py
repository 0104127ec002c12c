"""A variational autoencoder, in the manner of PyTorch's VAE example.

Its loss is a sum over the batch, and each worker draws noise of its own.

Lines changed for Shoal: 6; for DistributedDataParallel: 6.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import shoal  # shoal

# ddp: import torch.distributed as dist
# ddp: from torch.nn.parallel import DistributedDataParallel as DDP


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 40)
        self.fc21 = nn.Linear(40, 8)
        self.fc22 = nn.Linear(40, 8)
        self.fc3 = nn.Linear(8, 40)
        self.fc4 = nn.Linear(40, 64)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.fc21(h), self.fc22(h)

    def reparameterize(self, mu, logvar):
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x, reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(steps=12):
    torch.manual_seed(1)
    dataset = TensorDataset(torch.tensor(load_digits().data, dtype=torch.float32) / 16)
    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    # plain: train_loader = DataLoader(dataset, 32, shuffle=True)
    context = shoal.init()  # shoal
    optimizer = shoal.Optimizer(optimizer, "sync", module=model)  # shoal
    sampler = DistributedSampler(dataset, context.world_size, context.rank)  # shoal
    train_loader = DataLoader(dataset, 32, sampler=sampler)  # shoal
    torch.manual_seed(context.rank)  # shoal
    # ddp: model = DDP(model)
    # ddp: train_loader = DataLoader(dataset, 32, sampler=DistributedSampler(dataset))
    # ddp: torch.manual_seed(dist.get_rank())
    losses = []
    model.train()
    for _, (data,) in zip(range(steps), train_loader, strict=False):
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        loss = loss_function(recon, data, mu, logvar)
        loss.backward()
        optimizer.step()
        losses.append(loss.item() / len(data))
    return losses


if __name__ == "__main__":
    # ddp: dist.init_process_group("gloo")
    for step, loss in enumerate(train()):
        print(f"Train step {step}: Loss {loss:.4f}")
