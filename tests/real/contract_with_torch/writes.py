"""Writes to parameters between steps, and memory that is replaced."""

import copy

import torch
from setting import SGD, STEPS, WIDTH, Adam, feature, images, loop, net, pictures
from torch import nn
from torch.nn.utils import parametrizations, prune

# ---------------------------------------------------------------------------- writes


@feature
def clamped_data(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    return loop(
        at, model, optimizer, after=lambda _: [p.data.clamp_(-0.1, 0.1) for p in model.parameters()]
    )


@feature
def written_through_numpy(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))

    def halve(_):
        model[0].weight.detach().numpy()[0] *= 0.5

    return loop(at, model, optimizer, after=halve)


@feature
def renormalized_weights(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))

    def renormalize(_):
        with torch.no_grad():
            model[0].weight.copy_(torch.renorm(model[0].weight, 2, 0, 0.1))

    return loop(at, model, optimizer, after=renormalize)


@feature
def embedding_with_max_norm(at):
    torch.manual_seed(3)
    words, head = nn.Embedding(6, WIDTH, max_norm=0.5), nn.Linear(WIDTH, 1)
    model = nn.ModuleList([words, head])
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        x, y = at.batch(step, whole=True)
        optimizer.zero_grad()
        (head(words(torch.arange(len(x)) % 6) + x) - y).square().mean().backward()
        optimizer.step()
    return model


@feature
def best_weights_loaded_between_steps(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    loop(at, model, optimizer, 2)
    best = copy.deepcopy(model.state_dict())
    loop(at, model, optimizer, 2)
    model.load_state_dict(best)
    return loop(at, model, optimizer, 2)


@feature
def model_and_optimizer_loaded_between_steps(at):
    model = net()
    optimizer = at.wrap(Adam(model.parameters(), lr=0.05))
    loop(at, model, optimizer, 2, whole=True)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    loop(at, model, optimizer, 3, whole=True)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    return loop(at, model, optimizer, 2, whole=True)


@feature
def layer_begun_anew(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    loop(at, model, optimizer, 2)
    torch.manual_seed(9)
    model[2].reset_parameters()
    return loop(at, model, optimizer, 2)


@feature
def averaged_weights_evaluated_in_place(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    average = torch.optim.swa_utils.AveragedModel(model)

    def evaluate(_):
        average.update_parameters(model)
        with torch.no_grad():
            kept = [p.clone() for p in model.parameters()]
            for p, mean in zip(model.parameters(), average.module.parameters(), strict=True):
                p.copy_(mean)
            for p, before in zip(model.parameters(), kept, strict=True):
                p.copy_(before)

    loop(at, model, optimizer, after=evaluate)
    return nn.ModuleList([model, average.module])


# ---------------------------------------------------------------------------- memory


@feature
def channels_last_before(at):
    model = images().to(memory_format=torch.channels_last)
    strides = model[0].weight.stride()
    loop(at, model, at.wrap(SGD(model.parameters(), lr=0.1)), inputs=pictures)
    assert model[0].weight.stride() == strides
    return model


@feature
def channels_last_afterwards(at):
    model = images()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    loop(at, model, optimizer, 2, inputs=pictures)
    model.to(memory_format=torch.channels_last)
    return loop(at, model, optimizer, 2, inputs=pictures)


@feature
def half_and_back(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    loop(at, model, optimizer, 2)
    model.half().float()
    return loop(at, model, optimizer, 2)


@feature
def converted_to_double(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    model.double()
    optimizer.zero_grad()
    x, y = at.batch(0)
    (model(x.double()) - y).square().mean().backward()
    optimizer.step()
    return model


@feature
def data_replaced(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))

    def replace(_):
        for parameter in model.parameters():
            parameter.data = parameter.data * 0.9

    return loop(at, model, optimizer, after=replace)


@feature
def vector_to_parameters(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))

    def rewrite(_):
        vector = nn.utils.parameters_to_vector(model.parameters()).detach() * 0.9
        nn.utils.vector_to_parameters(vector, model.parameters())

    return loop(at, model, optimizer, after=rewrite)


@feature
def moved_to_shared_memory(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    model.share_memory()
    return loop(at, model, optimizer)


@feature
def parametrized_before(at):
    model = net()
    parametrizations.weight_norm(model[0])
    return loop(at, model, at.wrap(SGD(model.parameters(), lr=0.1)))


@feature
def parametrized_afterwards(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    parametrizations.weight_norm(model[0])
    return loop(at, model, optimizer)


@feature
def spectral_norm(at):
    model = net()
    parametrizations.spectral_norm(model[0])
    return loop(at, model, at.wrap(SGD(model.parameters(), lr=0.1)))


@feature
def pruned(at):
    model = net()
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1))
    loop(at, model, optimizer, 2)
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    return loop(at, model, optimizer, 2)


@feature
def tied_weights(at):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model[2].weight = model[0].weight
    return loop(at, model, at.wrap(SGD(model.parameters(), lr=0.1)))


@feature
def tied_afterwards(at):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    optimizer = at.wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    loop(at, model, optimizer, 2)
    model[2].weight = model[0].weight
    return loop(at, model, optimizer, 2)
