"""Optimizers, their options, and several of them over one model."""

import torch
from setting import SGD, STEPS, WIDTH, Adam, feature, loop, net
from torch import nn

# ---------------------------------------------------------------------------- optimizers


@feature
def sgd(at):
    model = net()
    return loop(at, model, at.wrap(SGD(model.parameters(), lr=0.1)))


@feature
def nesterov_momentum_and_decay(at):
    model = net()
    inner = SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)
    return loop(at, model, at.wrap(inner))


@feature
def adam(at):
    model = net()
    inner = Adam(model.parameters(), lr=0.05)
    return loop(at, model, at.wrap(inner), whole=True)


@feature
def ascent(at):
    model = net()
    return loop(at, model, at.wrap(SGD(model.parameters(), lr=0.01, maximize=True)))


@feature
def groups_with_options_of_their_own(at):
    model = net()
    groups = [
        {"params": model[0].parameters(), "lr": 0.2},
        {"params": model[2].parameters(), "momentum": 0.5},
    ]
    return loop(at, model, at.wrap(SGD(groups, lr=0.1)))


@feature
def named_parameters(at):
    model = net()
    return loop(at, model, at.wrap(SGD(model.named_parameters(), lr=0.1)))


@feature
def learning_rate_schedule(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    kind = torch.optim.lr_scheduler.OneCycleLR
    schedule = kind(optimizer, 0.3, total_steps=STEPS + 1, cycle_momentum=False)
    return loop(at, model, optimizer, after=lambda step: schedule.step())


@feature
def momentum_changed_by_the_script(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    return loop(
        at, model, optimizer, after=lambda _: optimizer.param_groups[0].update(momentum=0.5)
    )


@feature
def parameter_group_added_later(at):
    model = net()
    optimizer = at.wrap(SGD(model[2].parameters(), lr=0.1))
    loop(at, model, optimizer, 2)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    return loop(at, model, optimizer)


@feature
def closure(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        x, y = at.batch(step)

        def evaluate(x=x, y=y):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        optimizer.step(evaluate)
    return model


@feature
def lbfgs(at):
    model = net()
    optimizer = at.wrap(torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4))

    def evaluate():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    for step in range(2):
        x, y = at.batch(step, whole=True)
        optimizer.step(evaluate)
    return model


@feature
def gradient_scaler(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        x, y = at.batch(step)
        optimizer.zero_grad()
        scaler.scale((model(x) - y).square().mean()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return model


@feature
def step_hooks(at):
    model, seen = net(), []
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    loop(at, model, optimizer)
    assert seen == ["before", "after"] * STEPS
    return model


# ---------------------------------------------------------------------------- several optimizers


@feature
def two_optimizers_of_two_models(at):
    one, two = net(), net()
    first, second = at.wrap(SGD(one.parameters(), lr=0.1)), at.wrap(SGD(two.parameters(), lr=0.2))
    for step in range(STEPS):
        loop(at, one, first, 1)
        loop(at, two, second, 1 + step % 2)
    return nn.ModuleList([one, two])


@feature
def two_optimizers_over_one_body(at):
    torch.manual_seed(3)
    body, a, b = nn.Linear(WIDTH, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    both = [nn.Sequential(body, nn.Tanh(), head) for head in (a, b)]
    optimizers = [at.wrap(SGD(each.parameters(), lr=0.1, momentum=0.9)) for each in both]
    for step in range(STEPS):
        loop(at, both[step % 2], optimizers[step % 2], 1)
    return nn.ModuleList([body, a, b])


@feature
def another_optimizer_and_back(at):
    model = net()
    first = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    loop(at, model, first, 2)
    loop(at, model, at.wrap(SGD(model.parameters(), lr=0.05)), 2)
    return loop(at, model, first, 2)
