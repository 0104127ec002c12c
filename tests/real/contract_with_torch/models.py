"""Kinds of parameters and modules."""

import copy
import io
import warnings

import torch
from setting import SGD, STEPS, feature, loop, net
from torch import nn

# ---------------------------------------------------------------------------- kinds of parameters


def with_parameter(at, parameter, use, lr=0.01):
    model = net()
    model.register_parameter("odd", parameter)
    optimizer = at.wrap(SGD(model.parameters(), lr=lr))
    for step in range(STEPS):
        x, y = at.batch(step)
        optimizer.zero_grad()
        (model[2](torch.tanh(model[0](x))) + use(parameter) - y).square().mean().backward()
        optimizer.step()
    return model


@feature
def scalar_parameter(at):
    return with_parameter(at, nn.Parameter(torch.tensor(0.5)), lambda p: p)


@feature
def empty_parameter(at):
    return with_parameter(at, nn.Parameter(torch.empty(0, 3)), lambda p: p.sum())


@feature
def transposed_parameter(at):
    values = torch.arange(6.0).view(3, 2).t()
    return with_parameter(at, nn.Parameter(values), lambda p: (p * torch.ones(2, 3)).mean() / 9)


@feature
def float64_beside_float32(at):
    values = torch.ones(3, dtype=torch.float64)
    return with_parameter(at, nn.Parameter(values), lambda p: p.mean().float())


@feature
def bfloat16_beside_float32(at):
    values = torch.ones(3, dtype=torch.bfloat16)
    return with_parameter(at, nn.Parameter(values), lambda p: p.mean().float(), lr=0.0)


@feature
def parameter_of_a_class_of_ones_own(at):
    class Special(nn.Parameter):
        pass

    return with_parameter(at, Special(torch.ones(3)), lambda p: p.mean())


@feature
def complex_parameter(at):
    values = torch.ones(3, dtype=torch.complex64)
    return with_parameter(at, nn.Parameter(values), lambda p: p.abs().mean())


@feature
def expanded_parameter(at):
    return with_parameter(at, nn.Parameter(torch.ones(1).expand(3)), lambda p: p.mean())


@feature
def lazy_parameter(at):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.LazyLinear(1))
    torch.manual_seed(3)
    return loop(at, model, at.wrap(SGD(model.parameters(), lr=0.1)))


@feature
def parameter_on_another_device(at):
    model = net()
    model.register_parameter("odd", nn.Parameter(torch.ones(3, device="meta")))
    loop(at, model, at.wrap(SGD(model.parameters(), lr=0.1)))
    del model.odd
    return model


# ---------------------------------------------------------------------------- modules


@feature
def batch_norm(at):
    model = net(nn.BatchNorm1d(5))
    return loop(at, model, at.wrap(SGD(model.parameters(), lr=0.1)), whole=True)


@feature
def dropout(at):
    model = net(nn.Dropout(0.5))
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    torch.manual_seed(4)
    return loop(at, model, optimizer, whole=True)


@feature
def copied_model(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    loop(at, model, optimizer, 2)
    twin = copy.deepcopy(model)
    loop(at, model, optimizer, 2)
    with torch.no_grad():
        twin[0].weight.add_(1.0)  # the copy's own
    return nn.ModuleList([loop(at, model, optimizer, 1), twin])


@feature
def model_saved_and_loaded_by_torch(at):
    model, file = net(), io.BytesIO()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    loop(at, model, optimizer, 2)
    torch.save({"model": model, "head": model[2].state_dict()}, file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    loop(at, model, optimizer, 2)
    return nn.ModuleList([model, found["model"]])


@feature
def state_of_a_part_of_the_model(at):
    model, file = net(), io.BytesIO()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    loop(at, model, optimizer)
    torch.save(model[2].state_dict(), file)
    plain = io.BytesIO()
    torch.save(nn.Linear(5, 1).state_dict(), plain)
    assert file.tell() == plain.tell(), (file.tell(), plain.tell())
    return model


@feature
def compiled_model(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    loop(at, torch.compile(model, backend="eager"), optimizer)
    return model


@feature
def functional_call(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))

    def called(x):
        return torch.func.functional_call(model, dict(model.named_parameters()), x)

    loop(at, called, optimizer)
    return model
