"""The conformance suite of strategies: what any training strategy does, in the simulator.

Each law takes a strategy class, and settings if its defaults do not suit a small problem::

    for law in STRATEGY_LAWS:
        law(MyStrategy, tau=4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.simulation.training import SimulatedWorker, simulate_training
from shoal.strategies import Strategy, StrategyOptions
from shoal.strategies.base import WIRE_TAIL, Numbers
from shoal.tables.spec import Access, Span

SCALES, CENTRE = (1.0, 2.0, 0.5), (3.0, -1.0, 2.0)
NEAR = 1e-3
SGD = Access("sgd", {"lr": 0.05})


class Quadratic:
    """A `Model`: f(x) = sum_j s_j (x_j - b_j)^2 / 2 for a batch b, in float64, from x = 0."""

    def __init__(self) -> None:
        self.values = {"x": torch.zeros(len(SCALES), dtype=torch.float64)}
        self.wires = {"x": torch.zeros(len(SCALES) + WIRE_TAIL, dtype=torch.float64)}
        self.grads = {"x": self.wires["x"][:-WIRE_TAIL]}
        self.spans: dict[str, tuple[Span, ...]] = {}
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}
        self.absent: Numbers = {}
        self.idle: tuple[str, ...] = ()
        self._scales = torch.tensor(SCALES, dtype=torch.float64)

    def gradient(self, batch: Tensor) -> tuple[float, float]:
        off = self.values["x"] - batch
        self.grads["x"].copy_(self._scales * off)
        return float((self._scales * off**2).sum() / 2), 1.0


class _Batches:
    def __init__(self, batches: Sequence[Tensor]) -> None:
        self._batches = batches

    def epoch(self, epoch: int) -> Iterator[Tensor]:
        return iter(self._batches)


def _run(
    kind: type[Strategy],
    counts: Sequence[int],
    settings: dict[str, Any],
    epochs: int,
    spread: float,
) -> list[SimulatedWorker]:
    """Train a worker for each number of batches, which are around the centre."""
    drawn = torch.Generator().manual_seed(1)
    groups = max(counts)
    noise = torch.randn(len(counts), groups, len(SCALES), generator=drawn, dtype=torch.float64)
    batches = torch.tensor(CENTRE, dtype=torch.float64) + spread * noise
    copies = 2 if kind.traits.replicates_batches else 1
    workers = [
        SimulatedWorker(
            kind(
                StrategyOptions(
                    SGD, workers=len(counts), rank=rank, redundancy=copies, settings=settings
                )
            ),
            Quadratic(),
            _Batches(list(batches[rank // copies][:count])),
            epochs,
            0.01 * (1 + rank),
        )
        for rank, count in enumerate(counts)
    ]
    simulate_training(workers, servers=2)
    return workers


def reaches_the_minimum(kind: type[Strategy], **settings: Any) -> None:
    """Check that all workers end at the minimum if all have the same data."""
    for worker in _run(kind, [20] * 4, settings, epochs=20, spread=0.0):
        off = (worker.model.values["x"] - torch.tensor(CENTRE, dtype=torch.float64)).abs().max()
        assert off <= NEAR, f"{kind.name} ends {off:g} from the minimum"


def ends_with_equal_parameters(kind: type[Strategy], **settings: Any) -> None:
    """Check that all workers end with the same parameters, also where their data differ."""
    one, *others = _run(kind, [30] * 4, settings, epochs=2, spread=1.0)
    for worker in others:
        assert torch.equal(worker.model.values["x"], one.model.values["x"]), kind.name


def bears_uneven_splits(kind: type[Strategy], **settings: Any) -> None:
    """Check that workers with fewer batches, or none, neither wait for ever nor hold others up."""
    counts = [40, 40, 10, 10] if kind.traits.replicates_batches else [40, 24, 0]
    for count, worker in zip(counts, _run(kind, counts, settings, 2, 1.0), strict=True):
        taken = sum(result.weight > 0 for result in worker.results)
        assert taken <= 2 * count, f"{kind.name} took {taken} batches of {2 * count}"


def a_seed_gives_one_run(kind: type[Strategy], **settings: Any) -> None:
    """Check that the same seed gives the same run, bit for bit."""
    one, other = (_run(kind, [13] * 4, settings, epochs=2, spread=1.0) for _ in range(2))
    for first, second in zip(one, other, strict=True):
        assert first.times == second.times, kind.name
        assert torch.equal(first.model.values["x"], second.model.values["x"]), kind.name


def says_what_it_is(kind: type[Strategy], **settings: Any) -> None:
    """Check that a strategy has a name and a summary, and without servers counts its exchanges."""
    assert kind.name, f"{kind.__name__} needs a name"
    assert kind.summary, f"{kind.name} needs a summary"
    worker = _run(kind, [8] * 4, settings, epochs=1, spread=1.0)[0]
    if not worker.strategy.traits.uses_servers:
        assert worker.strategy.clock, f"{kind.name} counts no `clock`, and would have no checkpoint"


def its_state_is_restored(kind: type[Strategy], **settings: Any) -> None:
    """Check that another strategy of the kind, new or used, loads what `state_dict` returned."""
    saved = _run(kind, [8] * 4, settings, epochs=1, spread=1.0)[0].strategy
    used = _run(kind, [3] * 4, settings, epochs=1, spread=2.0)[0].strategy
    kind(saved.options).load_state_dict(saved.state_dict())
    used.load_state_dict(saved.state_dict())
    lost = _unlike(used.state_dict(), saved.state_dict())
    assert not lost, f"{kind.name} does not restore {lost}"


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> list[str]:
    """Return the names of the entries in which two states differ."""
    found = [f"{path}{name}" for name in one.keys() ^ other.keys()]
    for name in one.keys() & other.keys():
        mine, theirs = one[name], other[name]
        if isinstance(mine, Mapping):
            found += _unlike(mine, theirs, f"{path}{name}/")
        elif not torch.equal(torch.as_tensor(mine), torch.as_tensor(theirs)):
            found.append(f"{path}{name}")
    return sorted(found)


Law = Callable[..., None]
STRATEGY_LAWS: tuple[Law, ...] = (
    reaches_the_minimum,
    ends_with_equal_parameters,
    bears_uneven_splits,
    a_seed_gives_one_run,
    says_what_it_is,
    its_state_is_restored,
)
