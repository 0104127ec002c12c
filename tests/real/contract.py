"""What a training loop may do in torch: a list of features, each a small loop of its own.

    python contract.py [STRATEGY]    prints, as JSON, what each feature has trained, or the refusal

Without a strategy torch's optimizers train alone; with one they are wrapped. Under `shoal run` each
worker trains on its share of every batch where the feature's loss is a mean over rows.
"""

import copy
import io
import json
import sys
import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

STEPS, ROWS, WIDTH = 5, 16, 6
SETTINGS = {"diloco": {"tau": 1, "outer_lr": 1.0, "outer_momentum": 0.0}}
SGD, Adam = torch.optim.SGD, torch.optim.Adam
FEATURES = {}


class Setting:
    """How a feature trains: by which strategy, and on which rows."""

    def __init__(self, strategy, rank, world):
        self.strategy, self.rank, self.world = strategy, rank, world

    def wrap(self, inner, **more):
        if not self.strategy:
            return inner
        import shoal

        settings = SETTINGS.get(self.strategy, {})
        return shoal.Optimizer(inner, self.strategy, settings=settings, **more)

    def batch(self, step, whole=False):
        """Rows and targets of a step: this worker's share of them, or all."""
        generator = torch.Generator().manual_seed(100 + step)
        x = torch.randn(ROWS, WIDTH, generator=generator)
        y = torch.randn(ROWS, 1, generator=generator)
        if whole or self.strategy not in ("sync", "allreduce"):
            return x, y
        return x[self.rank :: self.world], y[self.rank :: self.world]


def feature(function):
    FEATURES[function.__name__] = function
    return function


def net(*more):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), *more, nn.Linear(5, 1))


def images():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(6, 1))


def pictures(x):
    return torch.cat([x, x], 1).view(-1, 2, 2, 3)


def loop(at, model, optimizer, steps=STEPS, before=None, after=None, whole=False, inputs=None):
    """The loop that most features vary: something happens before or after each step."""
    for step in range(steps):
        x, y = at.batch(step, whole)
        optimizer.zero_grad()
        (model(inputs(x) if inputs else x) - y).square().mean().backward()
        if before:
            before(step)
        optimizer.step()
        if after:
            after(step)
    return model


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


# ---------------------------------------------------------------------------- all of them


def trained(name, at):
    """What a feature ends with: all values, or the refusal of Shoal, by name."""
    torch.manual_seed(0)
    try:
        found = FEATURES[name](at)
    except Exception as error:
        if at.strategy:
            from shoal.errors import ShoalError

            if isinstance(error, ShoalError):
                return f"refused: {error.message}"
        return f"{type(error).__name__}: {error}"
    values = [each.detach().double().reshape(-1) for each in found.state_dict().values()]
    return torch.cat(values).tolist()


def main():
    strategy = sys.argv[1] if len(sys.argv) > 1 else ""
    rank, world = 0, 1
    if strategy:
        import shoal

        context = shoal.init()
        rank, world = context.rank, context.world_size
    at = Setting(strategy, rank, world)
    found = {name: trained(name, at) for name in FEATURES}
    print("FOUND", json.dumps([rank, found]), flush=True)


if __name__ == "__main__":
    main()
