"""The optimizer on a worker equals the access method on a server, and its state can be restored."""

import pytest
import torch

from shoal.errors import InvalidValue
from shoal.strategies.base import StrategyOptions
from shoal.strategies.worker_optimizer import WorkerOptimizer
from shoal.tables.spec import Access, Span
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
    optimizer = WorkerOptimizer(StrategyOptions(update=calls.append))
    model = FlatModel(3, quadratic)
    optimizer.bind(model, model.grads)
    optimizer.step({}, {"x": (1,)})
    assert (calls, optimizer.updates, model.x.tolist()) == ([{"x": (1,)}], 1, [0, 0, 0])


def test_absent_parameters_keep_their_values_state_and_step():
    """Against torch's Adam on each parameter, where one gets a gradient in some steps only."""
    model = FlatModel(32, quadratic)
    model.spans = {"x": (Span(0, "a"), Span(16, "b"))}
    ours = WorkerOptimizer(StrategyOptions(Access("adam", {"lr": 0.1})))
    ours.bind(model, model.grads)
    theirs = [torch.nn.Parameter(torch.zeros(16, dtype=torch.float64)) for _ in "ab"]
    adam = torch.optim.Adam(theirs, lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for absent in ((), (1,), (1,), (), (0, 1), (0,)):
        model.grads["x"].copy_(torch.randn(32, generator=generator, dtype=torch.float64))
        for number, parameter in enumerate(theirs):
            grad = model.grads["x"][16 * number : 16 * number + 16].clone()
            parameter.grad = None if number in absent else grad
        adam.step()
        ours.step({}, {"x": absent} if absent else {})
        torch.testing.assert_close(model.x, torch.cat(theirs).detach())
        again = WorkerOptimizer(StrategyOptions(Access("adam", {"lr": 0.1})))
        again.load_state_dict(ours.state_dict())
        again.bind(model, model.grads)
        ours = again  # as a resumed run goes on
