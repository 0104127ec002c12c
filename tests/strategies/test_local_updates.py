"""Local-update strategies against each other, and against their papers' recursions."""

import pytest
import torch

from shoal.errors import InvalidValue, UnknownName
from shoal.protocol.machine import Outcome
from shoal.strategies import StrategyOptions, strategies
from shoal.testing.strategies import its_state_is_restored
from tests.strategies.problems import SCALES, around, smooth, train

LR = 0.1
DATA = around(3, 12, spread=1.0)


def final(name, batches=DATA, **settings):
    return train(name, batches, smooth, **settings)[0].model.x


def close(one, other):
    return (one - other).abs().max() <= 1e-6


def test_averaging_after_every_step_is_synchronous_sgd():
    assert close(final("model_averaging", tau=1), final("sync"))


def test_post_local_sgd_is_synchronous_before_and_averaging_after():
    assert close(final("local_sgd", tau=4, after=1000), final("sync"))
    assert torch.equal(final("local_sgd", tau=4, after=0), final("model_averaging", tau=4))
    assert not close(final("local_sgd", tau=4, after=3), final("model_averaging", tau=4))


def test_fedavg_of_all_workers_is_averaging_once_an_epoch():
    assert torch.equal(final("fedavg", epochs=2), final("model_averaging", tau=12, epochs=2))


def test_fedavg_takes_several_local_epochs():
    twice = [own + own for own in DATA]
    assert close(final("fedavg", epochs=4, local_epochs=2), final("fedavg", twice, epochs=2))


def test_the_average_is_weighted_by_samples():
    """Two workers of 9 and 3 batches whose gradients do not change: 3/4 and 1/4."""
    one, other = DATA[0][:1] * 9, DATA[1][:1] * 3
    x = final("model_averaging", [one, other], tau=100)
    ends = []
    for own in (one, other):
        at = torch.zeros(3, dtype=torch.float64)
        for batch in own:
            at = at - LR * SCALES * torch.tanh(at - batch)
        ends.append(at)
    assert close(x, (9 * ends[0] + 3 * ends[1]) / 12)


@pytest.mark.parametrize("fraction", [0.34, 0.67, 1.0])
def test_as_many_clients_as_are_asked_for_take_part_in_a_round(fraction):
    workers = train("fedavg", DATA, epochs=6, fraction=fraction)
    for epoch in range(6):
        steps = slice(12 * epoch, 12 * (epoch + 1))
        weights = [sum(r.weight for r in w.results[steps]) for w in workers]
        assert sorted(set(weights)) in ([0.0, 12.0], [12.0])
        assert sum(weight > 0 for weight in weights) == max(1, round(3 * fraction))


# ---------------------------------------------------------------------------- BMUF


def blocks(start, tau=4):
    """The displacement of each worker in each block: a function of where the block starts."""

    def displacement(at, worker, block):
        x = at.clone()
        for batch in DATA[worker][block * tau : (block + 1) * tau]:
            x = x - LR * SCALES * torch.tanh(x - batch)
        return x - at

    x, history = start, []
    for block in range(3):
        history.append((yield x, [displacement(x, worker, block) for worker in range(3)]))
        x = history[-1]
    return x


def bmuf(eta, zeta, nesterov):
    """Chen & Huo 2016: G the mean displacement, Delta = eta Delta' + zeta G."""
    weights, delta = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    running = blocks(weights)
    _, moves = next(running)
    while True:
        delta = eta * delta + zeta * sum(moves) / 3
        weights = weights + delta
        try:
            _, moves = running.send(weights + eta * delta if nesterov else weights)
        except StopIteration as stop:
            return stop.value


@pytest.mark.parametrize(
    ("eta", "zeta", "nesterov"),
    [(0.5, 1.0, False), (0.5, 1.0, True), (2 / 3, 0.7, False), (2 / 3, 0.7, True), (0, 1.0, False)],
)
def test_bmuf_is_the_papers_recursion(eta, zeta, nesterov):
    settings = {"tau": 4, "block_momentum": float(eta), "block_lr": zeta, "nesterov": nesterov}
    assert close(final("bmuf", **settings), bmuf(eta, zeta, nesterov))


def test_the_form_with_one_smoothing_factor():
    """d = m d' + (1 - m) lr sum G over N workers: eta = m, zeta = (1 - m) lr N."""
    m, lr, workers = 0.6, 0.8, 3
    weights, d = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    running = blocks(weights)
    _, moves = next(running)
    while True:
        d = m * d + (1 - m) * lr * sum(moves)
        weights = weights + d
        try:
            _, moves = running.send(weights)
        except StopIteration as stop:
            expected = stop.value
            break
    zeta = (1 - m) * lr * workers
    assert close(final("bmuf", tau=4, block_momentum=m, block_lr=zeta), expected)


def test_neutral_values_are_plain_averaging():
    plain = final("model_averaging", tau=4)
    assert close(final("bmuf", tau=4, block_momentum=0.0, block_lr=1.0), plain)
    assert close(final("diloco", tau=4, outer_momentum=0.0, outer_lr=1.0), plain)


def test_the_usual_block_momentum_goes_by_the_number_of_workers():
    made = strategies["bmuf"](StrategyOptions(workers=4))
    assert made.momentum == 0.75


# ---------------------------------------------------------------------------- rounds and settings


def test_a_quorum_goes_on_without_a_slow_worker():
    slow = [0.01, 0.01, 0.1]
    waits = train("diloco", DATA, tau=4, batch_s=slow, epochs=4)
    goes_on = train("diloco", DATA, tau=4, batch_s=slow, epochs=4, quorum=2)
    assert goes_on[0].ended_s <= waits[0].ended_s
    assert goes_on[0].times[11] < 0.5 * waits[0].times[11]
    assert torch.equal(goes_on[0].model.x, goes_on[2].model.x)


def test_what_comes_late_goes_into_the_present_round():
    """One worker four times as slow: with mode async its steps count, and it delays nobody."""
    slow = [0.01, 0.01, 0.04]
    batches = [DATA[0] * 8, DATA[1] * 8, DATA[2] * 2]  # as many as each does in that time
    workers = train("diloco", batches, smooth, tau=4, batch_s=slow, mode="async", outer_lr=0.5)
    dropped = train("diloco", batches, smooth, tau=4, batch_s=slow, quorum=2, outer_lr=0.5)
    assert workers[0].times[95] < 1.3 * 96 * 0.01  # alone it takes 96 batches
    assert all(torch.equal(each.model.x, workers[0].model.x) for each in workers)
    assert not torch.equal(workers[0].model.x, dropped[0].model.x)
    assert workers[2].strategy.clock >= workers[0].strategy.clock - 4


@pytest.mark.parametrize("exchange", ["servers", "allreduce"])
@pytest.mark.parametrize(("epochs", "rounds"), [(4, 2), (5, 3)])
def test_a_round_of_fedavg_is_one_exchange(exchange, epochs, rounds):
    """Of all workers, also those without data; what is left at the end has a round of its own."""
    batches = [own[:count] for own, count in zip(around(3, 8), (8, 5, 0), strict=True)]
    workers = train("fedavg", batches, epochs=epochs, local_epochs=2, exchange=exchange)
    assert {worker.strategy.clock for worker in workers} == {rounds}
    assert all(torch.equal(each.model.x, workers[0].model.x) for each in workers)


def test_all_clients_are_at_one_step_of_the_rates_schedule():
    """Also those that were not drawn for a round."""
    workers = train("fedavg", around(4, 6), epochs=5, fraction=0.5)
    assert {worker.strategy.state_dict()["updates"] for worker in workers} == {30}
    assert len({sum(each.weight > 0 for each in worker.results) for worker in workers}) > 1


def test_a_displacement_counts_less_by_the_rounds_that_it_is_late():
    """Also where it is alone in its round, whose mean no weight changes."""
    made = strategies["diloco"](
        StrategyOptions(workers=4, settings={"mode": "async", "staleness_power": 0.5})
    )
    made._moved, made.clock = {"x": torch.tensor([4.0, -2.0])}, 2
    asking = made._round_for(32.0)
    next(asking)
    with pytest.raises(StopIteration) as found:
        asking.send(Outcome(clock_min=5))
    assert found.value.value == (5, 32.0)
    assert made._moved["x"].tolist() == [2.0, -1.0]


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        (
            "diloco",
            {"H": 4},
            UnknownName,
            "unknown setting of strategy 'diloco' 'H' .known: exchange, grace_s",
        ),
        (
            "diloco",
            {"tau": 0},
            InvalidValue,
            "setting tau of strategy 'diloco': expected `int` >= 1",
        ),
        ("diloco", {"tau": 1.5}, InvalidValue, "setting tau of strategy 'diloco': expected `int`"),
        ("bmuf", {"block_momentum": -0.5}, InvalidValue, "between 0 and 1, or -1, not -0.5"),
        ("fedavg", {"fraction": 0}, InvalidValue, "expected `float` > 0.0"),
        ("asgd", {"tau": 2}, UnknownName, "unknown setting of strategy 'asgd' 'tau'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(name, settings, error, message):
    with pytest.raises(error, match=message):
        strategies[name](StrategyOptions(settings=settings))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("model_averaging", {"tau": 5}),
        ("local_sgd", {"tau": 5, "after": 3}),
        ("fedavg", {"fraction": 0.6}),
        ("bmuf", {"tau": 4, "nesterov": True}),
        ("diloco", {"tau": 5, "outer_momentum": 0.5}),
    ],
)
def test_without_servers_it_is_the_same_algorithm(name, settings):
    """Uneven splits, two epochs, an outer optimizer with a state: servers, and an allreduce."""
    batches = [each[:count] for each, count in zip(around(3, 20, 1.0), (20, 13, 0), strict=True)]
    through = train(name, batches, smooth, epochs=2, **settings)
    without = train(name, batches, smooth, epochs=2, exchange="allreduce", **settings)
    for one, other in zip(through, without, strict=True):
        assert torch.allclose(one.model.x, other.model.x, rtol=1e-12, atol=1e-13)
        assert [r.loss for r in one.results if r.weight] == pytest.approx(
            [r.loss for r in other.results if r.weight], rel=1e-10
        )
        assert torch.equal(other.model.x, without[0].model.x)


@pytest.mark.parametrize("more", [{"mode": "async"}, {"quorum": 1}])
def test_an_allreduce_waits_for_all(more):
    with pytest.raises(InvalidValue, match="'allreduce' waits for all"):
        strategies["diloco"](StrategyOptions(workers=2, settings={"exchange": "allreduce", **more}))


@pytest.mark.parametrize("name", ["diloco", "bmuf"])
def test_without_servers_the_outer_optimizer_is_in_the_state(name):
    momentum = {"diloco": "outer_momentum", "bmuf": "block_momentum"}[name]
    its_state_is_restored(strategies[name], tau=4, exchange="allreduce", **{momentum: 0.5})
