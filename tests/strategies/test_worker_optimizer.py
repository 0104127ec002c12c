"""The optimizer on a worker equals the access method on a server, and its state can be restored."""

import pytest
import torch

from shoal.errors import InvalidValue
from shoal.strategies.base import StrategyOptions
from shoal.strategies.worker_optimizer import WorkerOptimizer
from shoal.tables.spec import Access
from tests.strategies.problems import FlatModel, quadratic

ADAM = Access("adam", {"lr": 0.1})


def stepped(optimizer, model, steps, first=0):
    for step in range(first, first + steps):
        model.grads["x"].copy_(torch.arange(3, dtype=torch.float64) + step)
        optimizer.step({})
    return model.x.clone()


def made(state=None):
    model, optimizer = FlatModel(3, quadratic), WorkerOptimizer(StrategyOptions(ADAM))
    if state is not None:
        optimizer.load_state_dict(state)
    optimizer.bind(model, model.grads)
    return optimizer, model


def test_a_restored_optimizer_goes_on_as_if_nothing_had_happened():
    whole = stepped(*made(), 7)
    optimizer, model = made()
    half = stepped(optimizer, model, 4)
    other, restored = made(optimizer.state_dict())
    restored.x.copy_(half)
    assert torch.equal(stepped(other, restored, 3, first=4), whole)


def test_the_state_of_another_optimizer_is_refused():
    optimizer, model = made()
    stepped(optimizer, model, 1)
    other = WorkerOptimizer(StrategyOptions(Access("sgd", {"lr": 0.1, "momentum": 0.9})))
    other.load_state_dict(optimizer.state_dict())
    with pytest.raises(
        InvalidValue, match=r"has exp_avg, exp_avg_sq for each .* this optimizer has momentum"
    ):
        other.bind(model, model.grads)


def test_a_callers_own_update_is_called_in_its_place():
    calls = []
    optimizer = WorkerOptimizer(StrategyOptions(update=lambda: calls.append(1)))
    model = FlatModel(3, quadratic)
    optimizer.bind(model, model.grads)
    optimizer.step({})
    assert (len(calls), optimizer.updates, model.x.tolist()) == (1, 1, [0, 0, 0])
