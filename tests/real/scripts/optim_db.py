"""Prints, as JSON, how far each setting of torch's table is from torch, or its refusal."""

import json

import torch
from torch.testing._internal.common_optimizers import optim_db

import shoal
from shoal.errors import ShoalError

STEPS = 10


def model():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def parameters(module, kind):  # Muon takes matrices only
    return [p for p in module.parameters() if p.dim() == 2 or kind is not torch.optim.Muon]


def train(module, optimizer):
    generator = torch.Generator().manual_seed(9)
    for _ in range(STEPS):
        x = torch.randn(16, 4, generator=generator)

        def closure(x=x):
            optimizer.zero_grad()
            loss = module(x).square().mean() + 0.1 * module(x).sum(1).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def outcome(kind, options, strategy):
    alone, ours = model(), model()
    expected = train(alone, kind(parameters(alone, kind), **options))
    try:
        wrapped = shoal.Optimizer(kind(parameters(ours, kind), **options), strategy=strategy)
    except ShoalError as error:
        return str(error)
    gap = (train(ours, wrapped) - expected).abs().max().item()
    return gap / expected.abs().max().item()


def main():
    shoal.init()
    found = []
    for info in optim_db:
        for given in info.optim_inputs_func(device="cpu"):
            options = dict(given.kwargs)
            kind = info.optim_cls
            if kind is torch.optim.SparseAdam:
                results = {}
                for strategy in ("sync", "allreduce"):
                    try:
                        shoal.Optimizer(kind(list(model().parameters()), **options), strategy)
                    except ShoalError as error:
                        results[strategy] = str(error)
            else:
                results = {s: outcome(kind, options, s) for s in ("sync", "allreduce")}
            found.append([kind.__name__, str(options), results])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
