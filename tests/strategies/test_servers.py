"""Strategy "sync" without its slowest workers, and with a worker whose gradients are wrong."""

import pytest
import torch

from shoal.errors import InvalidValue
from shoal.protocol.machine import Outcome
from shoal.pytorch.model import LossModel
from shoal.strategies import StrategyOptions, strategies
from shoal.transport.arena import arena
from tests.strategies.problems import CENTRE, SGD, FlatModel, Repeated, around, quadratic, train


def test_a_step_goes_on_without_a_slow_worker():
    """Backup workers: one of four takes ten times as long."""
    slow, data = [0.01, 0.01, 0.01, 0.1], around(4, 40)
    waits = train("sync", data, batch_s=slow)
    goes_on = train("sync", data, batch_s=slow, quorum=3)
    assert goes_on[0].times[39] < 0.2 * waits[0].times[39]
    assert all(torch.equal(each.model.x, goes_on[0].model.x) for each in goes_on)
    assert (goes_on[0].model.x - CENTRE).abs().max() < 0.5


def test_a_late_worker_goes_on_with_the_present_step():
    """What it pushes counts again: it does not stay behind for ever."""
    data = around(3, 30)
    workers = train("sync", data, batch_s=[0.01, 0.01, 0.035], quorum=2, servers=1)
    assert workers[2].strategy.clock >= workers[0].strategy.clock - 2


@pytest.mark.parametrize(("name", "settings"), [("sync", {}), ("diloco", {"tau": 4})])
def test_with_a_quorum_a_slow_worker_costs_no_time(name, settings):
    """It leaves out the batches of rounds that have closed, in every epoch."""
    data = around(4, 24)
    even = train(name, data, epochs=3, quorum=3, **settings)
    slow = train(name, data, epochs=3, quorum=3, batch_s=[0.01, 0.01, 0.01, 0.04], **settings)
    done = max(worker.ended_s for worker in slow)
    assert done <= 1.2 * max(worker.ended_s for worker in even)
    assert all(torch.equal(each.model.x, slow[0].model.x) for each in slow)
    assert 5 < sum(result.weight > 0 for result in slow[3].results) <= 40  # of 72
    assert (slow[0].model.x - even[0].model.x).abs().max() <= 1e-9  # all have like data


def test_in_the_grace_window_a_late_gradient_counts():
    slow, data = [0.01, 0.01, 0.014], around(3, 20, spread=1.0)
    everybody = train("sync", data, batch_s=slow)
    patient = train("sync", data, batch_s=slow, quorum=2, grace_s=0.02)
    hasty = train("sync", data, batch_s=slow, quorum=2)
    assert torch.equal(patient[0].model.x, everybody[0].model.x)
    assert not torch.equal(hasty[0].model.x, everybody[0].model.x)


def poisoned(merge, **more):
    """Eight workers, of which one pushes -50 times its gradient."""
    from shoal.simulation.training import SimulatedWorker, simulate_training

    class Poisoned(FlatModel):
        def gradient(self, batch):
            found = super().gradient(batch)
            self.grads["x"].mul_(-50.0)
            return found

    settings = {"merge": merge, **more}
    workers = [
        SimulatedWorker(
            strategies["sync"](StrategyOptions(SGD, workers=8, settings=settings)),
            (Poisoned if rank == 3 else FlatModel)(3, quadratic),
            Repeated(own),
            4,
        )
        for rank, own in enumerate(around(8, 60, spread=0.1))
    ]
    simulate_training(workers, 2)
    return (workers[0].model.x - CENTRE).abs().max().item()


def test_one_wrong_worker_of_eight_does_no_harm_to_robust_merges():
    begin = CENTRE.abs().max().item()
    assert poisoned("mean") > begin  # it goes away from the minimum
    assert poisoned("median") < 0.9 * begin
    clean = train("sync", around(8, 60, spread=0.1), epochs=4, merge="median")
    off = (clean[0].model.x - CENTRE).abs().max().item()
    assert poisoned("median") == pytest.approx(off, abs=0.05)
    assert poisoned("trimmed_mean", trim=0.125) == pytest.approx(off, abs=0.05)


# ---------------------------------------------------------------------------- gradient coding


def coded(batch_s, count=30, lengths=(30, 30), epochs=1):
    one, other = around(2, count, spread=1.0)
    data = [one[: lengths[0]]] * 2 + [other[: lengths[1]]] * 2
    workers = train("gradient_coding", data, batch_s=batch_s, redundancy=2, epochs=epochs)
    return workers, (one, other)


@pytest.mark.parametrize("straggler", [0, 1, 3])
@pytest.mark.parametrize("times", [3.0, 50.0])
def test_stragglers_change_nothing(straggler, times):
    """Four workers, two copies of each block: exactly what two workers compute, in their time."""
    seconds = [0.01] * 4
    seconds[straggler] *= times
    workers, data = coded(seconds)
    expected = train("sync", list(data))
    for worker in workers:
        assert (worker.model.x - expected[0].model.x).abs().max() <= 1e-6
    even, _ = coded([0.01] * 4)
    done = max(workers[rank].times[29] for rank in range(4) if rank != straggler)
    assert done <= 1.2 * max(worker.times[29] for worker in even)


def test_late_workers_of_both_groups_take_turns():
    """Each is late for some steps: whoever is first counts, with the batch of that step."""

    def turn(rank):
        return lambda at: 0.03 if (at // 4) % 2 == rank % 2 else 0.01

    workers, data = coded([turn(rank) for rank in range(4)])
    expected = train("sync", list(data))
    for worker in workers:
        assert (worker.model.x - expected[0].model.x).abs().max() <= 1e-6


def test_groups_may_have_unlike_numbers_of_batches():
    workers, (one, other) = coded([0.01, 0.03, 0.01, 0.01], lengths=(30, 17))
    expected = train("sync", [one, other[:17]])
    for worker in workers:
        assert (worker.model.x - expected[0].model.x).abs().max() <= 1e-6


@pytest.mark.parametrize("straggler", [0, 1, 2])
@pytest.mark.parametrize("lengths", [(30, 17), (17, 30)])
def test_a_late_worker_comes_back_in_step_over_the_end_of_an_epoch(straggler, lengths):
    """Its group may be at its end while the other one goes on, or in the next epoch."""
    seconds = [0.01] * 4
    seconds[straggler] *= 7
    workers, (one, other) = coded(seconds, lengths=lengths, epochs=4)
    expected = train("sync", [one[: lengths[0]], other[: lengths[1]]], epochs=4)
    for worker in workers:
        assert (worker.model.x - expected[0].model.x).abs().max() <= 1e-6


@pytest.mark.parametrize(("workers", "redundancy"), [(4, 1), (5, 2), (3, 2)])
def test_groups_have_to_come_out_even(workers, redundancy):
    options = StrategyOptions(workers=workers, redundancy=redundancy)
    with pytest.raises(InvalidValue, match=f"{workers} workers and redundancy {redundancy} make"):
        strategies["gradient_coding"](options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quorum": 3}, "quorum 3 is more than the 2 workers"),
        ({"grace_s": 1.0}, "give quorum as well"),
        ({"quorum": -1}, "setting quorum of strategy 'sync': expected `int` >= 0"),
        ({"merge": "max"}, "setting merge of strategy 'sync': invalid enum value 'max'"),
    ],
)
def test_what_cannot_work_is_refused(settings, message):
    with pytest.raises(InvalidValue, match=message):
        strategies["sync"](StrategyOptions(workers=2, settings=settings))


@pytest.mark.parametrize(
    "name", ["sync", "ssp", "asgd", "dc_asgd", "downpour", "double_buffering", "bmuf", "easgd"]
)
def test_what_a_strategy_pushes_is_in_memory_that_servers_read_in_place(name):
    strategy = strategies[name](StrategyOptions(workers=2))
    model = LossModel(torch.nn.Linear(100, 100))
    begun = strategy.begin(model, 0)
    try:
        begun.send(None)
        while True:
            begun.send(Outcome())
    except StopIteration:
        pass
    ops = getattr(strategy, "_buffers", None) or strategy._ops
    pushes = ops.pushes({}, {})
    assert pushes
    assert all(arena.find(each.values) for each in pushes)
