"""The state of flat parameters, to and from the state that torch's optimizers have."""

import copy

import pytest
import torch
from torch import nn

from shoal.errors import InvalidValue
from shoal.pytorch.flat_parameters import FlatParams
from shoal.pytorch.optimizer_state import from_torch_state, loaded, to_torch
from shoal.tables.dense.methods import make
from shoal.tables.from_torch import from_torch

KINDS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p),
    "adagrad": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.5, lambd=0.1, t0=1),
    "rprop": lambda p: torch.optim.Rprop(p),
}


def setup(kind, steps=0):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, dtype=torch.float64))
    optimizer = KINDS[kind](module.parameters())
    for step in range(steps):
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 + step)
        optimizer.step()
    return optimizer, FlatParams(module.parameters())


def methods_of(optimizer, flat):
    return dict.fromkeys(flat.values, make(from_torch(optimizer)[0]))


def flat_state(optimizer, flat):
    return from_torch_state(optimizer, flat, methods_of(optimizer, flat))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 3])
def test_a_state_comes_back_as_torch_has_it(kind, steps):
    optimizer, flat = setup(kind, steps)
    states = flat_state(optimizer, flat)
    counts = {count for state in states.values() for count in state.updates}
    assert counts == {min(steps, 1 if kind == "momentum" else 3)}
    back = to_torch(optimizer, flat, methods_of(optimizer, flat), states)
    assert set(back) == set(optimizer.state)
    for parameter, wanted in optimizer.state.items():
        assert set(back[parameter]) == set(wanted)
        for name, value in wanted.items():
            assert torch.equal(back[parameter][name], value), name
            assert back[parameter][name].dtype == value.dtype


def test_a_parameter_without_a_state_has_had_no_gradient_so_far():
    optimizer, flat = setup("adagrad", 2)
    bias = flat.places[1].parameter
    del optimizer.state[bias]
    state = flat_state(optimizer, flat)["float32"]
    assert state.updates == [2, 0]
    assert (state.slots["sum"][flat.places[1].rows] == 0.5).all()


def test_parameters_have_numbers_of_steps_of_their_own():
    optimizer, flat = setup("adam", 2)
    optimizer.state[flat.places[1].parameter]["step"] += 3
    states = flat_state(optimizer, flat)
    assert states["float32"].updates == [2, 5]
    back = to_torch(optimizer, flat, methods_of(optimizer, flat), states)
    assert [int(back[place.parameter]["step"]) for place in flat.places] == [2, 5, 2, 2]


def test_the_state_of_a_parameter_has_its_order_of_dimensions():
    module = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    wanted = optimizer.state[module.weight]["exp_avg"].clone()
    flat = FlatParams(module.parameters())
    back = to_torch(optimizer, flat, methods_of(optimizer, flat), flat_state(optimizer, flat))
    found = back[module.weight]["exp_avg"]
    assert torch.equal(found, wanted)
    assert found.stride() == module.weight.stride() == wanted.stride()


def test_a_state_of_another_shape_is_refused_with_both_shapes():
    optimizer, flat = setup("adam", 2)
    optimizer.state[flat.places[1].parameter]["exp_avg"] = torch.zeros(7)
    with pytest.raises(InvalidValue, match=r"exp_avg of parameter 1 .*\(7,\).*\(2,\)"):
        flat_state(optimizer, flat)


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("state"),
        lambda state: state.pop("param_groups"),
        lambda state: state["param_groups"].append(state["param_groups"][0]),
        lambda state: state["param_groups"][0]["params"].append(9),
    ],
)
def test_what_is_no_state_of_the_optimizer_is_refused_and_changes_nothing(damage):
    optimizer, _ = setup("adam", 2)
    state = copy.deepcopy(optimizer.state_dict())
    before = {parameter: dict(each) for parameter, each in optimizer.state.items()}
    damage(state)
    with pytest.raises(InvalidValue, match="no state_dict of Adam"):
        loaded(optimizer, state)
    assert {parameter: dict(each) for parameter, each in optimizer.state.items()} == before
