"""A job in the simulator leaves an ordinary run, on the simulated clock."""

import json

import pytest
import torch

from shoal.apps.train.simulated import measured_batch_s, simulate_job
from shoal.errors import InvalidValue
from shoal.reports.curves import curves_of
from shoal.reports.events import load_run
from shoal.runs.job import from_mapping
from shoal.runs.simulated_time import SimulatedTime
from shoal.storage.run_folder import RunFolder


def simulated(tmp_path, bandwidth=0.0, time=None, **fields):
    values = {"data": "digits", "workers": 2, "epochs": 1, "out": str(tmp_path), **fields}
    job = from_mapping(values)
    return simulate_job(job, SimulatedTime(**{"batch_s": 0.1, **(time or {})}), [], bandwidth)


@pytest.mark.parametrize("strategy", ["sync", "allreduce", "easgd"])
def test_it_leaves_what_a_run_leaves(tmp_path, strategy):
    summary = simulated(tmp_path, strategy=strategy)
    run = load_run(summary["run_dir"])
    assert run.summary["simulated"] is True
    assert run.summary["accuracy"] == run.evals[0]["accuracy"][-1]
    assert [len(steps["step"]) for steps in run.steps.values()] == [12, 12]
    assert json.loads((RunFolder(run.path).worker(1) / "result.json").read_text())["steps"] == 12


def test_its_time_is_that_of_the_slowest_worker(tmp_path):
    summary = simulated(tmp_path, time={"pace": "1,3"})
    assert 12 * 0.3 < summary["wall_s"] < 12 * 0.3 + 0.2
    curves = curves_of(load_run(summary["run_dir"]).events)
    assert 0.6 < curves.idle[0] < 0.7
    assert curves.idle[1] < 0.05


def test_each_worker_is_slow_in_turn(tmp_path):
    """Two workers of paces 1 and 3, for two batches in turn: each pair of batches takes 0.6 s."""
    summary = simulated(tmp_path, time={"pace": "1,3", "turn": 2}, strategy="sync")
    assert 12 * 0.3 < summary["wall_s"] < 12 * 0.3 + 0.2
    curves = curves_of(load_run(summary["run_dir"]).events)
    assert all(0.3 < share < 0.4 for share in curves.idle.values())
    free = simulated(tmp_path, time={"pace": "1,3", "turn": 2}, strategy="asgd")
    assert 12 * 0.2 < free["wall_s"] < 12 * 0.2 + 0.2


def test_bytes_take_their_time(tmp_path):
    """Each worker sends and receives its gradients through one server's link of 1 Mbit/s."""
    summary = simulated(tmp_path, bandwidth=1.0, time={"batch_s": 1e-6})
    through = summary["bytes_pushed"] * 8 / 1e6
    assert through < summary["wall_s"] < 2.5 * through


def test_the_same_seed_gives_the_same_run(tmp_path):
    one, other = (simulated(tmp_path, strategy="asgd", seed=3, time={"jitter": 0.3}) for _ in "ab")
    same = ("accuracy", "loss", "wall_s", "bytes_pushed", "staleness")
    assert [one[name] for name in same] == [other[name] for name in same]


def test_random_state_and_default_dtype_stay_as_they_are(tmp_path):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    simulated(tmp_path, dtype="float64")
    assert measured_batch_s(from_mapping({"data": "digits", "dtype": "float64"}), []) > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32


def test_an_error_of_a_worker_is_raised(tmp_path):
    with pytest.raises(InvalidValue, match="without checkpoints"):
        simulated(tmp_path, checkpoint_every=1)
