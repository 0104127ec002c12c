"""Equivalences: the same mathematics by different roads ends in the same weights."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from shoal.apps.train.command import TrainApplication
from shoal.apps.train.setup import load_dataset, set_up
from shoal.data.catalogue import find_source
from shoal.pytorch.model import LossModel
from shoal.runs.job import from_mapping
from shoal.runs.run import run_here
from shoal.simulation.training import SimulatedWorker, simulate_training
from shoal.strategies import StrategyOptions, strategies
from shoal.tables.spec import Access

SGD = Access("sgd", {"lr": 0.1, "momentum": 0.9})
GLOBAL_BATCH, STEPS = 64, 50


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Shares:
    """Rank's part of each global batch."""

    def __init__(self, data, per_worker, rank):
        self.data, self.per_worker, self.rank = data, per_worker, rank

    def epoch(self, epoch):
        x, y = self.data
        first = self.rank * self.per_worker
        for step in range(STEPS):
            start = (step * GLOBAL_BATCH) % (len(y) - GLOBAL_BATCH) + first
            yield x[start : start + self.per_worker], y[start : start + self.per_worker]


def digits():
    data = find_source("digits").load([])
    return data.transform(data.train_x, data.train_y)


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10))


def weights(learner):
    return torch.cat([p.detach().reshape(-1) for p in learner.module.parameters()])


def alone():
    """One process, the whole batch, torch's own optimizer."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for x, y in Shares(digits(), GLOBAL_BATCH, 0).epoch(0):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def together(strategy, workers, servers, **options):
    data = digits()
    share = GLOBAL_BATCH // workers
    made = [
        SimulatedWorker(
            strategies[strategy](StrategyOptions(SGD, **options)),
            LossModel(model()),
            Shares(data, share, rank),
        )
        for rank in range(workers)
    ]
    simulate_training(made, servers)
    return [weights(worker.model) for worker in made]


@pytest.mark.parametrize("servers", [1, 3])
def test_bsp_with_four_workers_equals_one_process_with_the_large_batch(servers):
    """Issue 2, bar 4: 4 x 16 against 1 x 64 over the same 50 batches, float64."""
    expected = alone()
    for each in together("sync", 4, servers):
        assert (each - expected).abs().max() <= 1e-6


def test_ssp_0_equals_bsp_if_pushes_are_applied_at_the_rounds_end():
    bsp = together("sync", 4, 2)
    ssp = together("ssp", 4, 2, staleness=0, apply_at="round_end")
    for one, other in zip(bsp, ssp, strict=True):
        assert torch.equal(one, other)


def job_of(tmp_path, **options):
    return from_mapping(
        {
            "data": "digits",
            "workers": 3,
            "servers": 2,
            "epochs": 2,
            "dtype": "float64",
            "batch_size": 32,
            "out": str(tmp_path),
            **options,
        }
    )


def simulate_job(job):
    dataset = load_dataset(job, [])
    workers = []
    for rank in range(job.workers):
        begun = set_up(job, dataset, rank)
        workers.append(SimulatedWorker(begun.strategy, begun.model, begun.batches, job.epochs))
    simulate_training(workers, job.servers)
    return workers


@pytest.mark.real
def test_a_simulated_run_equals_a_real_one(tmp_path):
    job = job_of(tmp_path)
    torch.set_num_threads(1)
    summary = run_here(TrainApplication(job, []))
    workers = simulate_job(job)
    real = load_file(Path(summary["run_dir"]) / "model.safetensors")
    for name, value in workers[0].model.module.state_dict().items():
        assert (value - real[name]).abs().max() <= 1e-12, name
    events = (Path(summary["run_dir"]) / "events.jsonl").read_text().splitlines()
    losses = [
        event["loss"]
        for event in map(json.loads, events)
        if event["kind"] == "step" and event["node"] == "worker-1"
    ]
    simulated = [result.loss for result in workers[1].results if result.weight]
    assert losses == pytest.approx(simulated, abs=1e-12)


@pytest.mark.parametrize("strategy", ["sync", "ssp", "asgd"])
def test_uneven_splits_leave_all_workers_with_equal_parameters(strategy, tmp_path):
    """Splits of about 100, 60 and 0 batches; every worker leaves with the same parameters."""
    job = job_of(
        tmp_path, assignment="static:5,3,0", batch_size=9, epochs=1, block_size=9, strategy=strategy
    )
    workers = simulate_job(job)
    steps = [sum(result.weight > 0 for result in worker.results) for worker in workers]
    assert steps[0] > steps[1] > steps[2] == 0
    assert torch.equal(weights(workers[0].model), weights(workers[1].model))
    assert torch.equal(weights(workers[0].model), weights(workers[2].model))


@pytest.mark.real
def test_uneven_splits_under_allreduce_equal_sync(tmp_path):
    job = job_of(
        tmp_path,
        assignment="static:5,3,0",
        batch_size=9,
        epochs=1,
        block_size=9,
        strategy="allreduce",
    )
    summary = run_here(TrainApplication(job, []))
    real = load_file(Path(summary["run_dir"]) / "model.safetensors")
    workers = simulate_job(job.replace({"strategy": "sync"}))
    for name, value in workers[0].model.module.state_dict().items():
        assert (value - real[name]).abs().max() <= 1e-9, name
