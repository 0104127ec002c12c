"""Members without which a run has gone on, and whose processes never end by themselves."""

import os
import signal
import time

import pytest

from shoal.apps.train.command import tasks_of
from shoal.apps.train.resume import join_run
from shoal.engines import local
from shoal.engines.local import LocalEngine
from shoal.jobs.spec import from_mapping
from shoal.storage.run_folder import RunFolder
from tests.real.test_stragglers_ignored import steps
from tests.real.waiting import until

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    ("victim", "options"),
    [
        ("worker-2", {"on_timeout": "drop", "sync_timeout_s": 1.0}),
        ("worker-2", {"on_worker_loss": "drop"}),
        ("worker-2", {"strategy": "p2p", "servers": 0, "on_worker_loss": "drop"}),
        ("server-1", {"servers": 2, "replicas": 2}),
    ],
    ids=["dropped", "lost", "neighbour", "server"],
)
def test_a_run_ends_that_went_on_without_a_stopped_process(
    victim, options, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(local, "LATE_S", 0.5)
    given = {"data": "digits", "workers": 3, "epochs": 20, "out": str(tmp_path), **options}
    job, folder = from_mapping(given), RunFolder.create(tmp_path, "stopped")
    with LocalEngine(folder) as engine:
        for task in tasks_of(job, engine, [], time.time()):
            if task.name == "scheduler":
                task.args["failure_timeout_s"] = 3.0
            engine.start(task)
        until(lambda: len(steps(folder, 2)) >= 5)
        os.kill(engine.pid(victim), signal.SIGSTOP)
        join_run(engine, job, "train")
    assert f"{victim} has not ended" in caplog.text
