"""Strategies with delays: what they equal at neutral values, and delayed SGD as a loop."""

import pytest
import torch

from shoal.tables.spec import Access
from tests.strategies.problems import SCALES, around, train

LR = 0.1
UNLIKE = [0.01, 0.013, 0.03]


def same(one, other):
    return all(torch.equal(a.model.x, b.model.x) for a, b in zip(one, other, strict=True))


def test_downpour_that_exchanges_every_batch_is_asgd():
    data = around(3, 15, spread=1.0)
    plain = train("asgd", data, batch_s=UNLIKE)
    assert same(train("downpour", data, batch_s=UNLIKE, n_push=1, n_fetch=1), plain)
    assert not same(train("downpour", data, batch_s=UNLIKE, n_push=3, n_fetch=1), plain)


def test_downpour_pushes_the_sum_of_its_gradients():
    """One worker, pulls after its last push: three steps of its own, and one of their sum."""
    [own] = around(1, 3, spread=1.0)
    [worker] = train("downpour", [own], n_push=3, n_fetch=3)
    x, total = torch.zeros(3, dtype=torch.float64), 0.0
    for batch in own:
        gradient = SCALES * (x - batch)
        total = total + gradient
        x = x - LR * gradient
    assert (worker.model.x + LR * total).abs().max() <= 1e-12


def test_downpour_pushes_what_is_left_at_the_end():
    [own] = around(1, 4, spread=1.0)
    [whole] = train("downpour", [own], n_push=4, n_fetch=100, local_lr=0.0)
    [left] = train("downpour", [own], n_push=3, n_fetch=100, local_lr=0.0)
    assert (whole.model.x - left.model.x).abs().max() <= 1e-12


def test_downpours_own_steps_have_the_rate_of_the_schedule():
    """One worker that never pulls; the rate falls by half with each push."""
    rates = {"lr": LR, "schedule": "step", "schedule_every": 1, "schedule_gamma": 0.5}
    [own] = around(1, 6, spread=1.0)
    [worker] = train("downpour", [own], access=Access("sgd", rates), n_push=2, n_fetch=100)
    x, losses = torch.zeros(3, dtype=torch.float64), []
    for step, batch in enumerate(own):
        losses.append(float((SCALES * (x - batch) ** 2).sum() / 2))
        x = x - LR / 2 ** (step // 2) * SCALES * (x - batch)
    assert [each.loss for each in worker.results] == pytest.approx(losses, rel=1e-12)


def test_without_strength_delay_compensation_is_asgd():
    data = around(3, 15, spread=1.0)
    plain = train("asgd", data, batch_s=UNLIKE)
    assert same(train("dc_asgd", data, batch_s=UNLIKE, lam=0.0), plain)
    assert not same(train("dc_asgd", data, batch_s=UNLIKE, lam=0.04, adaptive=False), plain)


def test_alone_there_is_no_delay_to_compensate():
    data = around(1, 15, spread=1.0)
    assert same(train("dc_asgd", data, lam=2.0), train("asgd", data))


def test_compensated_gradients_are_nearer_to_those_of_the_present_parameters():
    """On a quadratic of curvature s a gradient g of x is g + s (theta - x) at theta: the
    compensation is exact where lambda g g = s."""
    from shoal.strategies import StrategyOptions, strategies

    made = strategies["dc_asgd"](StrategyOptions(settings={"lam": 0.5, "adaptive": False}))
    used, now = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.0])
    gradient = torch.tensor([2.0, -1.0])
    made._now = {"x": now}
    expected = gradient + 0.5 * gradient**2 * (now - used)
    made._compensate("x", gradient, used)
    assert torch.equal(gradient, expected)


def test_adaptive_strength_goes_by_the_mean_square():
    from shoal.strategies import StrategyOptions, strategies

    settings = {"lam": 2.0, "mean_square": 0.5, "epsilon": 1.0}
    made = strategies["dc_asgd"](StrategyOptions(settings=settings))
    made._now, made._squares = {"x": torch.tensor([2.0])}, {"x": torch.tensor([4.0])}
    gradient = torch.tensor([4.0])
    made._compensate("x", gradient, torch.tensor([1.0]))
    square = 0.5 * 4 + 0.5 * 16
    assert torch.allclose(gradient, torch.tensor([4.0 + 2.0 / (square + 1.0) ** 0.5 * 16]))
    assert made.state_dict()["mean_square"]["x"].item() == square


def test_double_buffering_is_sgd_with_a_delay_of_one_step():
    data = around(3, 20, spread=1.0)
    workers = train("double_buffering", data)
    path = [torch.zeros(3, dtype=torch.float64)] * 2
    for step in range(20):
        mean = sum(SCALES * (path[-2] - own[step]) for own in data) / 3
        path.append(path[-1] - LR * mean)
    for worker in workers:
        assert (worker.model.x - path[-1]).abs().max() <= 1e-12


def test_double_buffering_exchanges_while_it_computes():
    """Simulated, with an exchange that takes about as long as a batch."""
    from shoal.simulation.network import NetworkOptions

    slow = NetworkOptions(delay_s=0.004, jitter_s=0.0)
    data = around(2, 40)
    plain, overlapped = (
        train(name, data, batch_s=0.02, network=slow)[0].times[39]
        for name in ("sync", "double_buffering")
    )
    assert overlapped < 0.8 * plain


@pytest.mark.parametrize("counts", [[6, 0], [6, 4, 0]])
def test_double_buffering_keeps_workers_without_data_in_step(counts):
    batches = [own[:count] for own, count in zip(around(len(counts), 6), counts, strict=True)]
    workers = train("double_buffering", batches, epochs=3)
    assert len({len(worker.results) for worker in workers}) == 1
