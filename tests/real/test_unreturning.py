"""Members without which a run has gone on, and whose processes never end by themselves."""

import os
import signal
import time

import pytest

from shoal.apps.train.command import TrainApplication
from shoal.engines.processes import Processes
from shoal.protocol.supervision import supervisor
from shoal.reports.events import read_events
from shoal.runs.ending import join_run
from shoal.runs.job import from_mapping
from shoal.runs.plan import tasks_of
from shoal.storage.run_folder import RunFolder
from tests.real.test_stragglers_ignored import steps
from tests.real.texts import text
from tests.real.waiting import until

pytestmark = pytest.mark.real

DEAD = text("unreturning.lost", name="worker-2")


@pytest.mark.parametrize(
    ("victim", "options", "told"),
    [
        (
            "worker-2",
            {"on_timeout": "drop", "sync_timeout_s": 1.0},
            text("unreturning.dropped", name="worker-2"),
        ),
        ("worker-2", {"on_worker_loss": "drop"}, DEAD),
        ("worker-2", {"strategy": "p2p", "servers": 0, "on_worker_loss": "drop"}, DEAD),
        ("server-1", {"servers": 2, "replicas": 2, "epochs": 100}, ""),
    ],
    ids=["dropped", "lost", "neighbour", "server"],
)
def test_a_run_ends_that_went_on_without_a_stopped_process(
    victim, options, told, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(supervisor, "LATE_S", 4.0)
    given = {"data": "digits", "workers": 3, "epochs": 20, "out": str(tmp_path), **options}
    job, folder = from_mapping(given), RunFolder.create(tmp_path, "stopped")
    with Processes(folder) as processes:
        for task in tasks_of(TrainApplication(job, []), processes, time.time()):
            if task.name == "scheduler":
                task.args["failure_timeout_s"] = 3.0
            processes.start(task)
        until(lambda: len(steps(folder, 2)) >= 5)
        os.kill(processes.pid(victim), signal.SIGSTOP)
        join_run(processes, job, "train")
    if told:
        assert told in caplog.text
    else:  # another takes its place, though it lives
        joined = [e.get("name") for e in read_events(folder.events) if e["kind"] == "joined"]
        assert joined.count(victim) == 2
