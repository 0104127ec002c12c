"""Cases of torch's own tests of optimizers, with shoal.Optimizer in place of the optimizer.

    python optim_cases.py STRATEGY     prints, as JSON, [case, optimizer, options, outcome] of each

A case trains the same problem with torch's optimizer and with the wrapped one, for each entry of
torch's table of optimizers and options. Its outcome is the largest difference relative to torch's
largest value, or the refusal.
"""

import copy
import io
import json
import sys
import warnings

import torch
from torch import nn
from torch.testing._internal.common_optimizers import optim_db

import shoal
from shoal.errors import ShoalError

STEPS = 4
CASES = {}
STRATEGY = sys.argv[1]


def case(function):
    CASES[function.__name__] = function
    return function


class Trained:
    """A small network in training, by torch alone or wrapped."""

    def __init__(self, info, options, wrapped, groups=None):
        torch.manual_seed(5)
        self.module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.kind, self.wrapped = info.optim_cls, wrapped
        parameters = list(self.module.parameters())
        if self.kind is torch.optim.Muon:  # it takes matrices only
            parameters = [p for p in parameters if p.dim() == 2]
        self.parameters = parameters
        self.optimizer = self.wrap(groups(parameters) if groups else parameters, **options)
        self.generator = torch.Generator().manual_seed(9)

    def wrap(self, parameters, **options):
        inner = self.kind(parameters, **options)
        return shoal.Optimizer(inner, STRATEGY) if self.wrapped else inner

    def step(self, use=None, scale=1.0):
        x = torch.randn(16, 4, generator=self.generator)

        def closure():
            self.optimizer.zero_grad()
            y = self.module(x) if use is None else self.module[use](x)
            loss = scale * (y.square().mean() + 0.1 * y.sum(1).mean())
            loss.backward()
            return loss

        self.optimizer.step(closure)

    def train(self, steps=STEPS, **more):
        for _ in range(steps):
            self.step(**more)
        return self

    @property
    def values(self):
        return torch.cat([p.detach().reshape(-1) for p in self.module.parameters()])


@case
def goes_where_torch_goes(info, options, wrapped):
    return Trained(info, options, wrapped).train().values


@case
def goes_on_where_a_layer_has_no_gradient(info, options, wrapped):
    one = Trained(info, options, wrapped).train(2)
    return one.train(2, use=0).train(2).values


@case
def does_nothing_without_gradients(info, options, wrapped):
    one = Trained(info, options, wrapped).train(2)
    before = one.values
    if one.kind.__name__ != "LBFGS":
        one.optimizer.zero_grad()
        one.optimizer.step()
        assert torch.equal(one.values, before)
    return one.train(1).values


@case
def zero_gradients_are_gradients(info, options, wrapped):
    return Trained(info, options, wrapped).train(2).train(2, scale=0.0).train(1).values


@case
def groups_have_rates_of_their_own(info, options, wrapped):
    if info.optim_cls.__name__ == "LBFGS":  # it has one group
        return torch.zeros(1)
    options = {n: v for n, v in options.items() if n != "lr"}

    def groups(parameters):
        return [{"params": parameters[:1], "lr": 0.01}, {"params": parameters[1:]}]

    return Trained(info, {**options, "lr": 0.001}, wrapped, groups).train().values


@case
def schedulers_change_the_rate(info, options, wrapped):
    schedulers = torch.optim.lr_scheduler
    one = Trained(info, options, wrapped)
    if isinstance(one.optimizer.param_groups[0]["lr"], torch.Tensor):
        return torch.zeros(1)  # a tensor's rate is changed in place, also of the torch optimizer
    made = [
        schedulers.StepLR(one.optimizer, 2, 0.5),
        schedulers.LinearLR(one.optimizer, 0.4, 0.9, 3),
    ]
    for _ in range(STEPS):
        one.step()
        for each in made:
            each.step()
    return one.values


@case
def a_saved_state_goes_on(info, options, wrapped):
    one, file = Trained(info, options, wrapped).train(2), io.BytesIO()
    torch.save([one.module.state_dict(), one.optimizer.state_dict()], file)
    one.train(2)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    one.module.load_state_dict(weights)
    one.optimizer.load_state_dict(state)
    one.generator.manual_seed(11)
    return one.train(2).values


@case
def a_state_is_torchs(info, options, wrapped):
    one = Trained(info, options, wrapped).train(2)
    alone = Trained(info, options, False)
    alone.module.load_state_dict(copy.deepcopy(one.module.state_dict()))
    alone.optimizer.load_state_dict(one.optimizer.state_dict())
    alone.generator.manual_seed(11)
    return alone.train(2).values


@case
def a_state_has_names(info, options, wrapped):
    if info.optim_cls is torch.optim.Muon:
        return torch.zeros(1)

    def groups(parameters):
        return [(f"layer.{number}", each) for number, each in enumerate(parameters)]

    one = Trained(info, options, wrapped, groups).train(2)
    state = one.optimizer.state_dict()
    assert state["param_groups"][0]["param_names"] == [f"layer.{n}" for n in range(4)]
    one.optimizer.load_state_dict(state)
    return one.train(1).values


@case
def hooks_are_called(info, options, wrapped):
    one, seen = Trained(info, options, wrapped), []
    one.optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
    one.optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    one.optimizer.register_state_dict_pre_hook(lambda *_: seen.append("saves"))
    one.optimizer.register_state_dict_post_hook(lambda _, state: seen.append(len(state)))
    one.optimizer.register_load_state_dict_pre_hook(lambda *_: seen.append("loads"))
    one.optimizer.register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
    one.train(1)
    one.optimizer.load_state_dict(one.optimizer.state_dict())
    assert seen == ["pre", "post", "saves", 2, "loads", "loaded"], seen
    return one.values


@case
def it_can_be_printed(info, options, wrapped):
    one = Trained(info, options, wrapped)
    text = repr(one.optimizer)
    assert all(f"{name}: " in text for name in one.optimizer.param_groups[0] if name != "params")
    return torch.zeros(1)


def outcome(function, info, options):
    expected = function(info, copy.deepcopy(options), False)
    try:
        found = function(info, copy.deepcopy(options), True)
    except ShoalError as error:
        return error.message
    gap = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    return gap.item()


def main():
    found = []
    for info in optim_db:
        if info.optim_cls is torch.optim.SparseAdam:  # tests/real/test_optim_db.py
            continue
        context = shoal.init()
        for given in info.optim_inputs_func(device="cpu"):
            for name, function in CASES.items():
                try:
                    told = outcome(function, info, given.kwargs)
                except Exception as error:
                    told = f"!! {type(error).__name__}: {error}"
                found.append([name, info.optim_cls.__name__, str(given.kwargs), told])
        if STRATEGY != "allreduce":  # which has no tables
            context.close()  # so that there are few tables: each declaration is a view with all
    print("FOUND", json.dumps(found), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
