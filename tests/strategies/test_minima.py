"""What holds for every strategy: the conformance suite, and the minimum of logistic regression."""

import pytest
import torch

from shoal.strategies import strategies
from shoal.tables.spec import Access
from shoal.testing.strategies import STRATEGY_LAWS
from tests.strategies.problems import FlatModel, around, logistic, logistic_data, train

SMALL = Access("sgd", {"lr": 0.05})
SETTINGS = {
    "sync": {},
    "ssp": {"staleness": 2},
    "asgd": {},
    "downpour": {"n_push": 2, "n_fetch": 2},
    "dc_asgd": {},
    "double_buffering": {},
    "model_averaging": {"tau": 4},
    "local_sgd": {"tau": 4, "after": 5},
    "fedavg": {"fraction": 0.5},
    "bmuf": {"tau": 4, "block_momentum": 0.5},
    "diloco": {"tau": 4, "outer_momentum": 0.5},
    "streaming_diloco": {"tau": 4, "fragments": 2, "outer_momentum": 0.5},
    "easgd": {"tau": 4},
    "eamsgd": {"tau": 4, "delta": 0.5},
    "gradient_coding": {"redundancy": 2},
    "allreduce": {},
    "p2p": {},
}


def test_every_strategy_is_here():
    assert SETTINGS.keys() == {*strategies}


@pytest.mark.parametrize("law", STRATEGY_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_law_holds(name, law):
    settings = {k: v for k, v in SETTINGS[name].items() if k not in ("staleness", "redundancy")}
    law(strategies[name], **settings)


@pytest.mark.parametrize("name", SETTINGS)
def test_reaches_the_minimum_of_logistic_regression(name):
    data = logistic_data()
    best = FlatModel(3, logistic)
    for _ in range(3000):
        best.gradient(data)
        best.x.sub_(best.grads["x"], alpha=0.5)
    options = {"access": Access("sgd", {"lr": 0.2}), "epochs": 20, **SETTINGS[name]}
    workers = train(name, [[data] * 20] * 4, logistic, **options)
    for worker in workers:
        assert (worker.model.x - best.x).abs().max() <= 1e-3


@pytest.mark.parametrize(
    "name", [each for each in SETTINGS if not strategies[each].traits.replicates_batches]
)
def test_uneven_splits_end_with_equal_parameters(name):
    """Splits of 100, 60 and 0 batches."""
    data = around(3, 100, spread=1.0)
    workers = train(name, [data[0], data[1][:60], []], access=SMALL, **SETTINGS[name])
    taken = [sum(result.weight > 0 for result in worker.results) for worker in workers]
    most = [100, 60, 0]
    assert all(n <= m for n, m in zip(taken, most, strict=True))
    assert taken == most or name == "fedavg"  # where some are left out
    for worker in workers[1:]:
        assert torch.equal(worker.model.x, workers[0].model.x)
