"""Gradients: accumulated, missing, skipped, sparse, of higher order; frozen parameters."""

import warnings

import torch
from setting import SGD, STEPS, WIDTH, Adam, feature, loop, net
from torch import nn

# ---------------------------------------------------------------------------- gradients


@feature
def accumulation(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    for step in range(2 * STEPS):
        x, y = at.batch(step)
        ((model(x) - y).square().mean() / 2).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


@feature
def gradients_zeroed_and_not_dropped(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    for step in range(STEPS):
        x, y = at.batch(step)
        optimizer.zero_grad(set_to_none=False)
        ((model(x) if step % 2 else model[0](x)) - y).square().mean().backward()
        optimizer.step()
    return model


@feature
def gradients_dropped_by_the_module(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        x, y = at.batch(step)
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return model


@feature
def skipped_batch(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        x, y = at.batch(step)
        model.zero_grad() if step == 1 else optimizer.zero_grad()
        ((model(x) - y).square().mean() * (1000 if step == 1 else 1)).backward()
        if step != 1:
            optimizer.step()
    return model


@feature
def unused_head(at):
    torch.manual_seed(3)
    body, heads = nn.Linear(WIDTH, 4), nn.ModuleList([nn.Linear(4, 1) for _ in range(3)])
    model = nn.ModuleList([body, heads])
    inner = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer = at.wrap(inner)
    for step in range(STEPS):
        x, y = at.batch(step)
        optimizer.zero_grad()
        (heads[step > 0](torch.tanh(body(x))) - y).square().mean().backward()
        optimizer.step()
    return model


@feature
def branches_used_in_turns(at):
    torch.manual_seed(3)
    branches = nn.ModuleList([nn.Linear(WIDTH, 1) for _ in range(4)])
    optimizer = at.wrap(Adam(branches.parameters(), lr=0.05))
    for step, branch in enumerate((0, 1, 1, 3, 0, 1, 3, 3)):
        x, y = at.batch(step, whole=True)
        optimizer.zero_grad()
        (branches[branch](x) - y).square().mean().backward()
        optimizer.step()
    return branches


@feature
def no_gradients_at_all(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    loop(at, model, optimizer, 2)
    optimizer.zero_grad()
    optimizer.step()
    return loop(at, model, optimizer, 2)


@feature
def sparse_gradients(at):
    torch.manual_seed(3)
    words, head = nn.Embedding(10, WIDTH, sparse=True), nn.Linear(WIDTH, 1)
    model = nn.ModuleList([words, head])
    optimizer = at.wrap(torch.optim.Adagrad(model.parameters(), lr=0.1))
    for step in range(STEPS):
        x, y = at.batch(step, whole=True)
        model.zero_grad() if step % 2 else optimizer.zero_grad()
        (head(words(torch.arange(len(x)) % (step + 2)) + x) - y).square().mean().backward()
        optimizer.step()
    return model


@feature
def gradient_penalty(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        x, y = at.batch(step, whole=True)
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss.backward(create_graph=True)
        (0.1 * sum(p.grad.square().sum() for p in model.parameters())).backward()
        optimizer.step()
    return model


@feature
def clipped_gradients(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.5))
    clip = torch.nn.utils.clip_grad_norm_
    return loop(at, model, optimizer, before=lambda _: clip(model.parameters(), 0.3), whole=True)


@feature
def gradient_hooks(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    model[0].weight.register_hook(lambda grad: grad * 2)

    def halve(parameter):
        parameter.grad *= 0.5

    model[2].weight.register_post_accumulate_grad_hook(halve)
    return loop(at, model, optimizer)


@feature
def gradients_set_by_the_script(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))

    def replace(step):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5 + step)

    return loop(at, model, optimizer, before=replace)


# ---------------------------------------------------------------------------- frozen parameters


@feature
def frozen_layer(at):
    model = net()
    model[0].requires_grad_(False)
    return loop(at, model, at.wrap(SGD(model.parameters(), lr=0.1, weight_decay=0.1)))


@feature
def unfrozen_layer(at):
    model = net()
    model[0].requires_grad_(False)
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1))
    loop(at, model, optimizer, 2)
    model[0].requires_grad_(True)
    loop(at, model, optimizer, 2)
    model[0].requires_grad_(False)
    return loop(at, model, optimizer, 2)


@feature
def discriminator_frozen_in_turns(at):
    made, judge = net(), net()
    first = at.wrap(Adam(made.parameters(), lr=0.05))
    second = at.wrap(Adam(judge.parameters(), lr=0.05))
    for step in range(STEPS):
        x, y = at.batch(step, whole=True)
        judge.requires_grad_(True)
        second.zero_grad()
        (judge(x) - judge(x * made(x).detach()) + y).square().mean().backward()
        second.step()
        judge.requires_grad_(False)
        first.zero_grad()
        judge(x * made(x)).square().mean().backward()
        first.step()
    return nn.ModuleList([made, judge])


@feature
def nothing_to_train(at):
    model = net().requires_grad_(False)
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    optimizer.step()
    return model
