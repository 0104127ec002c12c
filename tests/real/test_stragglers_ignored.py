"""Gradient coding on real processes: a stopped worker changes nothing, and delays nobody."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shoal.apps.train.command import TrainApplication
from shoal.engines.processes import Processes
from shoal.reports.events import read_events
from shoal.runs.ending import join_run
from shoal.runs.job import from_mapping
from shoal.runs.plan import tasks_of
from shoal.runs.run import run_here
from shoal.storage.run_folder import RunFolder
from tests.real.waiting import until

pytestmark = pytest.mark.real

COMMON = {"data": "digits", "servers": 2, "dtype": "float64", "batch_size": 16, "epochs": 4}


def steps(folder, rank):
    """The steps that a worker has taken so far, from the event log."""
    events = read_events(folder.events) if folder.events.exists() else ()  # but one half written
    own = (event for event in events if event["node"] == f"worker-{rank}")
    return [event["step"] for event in own if event["kind"] == "step"]


def came_to(folder, rank):
    """The step that a worker has come to: it may have left out some."""
    return max(steps(folder, rank), default=0)


def weights(path):
    return torch.cat([each.flatten() for each in load_file(path).values()])


def test_a_stopped_worker_changes_nothing(tmp_path):
    job = from_mapping(
        {
            **COMMON,
            "workers": 4,
            "redundancy": 2,
            "strategy": "gradient_coding",
            "out": str(tmp_path),
        }
    )
    folder = RunFolder.create(tmp_path, "coded")
    with Processes(folder) as processes:
        for task in tasks_of(TrainApplication(job, []), processes, time.time()):
            processes.start(task)
        until(lambda: came_to(folder, 3) >= 10)
        os.kill(processes.pid("worker-3"), signal.SIGSTOP)
        seen = len(steps(folder, 3))
        last = 4 * -(-(1437 // 2) // 16)  # epochs of the batches of one block
        until(lambda: max(came_to(folder, 0), came_to(folder, 1)) >= last - 1)  # either is enough
        until(lambda: came_to(folder, 2) >= last - 1)  # alone in its group
        assert len(steps(folder, 3)) <= seen + 1
        os.kill(processes.pid("worker-3"), signal.SIGCONT)
        join_run(processes, job, "train")
    plain = run_here(
        TrainApplication(from_mapping({**COMMON, "workers": 2, "out": str(tmp_path)}), [])
    )
    expected = weights(Path(plain["run_dir"]) / "model.safetensors")
    assert (weights(folder.model) - expected).abs().max() <= 1e-6
    assert len(steps(folder, 3)) < last - 10  # what it missed it left out
