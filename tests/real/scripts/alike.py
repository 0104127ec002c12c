"""What two workers of a script do, together or unlike each other: alike.py CASE STRATEGY [WORD...]

Each worker writes what it has found to a file in the current folder.
"""

import gc
import json
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from numba import njit
from torch import nn

import shoal

case, strategy, *words = sys.argv[1:]
context = shoal.init()
rank = context.rank
SGD = torch.optim.SGD
LOCAL = {"tau": 2} if strategy in ("diloco", "model_averaging", "bmuf") else {}


def found(*values):
    Path(f"found-{rank}.json").write_text(json.dumps(values))


def total(tensor):
    return round(tensor.detach().double().abs().sum().item(), 5)


def data(step, of=None):
    generator = torch.Generator().manual_seed(10 * step + (rank if of is None else of))
    return torch.randn(8, 4, generator=generator)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("features", torch.randn(4, 8))
        self.register_buffer("mask", torch.rand(8) > 0.5)
        self.project = nn.Linear(8, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.norm(self.project(torch.cos(x @ self.features)) * self.mask))


def unlike_net():
    torch.manual_seed(100 + rank)  # no common seed: scripts for DistributedDataParallel have none
    return Net()


def module(buffers):
    model = unlike_net()
    own = [total(each) for each in model.state_dict().values()]
    trained = [p for p in model.parameters() if p.requires_grad]  # the frozen ones are not in it
    optimizer = shoal.Optimizer(
        SGD(trained, lr=0.1), strategy, settings=LOCAL, module=model, buffers=buffers
    )
    begin = [total(each) for each in model.state_dict().values()]
    for step in range(4):
        x = data(step) + rank
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    mean = model.norm.running_mean.tolist()
    optimizer.flush()
    end = {name: total(each) for name, each in model.state_dict().items()}
    found(own, begin, mean, end, model.norm.running_mean.tolist())


def broadcast():
    model = unlike_net()
    with torch.no_grad():
        model.features[0, :4] = torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45])
    shoal.broadcast(model)
    bits = [each.contiguous().view(-1).view(torch.uint8) for each in model.state_dict().values()]
    found([each.tolist() for each in bits])


def draws():
    @njit
    def compiled():
        return np.random.random()

    found(
        torch.rand(1).item(),
        float(np.random.rand()),
        random.random(),
        compiled(),
        torch.randint(1 << 60, (1,)).item(),
        torch.nn.functional.dropout(torch.ones(64)).tolist(),
    )


def differs(which):
    net, kind, lr = nn.Linear(4, 5), SGD, 0.1
    match which:
        case "width":
            net = nn.Linear(4, 7 if rank else 5)
        case "dtype":
            net = nn.Linear(4, 5, dtype=torch.float64 if rank else None)
        case "frozen":
            net.bias.requires_grad_(not rank)
        case "class":
            kind = torch.optim.Adam if rank else SGD
        case "lr":
            lr = 0.5 if rank else 0.1
    shoal.Optimizer(kind(list(net.parameters()), lr=lr), strategy)
    found("accepted")


def some_use_it():
    torch.manual_seed(0)
    body, heads = nn.Linear(4, 3), nn.ModuleList([nn.Linear(3, 1) for _ in range(3)])
    model = nn.ModuleList([body, heads])

    def make():
        return SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    def loss_of(step, which, of=None):
        return (heads[which](torch.tanh(body(data(step, of)))) - 1).square().mean()

    uses = [(0, 0), (0, 1), (1, 1), (1, 0), (0, 0)]  # by step: the head of each worker; 2 is unused
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = shoal.Optimizer(make(), strategy)
    for step, which in enumerate(uses):
        optimizer.zero_grad()
        loss_of(step, which[rank]).backward()
        optimizer.step()
    ours = [p.detach().clone() for p in model.parameters()]
    for parameter, value in zip(model.parameters(), start, strict=True):
        parameter.data = value.clone()
    alone = make()
    for step, which in enumerate(uses):
        grads = []
        for of in (0, 1):
            alone.zero_grad()
            loss_of(step, which[of], of).backward()
            grads.append([p.grad for p in model.parameters()])
        for parameter, *both in zip(model.parameters(), *grads, strict=True):
            some = [each for each in both if each is not None]
            parameter.grad = sum(some) / len(some) if some else None
        alone.step()
    gaps = [(p - mine).abs().max().item() for p, mine in zip(model.parameters(), ours, strict=True)]
    found(max(gaps), total(heads[2].weight), [total(each) for each in ours])


def in_turn():
    """Two optimizers, one after the other; one worker collects its garbage, the other does not."""
    gc.disable()
    uneven("flush")
    uneven()
    if rank:
        gc.collect()


def uneven(end=""):
    torch.manual_seed(0)
    samples = torch.utils.data.TensorDataset(torch.randn(17, 4), torch.randn(17, 1))
    model = nn.Linear(4, 1)
    optimizer = shoal.Optimizer(SGD(model.parameters(), lr=0.1), strategy, settings=LOCAL)
    loader = torch.utils.data.DataLoader(samples, batch_size=4, sampler=shoal.Sampler(samples))
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    steps = 0
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step(weight=len(x))
            steps += 1
    if end == "flush":
        optimizer.flush()
    found(steps, total(model.weight))


def local_steps(end=""):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    settings = {"tau": 50} if strategy == "diloco" else {}
    optimizer = shoal.Optimizer(SGD(model.parameters(), lr=0.1), strategy, settings=settings)
    for step in range(3):
        optimizer.zero_grad()
        model(data(step)).square().mean().backward()
        optimizer.step()
    part = model.weight.detach().clone()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        optimizer.state_dict()
    if end == "flush":
        optimizer.flush()
    context.close()
    found([str(each.message) for each in told], total(model.weight), total(part))


def writes(who):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = shoal.Optimizer(SGD(model.parameters(), lr=0.1), strategy)
    for step in range(3):
        optimizer.zero_grad()
        model(data(step)).square().mean().backward()
        optimizer.step()
        if step == 0 and (who == "all" or rank == 1):
            model.weight.data.fill_(1.0 + rank)
        if step == 1:
            first = model.weight.detach().clone()
    found(total(first), total(model.weight))


def rates():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = shoal.Optimizer(SGD(model.parameters(), lr=0.1), strategy)
    for step in range(3):
        optimizer.zero_grad()
        model(data(step)).square().mean().backward()
        optimizer.param_groups[0]["lr"] = 0.1 + rank * step
        optimizer.step()
    found(total(model.weight))


def nan(policy):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = shoal.Optimizer(SGD(model.parameters(), lr=0.1), strategy, nonfinite=policy)
    for step in range(3):
        optimizer.zero_grad()
        model(data(step)).square().mean().backward()
        if step == 1 and rank:
            model.weight.grad[0, 2] = float("nan")
        optimizer.step()
    found(total(model.weight), bool(model.weight.isfinite().all()))


def clips():
    torch.manual_seed(0)
    model, twin = nn.Linear(4, 1), nn.Linear(4, 1)
    twin.load_state_dict(model.state_dict())
    optimizer = shoal.Optimizer(SGD(model.parameters(), lr=1.0), strategy, clip_norm=0.2)
    alone = SGD(twin.parameters(), lr=1.0)
    for step in range(4):
        optimizer.zero_grad()
        model(data(step)).square().mean().backward()
        optimizer.step()
        alone.zero_grad()
        (sum(twin(data(step, of)).square().mean() for of in (0, 1)) / 2).backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.2)
        alone.step()
    found(total(model.weight - twin.weight))
    try:
        shoal.Optimizer(SGD(model.parameters(), lr=1.0), "sync", clip_norm=0.2)
    except shoal.errors.InvalidValue as error:
        print(error.message)


globals()[case](*words)
