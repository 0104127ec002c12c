"""Access methods read off torch.optim's optimizers. What they compute: test_optimizers."""

import pytest
import torch

from shoal.errors import InvalidValue, UnknownName
from shoal.tables.from_torch import from_torch
from shoal.tables.spec import Access


def parameters(count: int = 1) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]


def of_one(optimizer: torch.optim.Optimizer) -> Access:
    [access] = from_torch(optimizer)
    return access


def test_from_torch_reads_every_option():
    optimizer = torch.optim.SGD(
        parameters(), lr=0.5, momentum=0.25, weight_decay=2, nesterov=True, maximize=True
    )
    assert of_one(optimizer) == Access(
        "sgd",
        {
            "lr": 0.5,
            "momentum": 0.25,
            "dampening": 0.0,
            "weight_decay": 2.0,
            "nesterov": True,
            "maximize": True,
        },
    )


def test_from_torch_adamw_is_adam_decoupled():
    access = of_one(torch.optim.AdamW(parameters(), betas=(0.5, 0.25)))
    assert access.name == "adam"
    assert access.options == {
        "lr": 0.001,
        "beta1": 0.5,
        "beta2": 0.25,
        "eps": 1e-8,
        "weight_decay": 0.01,
        "amsgrad": False,
        "decoupled": True,
        "maximize": False,
    }


@pytest.mark.parametrize(
    ("kind", "decoupled"), [(torch.optim.Adam, False), (torch.optim.AdamW, True)]
)
def test_from_torch_before_2_6_the_class_tells(kind, decoupled):
    optimizer = kind(parameters())
    optimizer.defaults.pop("decoupled_weight_decay", None)
    assert of_one(optimizer).options["decoupled"] is decoupled


def test_from_torch_options_are_plain_numbers():
    """They travel in a view: no tensor, and no int where a float is meant."""
    access = of_one(torch.optim.Adam(parameters(), lr=torch.tensor(0.5)))
    assert access.options["lr"] == 0.5
    assert {type(value) for value in access.options.values()} == {float, bool}


def test_from_torch_takes_the_present_rate_under_a_scheduler():
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert of_one(optimizer).options["lr"] == 0.5


def test_from_torch_kernels_do_not_matter():
    for how in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        assert of_one(torch.optim.Adam(parameters(), **how)).name == "adam"


def test_from_torch_groups_have_an_access_method_each():
    first, second = parameters(2)
    groups = [{"params": [first]}, {"params": [second], "lr": 0.25, "momentum": 0.5}]
    found = from_torch(torch.optim.SGD(groups, lr=0.5))
    assert [(each.options["lr"], each.options["momentum"]) for each in found] == [
        (0.5, 0.0),
        (0.25, 0.5),
    ]


def test_from_torch_unsupported_class():
    expected = r"torch\.optim\.lbfgs\.LBFGS does .*SGD, Adagrad.*AdamW"
    with pytest.raises(UnknownName, match=expected):
        from_torch(torch.optim.LBFGS(parameters()))


def test_from_torch_subclass():
    """A subclass may compute anything: only the class itself is known."""

    class SGD(torch.optim.SGD):
        pass

    with pytest.raises(UnknownName, match=r"test_from_torch\..*SGD does"):
        from_torch(SGD(parameters()))


def test_from_torch_unsupported_option():
    optimizer = torch.optim.SGD(parameters(), differentiable=True, foreach=False)
    with pytest.raises(InvalidValue, match="has no differentiable, which this SGD "):
        from_torch(optimizer)


def test_from_torch_values_that_torch_lets_pass():
    with pytest.raises(InvalidValue, match=r"rmsprop: alpha=1\.5 is out of range"):
        from_torch(torch.optim.RMSprop(parameters(), alpha=1.5))
