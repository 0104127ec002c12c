"""Saves and loads the states of optimizers, in the current folder: optimizer_state.py CASE"""

import copy
import json
import sys

import torch

import shoal
from shoal.errors import InvalidValue

STRATEGIES = ("sync", "allreduce")
KINDS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adamw": lambda p: torch.optim.AdamW(groups(p), lr=0.05),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adadelta": lambda p: torch.optim.Adadelta(p),
}
WHOLE = {
    "muon": lambda net: torch.optim.Muon([p for p in net.parameters() if p.dim() == 2], lr=0.1),
    "adafactor": lambda net: torch.optim.Adafactor(net.parameters(), lr=0.1),
    "lbfgs": lambda net: torch.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe"),
}

x = torch.randn(50, 16, 6, generator=torch.Generator().manual_seed(3))


def groups(parameters):
    parameters = list(parameters)
    decayed = [p for p in parameters if p.dim() > 1]
    others = [p for p in parameters if p.dim() == 1]
    return [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.02}]


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))


def loss_of(model, batch):
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def train(model, optimizer, rank, first, last):
    losses = []
    for batch in x[first:last]:
        optimizer.zero_grad()
        loss_of(model, batch[8 * rank : 8 * rank + 8]).backward()
        optimizer.step()
        with torch.no_grad():  # of the whole batch: the same on all workers
            losses.append(loss_of(model, batch).item())
    return losses


def save():
    context, losses = shoal.init(), {}
    for kind, make in KINDS.items():
        for strategy in STRATEGIES:
            net = model()
            optimizer = shoal.Optimizer(make(net.parameters()), strategy=strategy)
            train(net, optimizer, context.rank, 0, 30)
            if context.rank == 1:  # any worker may, alone
                saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(saved, f"{kind}-{strategy}.pt")
            losses[f"{kind}-{strategy}"] = train(net, optimizer, context.rank, 30, 50)
    if context.rank == 0:
        print(json.dumps(losses))


def load():
    context, losses = shoal.init(), {}
    for kind, make in KINDS.items():
        for strategy in STRATEGIES:
            saved = torch.load(f"{kind}-{strategy}.pt")
            net = model()
            inner = make(net.parameters())
            if kind == "adam":  # an optimizer that has a state when it is wrapped
                net.load_state_dict(saved["model"])
                inner.load_state_dict(saved["optimizer"])
                optimizer = shoal.Optimizer(inner, strategy=strategy)
            else:
                optimizer = shoal.Optimizer(inner, strategy=strategy)
                train(net, optimizer, context.rank, 0, 3)
                net.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
            losses[f"{kind}-{strategy}"] = train(net, optimizer, context.rank, 30, 50)
    if context.rank == 0:
        print(json.dumps(losses))


def alone():
    losses = {}
    for kind, make in KINDS.items():
        for strategy in STRATEGIES:
            saved, net = torch.load(f"{kind}-{strategy}.pt"), model()
            optimizer = make(net.parameters())
            net.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            losses[f"{kind}-{strategy}"] = run = []
            for batch in x[30:]:
                optimizer.zero_grad()
                loss_of(net, batch).backward()
                optimizer.step()
                with torch.no_grad():
                    run.append(loss_of(net, batch).item())
    print(json.dumps(losses))


def stale():
    with shoal.init() as context:
        net = model()
        inner = torch.optim.Adam(net.parameters(), lr=0.05)
        optimizer = shoal.Optimizer(inner, strategy="ssp", staleness=2)
        train(net, optimizer, context.rank, 0, 20 + context.rank)
        context.client.barrier("all pushed")
        torch.save(optimizer.state_dict(), f"state-{context.rank}.pt")
        context.client.barrier("both saved")
        train(net, optimizer, context.rank, 0, 5)
        optimizer.load_state_dict(torch.load("state-0.pt"))
        torch.save(optimizer.state_dict(), f"again-{context.rank}.pt")


def refused():
    with shoal.init() as context:
        net = model()
        optimizer = shoal.Optimizer(torch.optim.Adam(net.parameters(), lr=0.05))
        train(net, optimizer, context.rank, 0, 3)
        before = copy.deepcopy(optimizer.state_dict())
        weights = copy.deepcopy(net.state_dict())

        def tried(change):
            given = copy.deepcopy(before)
            change(given)
            try:
                optimizer.load_state_dict(given)
            except InvalidValue as error:
                print(error.message)

        tried(lambda given: given["param_groups"][0].update(betas=(0.5, 0.9)))
        tried(lambda given: given["state"][1].update(exp_avg=torch.zeros(3)))
        tried(lambda given: given.pop("state"))
        after = optimizer.state_dict()
        for index, state in before["state"].items():
            now = after["state"][index]
            assert all(torch.equal(value, now[name]) for name, value in state.items())
        assert before["param_groups"] == after["param_groups"]
        assert all(torch.equal(value, net.state_dict()[name]) for name, value in weights.items())
        apart = copy.deepcopy(before)  # a parameter that was used less often
        apart["state"][1].update(step=torch.tensor(2.0))
        optimizer.load_state_dict(apart)
        assert optimizer.state_dict()["state"][1]["step"] == 2
        train(net, optimizer, context.rank, 0, 1)
        print([int(each["step"]) for each in optimizer.state_dict()["state"].values()])


def whole():
    batches = x.double()

    def run(net, optimizer, first, last, rank, workers):
        for batch in batches[first:last]:
            mine = batch[16 * rank // workers : 16 * (rank + 1) // workers]

            def closure(mine=mine):
                optimizer.zero_grad()
                loss = loss_of(net, mine)
                loss.backward()
                return loss

            optimizer.step(closure)

    with shoal.init() as context:
        for kind, make in WHOLE.items():
            alone, net = model().double(), model().double()
            run(alone, make(alone), 0, 4, 0, 1)  # few: LBFGS amplifies rounding
            optimizer = shoal.Optimizer(make(net), strategy="allreduce")
            run(net, optimizer, 0, 2, context.rank, 2)
            if context.rank == 0:  # the others get what it has
                saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
            run(net, optimizer, 2, 3, context.rank, 2)
            given = saved if context.rank == 0 else (optimizer.state_dict(), net.state_dict())
            net.load_state_dict(given[1])
            optimizer.load_state_dict(given[0])
            run(net, optimizer, 2, 4, context.rank, 2)
            for one, two in zip(alone.parameters(), net.parameters(), strict=True):
                assert torch.allclose(one, two, rtol=1e-5, atol=1e-6), (kind, one, two)
            if context.rank == 0:
                print(kind)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
