"""A generative adversarial network, in the manner of PyTorch's DCGAN example.

Two models with BatchNorm and two Adams. The discriminator gets the gradients of two backward passes, then the
generator gets its own, which pass through the discriminator as well. Each worker has statistics of its own.

Lines changed for Shoal: 7; for DistributedDataParallel: 7.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import shoal  # shoal

# ddp: import torch.distributed as dist
# ddp: from torch.nn.parallel import DistributedDataParallel as DDP
nz, ngf, ndf = 16, 16, 16


def weights_init(m):
    classname = m.__class__.__name__
    if "Conv" in classname:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif "BatchNorm" in classname:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


def train(steps=12):
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1
    dataset = TensorDataset(images)
    netG = nn.Sequential(
        nn.ConvTranspose2d(nz, ngf * 2, 2, 1, 0, bias=False),
        nn.BatchNorm2d(ngf * 2),
        nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ngf),
        nn.ReLU(True),
        nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    netD = nn.Sequential(
        nn.Conv2d(1, ndf, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ndf * 2),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf * 2, 1, 2, 1, 0, bias=False),
        nn.Flatten(0),
    )
    netG.apply(weights_init)
    netD.apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    optimizerD = optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
    # plain: dataloader = DataLoader(dataset, 32, shuffle=True, drop_last=True)
    context = shoal.init()  # shoal
    optimizerD = shoal.Optimizer(optimizerD, "sync", module=netD)  # shoal
    optimizerG = shoal.Optimizer(optimizerG, "sync", module=netG)  # shoal
    sampler = DistributedSampler(dataset, context.world_size, context.rank)  # shoal
    dataloader = DataLoader(dataset, 32, sampler=sampler, drop_last=True)  # shoal
    torch.manual_seed(context.rank)  # shoal
    # ddp: netD, netG = (DDP(net, broadcast_buffers=False) for net in (netD, netG))
    # ddp: sampler = DistributedSampler(dataset)
    # ddp: dataloader = DataLoader(dataset, 32, sampler=sampler, drop_last=True)
    # ddp: torch.manual_seed(dist.get_rank())
    losses = []
    for _, (real,) in zip(range(steps), dataloader, strict=False):
        # (1) Update D: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        errD_real = criterion(netD(real), torch.ones(len(real)))
        errD_real.backward()
        fake = netG(torch.randn(len(real), nz, 1, 1))
        errD_fake = criterion(netD(fake.detach()), torch.zeros(len(real)))
        errD_fake.backward()
        optimizerD.step()
        # (2) Update G: maximize log(D(G(z)))
        netG.zero_grad()
        errG = criterion(netD(fake), torch.ones(len(real)))
        errG.backward()
        optimizerG.step()
        losses += [errD_real.item() + errD_fake.item(), errG.item()]
    return losses


if __name__ == "__main__":
    # ddp: dist.init_process_group("gloo")
    found = train()
    for step, (lossD, lossG) in enumerate(zip(found[::2], found[1::2], strict=True)):
        print(f"[{step}] Loss_D: {lossD:.4f} Loss_G: {lossG:.4f}")
