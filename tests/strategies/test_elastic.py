"""Elastic averaging against the paper's algorithm, and what moves between workers and centre."""

import pytest
import torch

from shoal.errors import InvalidValue
from shoal.protocol.requests import Exchange
from shoal.pushes import Door
from shoal.simulation.network import NetworkOptions
from shoal.strategies import StrategyOptions, strategies
from shoal.strategies.elastic import EASGD
from shoal.tables.spec import Access
from tests.strategies.problems import SCALES, around, train

LR = 0.1


def algorithm_2(batches, tau, alpha, delta=0.0):
    """Zhang et al. 2015, algorithm 2 for one worker; with delta = 0 it is algorithm 1."""
    x, centre, velocity = (torch.zeros(3, dtype=torch.float64) for _ in range(3))
    for t, batch in enumerate(batches):
        gradient = SCALES * (x + delta * velocity - batch)
        if t % tau == 0:
            move = alpha * (x - centre)
            x, centre = x - move, centre + move
        velocity = delta * velocity - LR * gradient
        x = x + velocity
    return centre


@pytest.mark.parametrize("tau", [1, 3])
def test_one_worker_follows_the_papers_algorithm(tau):
    [own] = around(1, 20, spread=1.0)
    [worker] = train("easgd", [own], tau=tau, beta=0.4)
    assert (worker.model.x - algorithm_2(own, tau, 0.4)).abs().max() <= 1e-12


def test_momentum_of_the_workers():
    [own] = around(1, 20, spread=1.0)
    [worker] = train("eamsgd", [own], tau=2, beta=0.4, delta=0.9)
    assert (worker.model.x - algorithm_2(own, 2, 0.4, 0.9)).abs().max() <= 1e-12
    [plain] = train("eamsgd", [own], tau=2, beta=0.4, delta=0.0)
    [elastic] = train("easgd", [own], tau=2, beta=0.4)
    assert (plain.model.x - elastic.model.x).abs().max() <= 1e-12


class Watched(EASGD):
    """Adds up what its workers have moved by."""

    total = torch.zeros(3, dtype=torch.float64)

    def _meet(self, model):
        before = model.values["x"].clone()
        yield from super()._meet(model)
        Watched.total += before - model.values["x"]


def moved(monkeypatch, kind, **options):
    """How far the centre is from where it should be: the beginning and all that workers gave."""
    monkeypatch.setattr(Watched, "total", torch.zeros(3, dtype=torch.float64))
    monkeypatch.setitem(strategies._known, "watched", kind)
    workers = train(
        "watched", around(4, 24, spread=1.0), tau=2, batch_s=[0.01, 0.013, 0.02, 0.05], **options
    )
    return (workers[0].model.x - Watched.total).abs().max()


@pytest.mark.parametrize("seed", range(4))
def test_the_centre_moves_by_what_the_workers_move(monkeypatch, seed):
    """Equal and opposite, also where messages are lost and come twice."""
    bad = NetworkOptions(loss=0.05, duplicate=0.05, reorder=0.3, jitter_s=0.01)
    assert moved(monkeypatch, Watched, network=bad, seed=seed) <= 1e-12


@pytest.mark.parametrize("codec", ["onebit", "qsgd:4", "int:4"])
def test_with_a_codec_workers_move_by_what_servers_decode(monkeypatch, codec):
    assert moved(monkeypatch, Watched, codec=codec) <= 1e-12
    monkeypatch.setattr(Door, "_decodes", lambda self, ask, pushes: None, raising=True)
    assert moved(monkeypatch, Watched, codec=codec) > 1e-3


def test_a_worker_that_pushes_before_it_pulls_breaks_that(monkeypatch):
    """It pushes a move that it has made of an older centre, and makes another one itself."""

    class PushesFirst(Watched):
        def _meet(self, model):
            before = model.values["x"].clone()
            for buffer, values in model.values.items():
                self._moves[buffer].copy_(values).sub_(self._centre[buffer]).mul_(self.alpha)
            yield Exchange(self._ops.pushes({}), advance=True)
            yield Exchange(pulls=self._ops.pulls)
            for buffer, values in model.values.items():
                values.sub_(self.alpha * (values - self._centre[buffer]))
            Watched.total += before - model.values["x"]

    assert moved(monkeypatch, PushesFirst) > 1e-3


def test_what_cannot_work_is_refused():
    with pytest.raises(InvalidValue, match=r"beta 3\.0 of 2 workers is alpha = 1\.5"):
        strategies["easgd"](StrategyOptions(workers=2, settings={"beta": 3.0}))
    with pytest.raises(InvalidValue, match="add --optimizer sgd"):
        strategies["eamsgd"](StrategyOptions(Access("adam"), workers=2))

    with pytest.raises(InvalidValue, match="leave out the optimizer's"):
        strategies["eamsgd"](StrategyOptions(Access("sgd", {"momentum": 0.9}), workers=2))


@pytest.mark.parametrize("name", ["easgd", "eamsgd"])
def test_a_state_that_is_loaded_later_is_the_models(name):
    [own] = around(1, 8, spread=1.0)
    [one], [other] = (train(name, [own[:count]], tau=2) for count in (5, 8))
    one.strategy.load_state_dict(other.strategy.state_dict())
    assert torch.equal(one.strategy.state_dict()["values"]["x"], other.model.x)
    assert torch.equal(one.model.x, other.model.x)
