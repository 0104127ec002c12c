"""Codecs of what workers average among themselves: which parameters have one, and training."""

import pytest
import torch
from torch import nn

from shoal.errors import InvalidValue, NotFinite, UnknownName
from shoal.pytorch.model import LossModel
from shoal.simulation.training import SimulatedWorker, simulate_training
from shoal.strategies import StrategyOptions, strategies
from shoal.strategies.reduced_buffers import codecs_of
from shoal.tables.spec import Access
from tests.strategies.problems import Repeated

WORKERS = 3
SGD = Access("sgd", {"lr": 0.2})


def network():
    torch.manual_seed(0)
    layers = nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    return LossModel(nn.Sequential(*layers))


def batches(rank, steps=40):
    drawn = torch.Generator().manual_seed(7)
    teacher = torch.randn(40, 10, generator=drawn)
    drawn.manual_seed(100 + rank)
    x = torch.randn(steps, 32, 40, generator=drawn)
    return [(each, (each @ teacher).argmax(1)) for each in x]


def train(codec, strategy="allreduce", data=batches, access=SGD, **settings):
    workers = [
        SimulatedWorker(
            strategies[strategy](
                StrategyOptions(
                    access, workers=WORKERS, rank=rank, batch=32.0, codec=codec, settings=settings
                )
            ),
            network(),
            Repeated(data(rank)),
            2,
        )
        for rank in range(WORKERS)
    ]
    simulate_training(workers)
    return workers


def last_loss(workers):
    return sum(result.loss for each in workers for result in each.results[-10:]) / (10 * WORKERS)


def places(codec):
    options = StrategyOptions(codec=codec)
    return {n: sorted(of.places) for n, of in codecs_of(network(), options).items()}


def test_matrices_have_the_codec_and_vectors_do_not():
    assert places("int:8") == {"float32": [0, 2]}  # the last one has 640 elements
    assert places({"4.*": "int:8", "*": "none"}) == {"float32": [4, 5]}
    assert places({"0.weight": "onebit"}) == {"float32": [0]}
    assert places("") == places("none") == {}
    assert places("powersgd:64") == {}  # the factors would be larger
    with pytest.raises(UnknownName, match=r"1\.weight"):
        places({"1.weight": "int:8"})


def test_parameters_without_padding_are_encoded():
    [of] = codecs_of(network(), StrategyOptions(codec={"4.bias": "int:8"})).values()
    assert [each.stop - each.start for each in of.places.values()] == [10]


CODECS = ["fp16", "int:8", "qsgd:4", "onebit", "topk:0.1", "powersgd:4", "topk:0.2+int:8"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("strategy", ["allreduce", "diloco"])
def test_workers_agree_and_learn(codec, strategy):
    settings = {} if strategy == "allreduce" else {"exchange": "allreduce", "tau": 4}
    plain, workers = (train(each, strategy, **settings) for each in ("", codec))
    values = [worker.model.values["float32"] for worker in workers]
    assert all(torch.equal(each, values[0]) for each in values)
    assert last_loss(workers) < last_loss(plain) + (0.3 if "power" in codec else 0.15)
    assert not torch.equal(values[0], plain[0].model.values["float32"])


def test_workers_with_fewer_batches_or_none_take_part():
    workers = train("onebit", data=lambda rank: batches(rank)[: (40, 17, 0)[rank]])
    values = [worker.model.values["float32"] for worker in workers]
    assert all(torch.equal(each, values[0]) for each in values)
    assert [len([r for r in w.results if r.weight]) for w in workers] == [80, 34, 0]


def test_a_codec_that_begins_late_changes_nothing_before():
    late, plain = train("onebit:after=30"), train("")
    losses = [[result.loss for result in of[0].results] for of in (late, plain)]
    assert losses[0][:31] == losses[1][:31]
    assert losses[0][32:] != losses[1][32:]


def test_a_gradient_that_is_not_finite_ends_the_run_with_its_parameter():
    def broken(rank):
        found = batches(rank, 5)
        if rank == 1:
            found[3][0][:] = torch.nan
        return found

    with pytest.raises(NotFinite) as error:
        train("int:8", data=broken)
    assert "0.weight" in error.value.message or "another worker" in error.value.message


@pytest.mark.parametrize("codec", ["topk:0.01", "onebit", "powersgd:1"])
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "model_averaging"])
def test_a_small_last_batch_does_no_harm(codec, strategy):
    """One sample of 32 in the last batch, on all workers: residuals are those of whole batches."""
    if (codec, strategy) == ("powersgd:1", "sync"):
        codec = "topk:0.01+int:8"  # servers have no powersgd

    def uneven(rank):
        *most, (x, y) = batches(rank, 30)
        return [*most, (x[:1], y[:1])]

    settings = {"tau": 29, "exchange": "allreduce"} if strategy == "model_averaging" else {}
    plain, workers = (train(each, strategy, uneven, **settings) for each in ("", codec))
    assert last_loss(workers) < last_loss(plain) + 0.3


def test_a_strategy_without_servers_takes_samples_in_any_number():
    """Displacements are encoded in units of the usual weight: half precision ends at 65504."""
    workers = train("fp16", "model_averaging", tau=40, exchange="allreduce")
    plain = train("", "model_averaging", tau=40, exchange="allreduce")
    torch.testing.assert_close(
        workers[0].model.values["float32"], plain[0].model.values["float32"], rtol=2e-3, atol=2e-3
    )


def test_values_that_may_be_anything_have_no_codec():
    with pytest.raises(InvalidValue, match="nonfinite is 'reject' or 'zero'"):
        strategies["allreduce"](StrategyOptions(codec="int:8", nonfinite="allow"))


def test_a_model_that_does_not_say_where_its_parameters_are_is_refused():
    model = network()
    model.spans = {}
    with pytest.raises(InvalidValue, match="spans"):
        codecs_of(model, StrategyOptions(codec="int:8"))


def test_there_is_no_codec_of_what_nobody_pulls():
    with pytest.raises(InvalidValue, match="leave out server_codec 'int:8'"):
        strategies["allreduce"](StrategyOptions(server_codec="int:8"))
