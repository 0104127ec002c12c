"""shoal.Optimizer beside torch's, in a run of this process alone: python beside_torch.py CASE"""

import sys

import torch

import shoal
from shoal.errors import ShoalError, UsageError

STRATEGIES = ("sync", "ssp", "asgd", "allreduce")
KINDS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}

torch.manual_seed(0)
mine, theirs = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
theirs.load_state_dict(mine.state_dict())
context = shoal.init()
assert (context.rank, context.world_size) == (0, 1)
assert shoal.init() is context


def step_with_a_closure(model, optimizer, x):
    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return optimizer.step(closure)


def schedule(kind):
    make = KINDS[kind]
    for strategy in STRATEGIES:
        theirs.load_state_dict(mine.state_dict())
        ours = shoal.Optimizer(make(mine.parameters()), strategy=strategy)
        other = make(theirs.parameters())
        schedules = [torch.optim.lr_scheduler.StepLR(o, 3, 0.5) for o in (ours, other)]
        for _ in range(10):
            x = torch.randn(8, 5)
            for model, optimizer in ((mine, ours), (theirs, other)):
                assert step_with_a_closure(model, optimizer, x) is not None
            for each in schedules:
                each.step()
        gap = (mine.weight - theirs.weight).abs().max()
        assert gap < 1e-6, (strategy, mine.weight, theirs.weight)
        state = ours.state_dict()
        assert state["param_groups"][0]["lr"] == other.param_groups[0]["lr"]
        ours.load_state_dict(state)
        print(strategy)


def unsupported():
    try:
        shoal.Optimizer(torch.optim.LBFGS(mine.parameters()))
    except UsageError as error:
        print(error)


def unused_parameter():
    ours = shoal.Optimizer(torch.optim.SGD(mine.parameters(), lr=0.1))
    other = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for bias in (True, False, True, False):
        x = torch.randn(8, 5)
        for model, optimizer in ((mine, ours), (theirs, other)):
            model.zero_grad()
            y = model(x) if bias else x @ model.weight.T
            y.square().mean().backward()
            optimizer.step()
    assert (mine.bias - theirs.bias).abs().max() < 1e-6, (mine.bias, theirs.bias)


def changes():
    groups = [{"params": [mine.weight]}, {"params": [mine.bias]}]
    ours = shoal.Optimizer(torch.optim.SGD(groups, lr=0.1, momentum=0.9))

    def tried(change, undo):
        change()
        try:
            mine(torch.randn(8, 5)).square().mean().backward()
            ours.step()
        except ShoalError as error:
            print(error.message)
        undo()

    first, _ = ours.param_groups
    tried(lambda: first.update(momentum=0.5), lambda: first.update(momentum=0.9))
    try:
        ours.add_param_group({"params": list(theirs.parameters())})
    except ShoalError as error:
        print(error.message)
    tried(lambda: [group.update(lr=0.01) for group in ours.param_groups], lambda: None)
    tried(lambda: mine.load_state_dict(theirs.state_dict()), lambda: None)
    late = shoal.Optimizer(torch.optim.SGD(theirs.parameters(), lr=0.1), "downpour")
    theirs.weight.data.zero_()
    try:
        late.step()
    except ShoalError as error:
        print(error.message)


def groups_of(model):
    return [
        {"params": [model.weight], "weight_decay": 0.1, "lr": 0.03},
        {"params": [model.bias], "betas": (0.8, 0.99)},
    ]


def groups():
    rates = [lambda step: 0.9**step, lambda step: 1 / (1 + step)]
    for strategy in STRATEGIES:
        theirs.load_state_dict(mine.state_dict())
        other = torch.optim.AdamW(groups_of(theirs), lr=0.05)
        ours = shoal.Optimizer(torch.optim.AdamW(groups_of(mine), lr=0.05), strategy)
        schedules = [torch.optim.lr_scheduler.LambdaLR(o, rates) for o in (ours, other)]
        for _ in range(10):
            x = torch.randn(8, 5)
            for model, optimizer in ((mine, ours), (theirs, other)):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            for each in schedules:
                each.step()
        for one, two in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(one, two, rtol=1e-6, atol=1e-7), strategy
        print(strategy, list(ours.flat))


def codecs():
    """What is pulled while training is rounded; after `flush` a model has what servers have."""
    for strategy in ("sync", "asgd", "diloco"):
        model = torch.nn.Linear(64, 64)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        how = {"codec": {"weight": "onebit"}, "server_codec": "int:8"}
        settings = {"tau": 2} if strategy == "diloco" else None
        said = ""
        try:
            shoal.Optimizer(inner, strategy, settings=settings, **how)
        except ShoalError as error:
            said = error.message
        assert "give shoal.Optimizer the model as module=" in said
        ours = shoal.Optimizer(inner, strategy, settings=settings, module=model, **how)
        for _ in range(4):
            ours.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            ours.step()
        before = model.weight.detach().clone()
        ours.flush()
        [table] = [each.name for each in context.client.view.tables][-1:]
        exact = context.client.pull(table, exact=True).wait()[:4096].view(64, 64)
        rounded = context.client.pull(table).wait()[:4096].view(64, 64)
        assert torch.equal(before, rounded) or strategy == "diloco", strategy
        assert torch.equal(model.weight, exact), strategy
        assert not torch.equal(exact, rounded)
        assert context.client.residuals()[table]["residual"].any()
        print(strategy, list(ours.flat))


def no_closure():
    ours = shoal.Optimizer(torch.optim.LBFGS(mine.parameters()), "allreduce")
    try:
        ours.step()
    except UsageError as error:
        print(error.message)


case, *words = sys.argv[1:]
globals()[case](*words)
