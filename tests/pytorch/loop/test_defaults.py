"""What a script's optimizers get from its run: a strategy with settings, and hyper-parameters."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from shoal.client.defaults import OptimizerDefaults
from shoal.errors import InvalidValue, UnknownName, UsageError
from shoal.pytorch.loop.defaults import choose, set_hyperparameters
from shoal.strategies import strategies

RUN = OptimizerDefaults("diloco", {"tau": 5, "outer_lr": 0.5})


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(3))]


def sgd(**given: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters(), **{"lr": 0.1, **given})


def chosen(
    said: OptimizerDefaults,
    strategy: Any = None,
    staleness: int | None = None,
    settings: Any = None,
) -> tuple[str, int, dict[str, Any]]:
    kind, given = choose(said, sgd(), strategy, staleness, settings)
    return kind.name, given["staleness"], given["settings"]


def test_without_a_word_it_is_sync():
    assert chosen(OptimizerDefaults()) == ("sync", 0, {})


def test_the_run_says_what_the_script_does_not():
    assert chosen(RUN) == ("diloco", 0, {"tau": 5, "outer_lr": 0.5})
    assert chosen(RUN, settings={"tau": 9}) == ("diloco", 0, {"tau": 9, "outer_lr": 0.5})
    assert chosen(RUN, "diloco") == chosen(RUN)
    assert chosen(RUN, strategies["diloco"]) == chosen(RUN)
    bounded = OptimizerDefaults("ssp", staleness=3)
    assert chosen(bounded) == chosen(bounded, "ssp") == ("ssp", 3, {})
    assert chosen(bounded, "ssp", staleness=1) == ("ssp", 1, {})
    assert chosen(bounded, "ssp", staleness=0) == ("ssp", 0, {})


def test_settings_without_a_strategy_are_those_of_the_usual_one():
    said = OptimizerDefaults(settings={"quorum": 1})
    assert chosen(said) == chosen(said, "sync") == ("sync", 0, {"quorum": 1})
    assert chosen(said, "asgd") == ("asgd", 0, {})


def test_the_strategy_of_the_script_stays_and_a_warning_says_so(caplog):
    assert chosen(RUN, "ssp", staleness=2) == ("ssp", 2, {})
    assert "the script names strategy 'ssp'" in caplog.text
    assert "--strategy diloco" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert chosen(OptimizerDefaults(), "asgd") == ("asgd", 0, {})
    assert not caplog.records


@pytest.mark.parametrize("strategy", [None, "asgd"])
def test_an_unknown_strategy_of_the_run_is_refused_in_any_case(strategy):
    with pytest.raises(UnknownName, match="unknown strategy 'dilocco'"):
        chosen(OptimizerDefaults("dilocco"), strategy)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (torch.optim.SGD, {"lr": 0.5}, {"lr": 0.5, "momentum": 0.9, "nesterov": False}),
        (torch.optim.SGD, {"momentum": 0.5, "nesterov": True}, {"momentum": 0.5, "nesterov": True}),
        (torch.optim.SGD, {"lr": 1}, {"lr": 1}),
        (torch.optim.AdamW, {"betas": [0.8, 0.9], "weight_decay": 0.0}, {"betas": (0.8, 0.9)}),
        (torch.optim.AdamW, {"foreach": False, "amsgrad": True}, {"foreach": False}),
        (torch.optim.LBFGS, {"max_iter": 7, "line_search_fn": "strong_wolfe"}, {"max_iter": 7}),
    ],
    ids=str,
)
def test_arguments_of_the_optimizer_are_replaced(kind, given, expected):
    extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(parameters(), lr=0.1, **extra)
    set_hyperparameters(optimizer, given)
    [group] = optimizer.param_groups
    assert {name: group[name] for name in expected} == expected
    assert {name: optimizer.defaults[name] for name in expected} == expected


def test_a_rate_in_a_tensor_stays_one():
    optimizer = torch.optim.Adam(parameters(), lr=torch.tensor(0.1))
    set_hyperparameters(optimizer, {"lr": 0.5})
    assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(0.5))


def test_groups_keep_what_they_set_themselves():
    first, second = parameters()
    groups = [{"params": [first], "lr": 0.01, "initial_lr": 0.01}, {"params": [second]}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    set_hyperparameters(optimizer, {"lr": 0.5, "momentum": 0.0})
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.5]
    assert [group["momentum"] for group in optimizer.param_groups] == [0.0, 0.0]
    assert optimizer.param_groups[0]["initial_lr"] == 0.01


def test_a_scheduler_that_is_made_afterwards_begins_with_the_rate():
    """Also of a resumed run, whose groups have `initial_lr`."""
    optimizer = torch.optim.SGD([{"params": parameters(), "initial_lr": 0.1}], lr=0.1)
    set_hyperparameters(optimizer, {"lr": 0.8})
    schedule = LambdaLR(optimizer, lambda step: 0.5**step, last_epoch=1)
    assert schedule.base_lrs == [0.8]
    assert optimizer.param_groups[0]["lr"] == 0.8 * 0.5**2


def test_a_scheduler_that_was_made_before_would_undo_the_rate():
    optimizer = sgd()
    schedule = LambdaLR(optimizer, lambda step: 1.0)
    with pytest.raises(UsageError, match=r"make the scheduler for the shoal\.Optimizer"):
        set_hyperparameters(optimizer, {"lr": 0.8})
    set_hyperparameters(optimizer, {"momentum": 0.5})
    assert (schedule.base_lrs, optimizer.param_groups[0]["lr"]) == ([0.1], 0.1)
    watched = sgd()
    ReduceLROnPlateau(watched)  # which reads the rate when it lowers it
    set_hyperparameters(watched, {"lr": 0.8})
    assert watched.param_groups[0]["lr"] == 0.8


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"beta1": 0.9}, UnknownName, "unknown hyper-parameter of SGD 'beta1'"),
        ({"momentun": 0.9}, UnknownName, "did you mean 'momentum'"),
        ({"params": 1}, UnknownName, "unknown hyper-parameter of SGD 'params'"),
        ({"lr": "fast"}, InvalidValue, "lr of SGD is 0.1; it cannot become 'fast'"),
        ({"lr": True}, InvalidValue, "it cannot become True"),
        ({"nesterov": 1}, InvalidValue, "nesterov of SGD is False; it cannot become 1"),
        ({"lr": -1.0}, InvalidValue, "SGD: Invalid learning rate: -1.0"),
        ({"nesterov": True}, InvalidValue, "Nesterov momentum requires a momentum"),
    ],
    ids=str,
)
def test_what_the_optimizer_does_not_have_is_refused_and_nothing_changed(given, error, told):
    optimizer = sgd()
    before = [dict(group) for group in optimizer.param_groups], dict(optimizer.defaults)
    with pytest.raises(error, match=told.replace("(", r"\(")):
        set_hyperparameters(optimizer, {"weight_decay": 0.5, **given})
    assert (optimizer.param_groups, optimizer.defaults) == before


def test_several_numbers_are_given_as_a_list():
    optimizer = torch.optim.Adam(parameters())
    for wrong in (0.9, [0.9], "0.9,0.95"):
        with pytest.raises(InvalidValue, match=r"such a value is given as \[0\.9,0\.95\]"):
            set_hyperparameters(optimizer, {"betas": wrong})
    with pytest.raises(InvalidValue, match="Invalid beta"):
        set_hyperparameters(optimizer, {"betas": [0.9, 1.5]})
    with pytest.raises(InvalidValue, match="Adam"):
        set_hyperparameters(optimizer, {"betas": ["high", 0.9]})


def test_an_option_that_every_group_sets_itself_is_refused():
    optimizer = torch.optim.SGD([{"params": parameters(), "lr": 0.2}], lr=0.1)
    with pytest.raises(InvalidValue, match="each parameter group of this SGD sets its own lr"):
        set_hyperparameters(optimizer, {"lr": 0.5})
    assert optimizer.param_groups[0]["lr"] == 0.2


class Own(torch.optim.SGD):
    """A class whose arguments cannot be known."""

    def __init__(self, model: Any, *, lr: float) -> None:
        super().__init__(model, lr=lr)
        self.made = True


def test_a_class_of_the_users_own_is_not_made_again():
    optimizer = Own(parameters(), lr=0.1)
    set_hyperparameters(optimizer, {"lr": 0.5, "momentum": 0.9})
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.5, 0.9)
