"""LoopModel: what a loop has done to parameters is found, taken in, or refused before a change."""

import pytest
import torch
from torch import nn

from shoal.errors import NotFinite, UsageError
from shoal.pytorch.loop.loop_model import LoopModel


def made(**more):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 1))
    names = {parameter: name for name, parameter in module.named_parameters()}
    return module, LoopModel([{"params": list(module.parameters())}], names)


def in_place(model):
    """Whether every parameter is a view of the flat buffer."""
    return all(
        place.parameter.data_ptr()
        == model.values[place.buffer].data_ptr() + 4 * place.rows.start
        == place.value.data_ptr()
        for place in model.places
    )


def changed(module, model, change):
    """What `look` says of a change, which has to stay."""
    before = [p.detach().clone() for p in module.parameters()]
    change(module)
    after = [p.detach().clone() for p in module.parameters()]
    written = model.look()
    assert in_place(model)
    for parameter, value in zip(module.parameters(), after, strict=True):
        assert torch.equal(parameter, value)
    same = [torch.equal(one, two) for one, two in zip(before, after, strict=True)]
    return written, same


def replace(module):
    module[2].weight.data = module[2].weight.data * 2


def shuffle(module):
    module[0].weight.data = module[0].weight.data.flip(0)


def write(module):
    with torch.no_grad():
        module[2].bias.add_(1)


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        (lambda module: None, ()),
        (lambda module: module.to(memory_format=torch.channels_last), ()),
        (lambda module: module.float(), ()),
        (lambda module: module.state_dict(), ()),
        (replace, (2,)),
        (shuffle, (0,)),
        (write, (3,)),
        (lambda module: module.half().float(), (0, 1, 2, 3)),
        (lambda module: module[0].bias.data.clamp_(0, 0), (1,)),
    ],
    ids=["none", "layout", "same", "read", "replace", "shuffle", "write", "half", "clamp"],
)
def test_a_change_is_found_and_taken_in_once(change, numbers):
    module, model = made()
    written, same = changed(module, model, change)
    assert written == ({"float32": numbers} if numbers else {})
    assert tuple(n for n, is_same in enumerate(same) if not is_same) == numbers
    model.settle()
    assert model.look() == {}


def test_gradients_that_were_replaced_with_the_memory_are_collected_again():
    module, model = made()
    for place in model.places:
        place.parameter.grad = place.grad
    module.half().float()
    model.look()
    for number, place in enumerate(model.places):
        place.parameter.grad = torch.full_like(place.parameter, number + 1.0)
    model.collect()
    for number, place in enumerate(model.places):
        assert (model.grads[place.buffer][place.rows] == number + 1).all()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda module: module.double(), "0.weight was of torch.float32 .* torch.float64 now"),
        (lambda module: module.share_memory(), "0.weight was moved to shared memory"),
        (
            lambda module: setattr(module[2].weight, "data", torch.ones(1, 4)),
            r"2.weight was of shape \(1, 3\) .* \(1, 4\) now",
        ),
    ],
    ids=["dtype", "shared", "shape"],
)
def test_what_cannot_be_taken_in_is_refused_by_name(change, told):
    module, model = made()
    replace(module)  # which could
    kept = module[2].bias.data_ptr()
    change(module)
    with pytest.raises(UsageError, match=told):
        model.look()
    if told.startswith("2"):
        assert module[2].bias.data_ptr() == kept


def test_buffers_are_idle_while_all_their_parameters_are_frozen():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    model = LoopModel([{"params": list(module.parameters())}])
    assert model.idle == {"float32.frozen"}
    module[0].bias.requires_grad_(True)
    model.look()
    assert model.idle == frozenset()
    module.requires_grad_(False)
    model.look()
    assert model.idle == {"float32", "float32.frozen"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_gradients_that_are_not_finite_are_refused_replaced_or_let_through(value):
    module, model = made()
    for place in model.places:
        place.parameter.grad = torch.ones_like(place.parameter)
    module[2].weight.grad[0, 1] = value
    model.collect()
    with pytest.raises(NotFinite, match=r"gradient of 2\.weight"):
        model.check_finite("reject")
    model.check_finite("allow")
    assert not bool(model.grads["float32"].isfinite().all())
    model.check_finite("zero")
    assert model.places[2].grad.tolist() == [[1.0, 0.0, 1.0]]
    huge = torch.full_like(module[2].weight, 3e38)
    module[2].weight.grad = huge
    model.collect()
    model.check_finite("reject")  # whose sum is not finite, and each of them is
