"""What ranks of a launcher cannot be asked for."""

from pathlib import Path

import msgspec
import pytest

from shoal.apps.script import ScriptApplication, ScriptRun
from shoal.apps.train.command import TrainApplication
from shoal.engines.base import Task
from shoal.engines.launchers.world import World
from shoal.errors import InvalidValue, NotTrusted
from shoal.runs.job import from_mapping
from shoal.runs.options import RunOptions
from shoal.runs.ranks import check_folders, check_ranked, check_worker, lost_ranks
from shoal.storage.event_log import EventLog
from shoal.storage.run_folder import RunFolder


def world(launcher):
    return World(launcher, 1, 4, 1, 4, "")


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "srun"])
def test_each_rank_is_a_worker(launcher):
    check_ranked(world(launcher), RunOptions(workers=4))
    with pytest.raises(InvalidValue, match="--workers 3 in a world of 4"):
        check_ranked(world(launcher), RunOptions(workers=3))


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "srun"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"on_worker_loss": "replace"}, "--on-worker-loss replace"),
        ({"slow_workers": "backup"}, "--slow-workers backup"),
    ],
)
def test_nobody_starts_a_rank_again(launcher, options, told):
    with pytest.raises(InvalidValue, match=f"{told}: {launcher} starts no worker again"):
        check_ranked(world(launcher), RunOptions(workers=4, **options))


@pytest.mark.parametrize("value", ["drop", "reassign"])
def test_a_rank_is_dropped_only_where_the_launcher_lets_the_others_go_on(value):
    options = RunOptions(workers=4, on_worker_loss=value)
    check_ranked(world("srun"), options)
    for launcher in ("torchrun", "mpirun"):
        with pytest.raises(InvalidValue, match=f"{launcher} ends all ranks when one fails; srun"):
            check_ranked(world(launcher), options)


def test_lost_ranks_are_the_workers_that_the_scheduler_has_lost(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    log = EventLog(folder.events, "scheduler", 0.0)
    log.write("lost", name="worker-2", how="silence", launch="")
    log.write("lost", name="server-1", how="silence", launch="")
    log.write("lost", name="guests/worker-1", how="silence", launch="")
    log.write("dropped", name="worker-3")
    log.close()
    assert lost_ranks(folder) == {2, 3}


def test_a_worker_from_a_store_runs_no_other_code_than_this_rank_was_asked_to(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    ran = ScriptApplication(script, ["--lr", "1"], ScriptRun())
    own = {"script": str(script), "args": ["--lr", "1"]}
    trains = TrainApplication(from_mapping({"data": "digits"}), [])
    spec = msgspec.to_builtins(trains.spec.resolved)
    folder, env = tmp_path / "run", {"SHOAL_RUN_DIR": str(tmp_path / "run")}
    job = {"spec": spec, "folder": str(folder)}
    goes_on = TrainApplication(from_mapping({"data": "digits", "resume": "before"}), [])
    resumed = {**job, "spec": msgspec.to_builtins(goes_on.spec.resolved)}
    fits = [
        (Task("worker-1", ran.entry, own, env={**env, "SHOAL_RANK": "1"}), ran),
        (Task("worker-1", trains.entry, job), trains),
        (Task("worker-1", goes_on.entry, resumed), goes_on),
        (
            Task("worker-1", goes_on.entry, {**resumed, "before": str(Path("before").resolve())}),
            goes_on,
        ),
        (
            Task("worker-1", goes_on.entry, {**resumed, "before": f"{folder}/inputs/before"}),
            goes_on,
        ),
    ]
    for task, application in fits:
        check_worker(task, application, folder)
    for task, application in (
        (Task("worker-1", "os:system", own, env=env), ran),
        (Task("worker-1", ran.entry, {**own, "script": "/tmp/theirs.py"}, env=env), ran),
        (Task("worker-1", ran.entry, own, env={**env, "PYTHONPATH": "/tmp"}), ran),
        (Task("worker-1", ran.entry, own, env={**env, "SHOAL_STRATEGY": "theirs.py:Mine"}), ran),
        (Task("worker-1", ran.entry, own, env={"SHOAL_RUN_DIR": "/tmp/theirs"}), ran),
        (Task("worker-1", ran.entry, job), trains),
        (Task("worker-1", trains.entry, {**job, "spec": {**spec, "model": "theirs:net"}}), trains),
        (Task("worker-1", trains.entry, {**job, "spec": {**spec, "resume": "/tmp/a"}}), trains),
        (Task("worker-1", trains.entry, {**job, "folder": "/tmp/theirs"}), trains),
        (Task("worker-1", trains.entry, {**job, "before": "/tmp/theirs"}), trains),
        (Task("worker-1", goes_on.entry, {**resumed, "before": "/tmp/theirs"}), goes_on),
    ):
        with pytest.raises(NotTrusted, match="other code"):
            check_worker(task, application, folder)


def test_a_server_from_a_store_writes_and_reads_nowhere_else(tmp_path):
    spec, folder = RunOptions(resume=str(tmp_path / "before")), tmp_path / "run"
    own = {"folder": str(folder)}
    for init in ("", f"{folder}/inputs/init/0000000005", str(tmp_path / "before" / "checkpoints")):
        check_folders(Task("server-1", "m:f", {**own, "init": init}), spec, folder)
    for wrong in (
        {},
        {"folder": str(tmp_path)},
        {**own, "out": str(tmp_path)},
        {**own, "init": str(tmp_path / "theirs")},
        {**own, "init": f"{folder}/inputs/../../theirs"},
    ):
        with pytest.raises(NotTrusted, match="other folders"):
            check_folders(Task("server-1", "m:f", wrong), spec, folder)
