"""The options of `shoal run`: what is refused, and what a run that continues another takes over."""

import os
from pathlib import Path

import pytest

from shoal.apps.script_job import ScriptJob, ScriptRun, check_script, continued_script, job_of
from shoal.errors import DataCorrupt, DataMissing, InvalidValue, NotTrusted, UsageError
from shoal.runs.job import JobSpec
from shoal.runs.job_file import SCRIPT, dump_job
from shoal.runs.trust import trusting
from shoal.storage.run_folder import RunFolder

OPTIONS = {
    "workers": 4,
    "servers": 3,
    "replicas": 2,
    "transport": "tcp",
    "sync_timeout_s": 3.0,
    "title": "first",
    "memory": "1GiB",
    "checkpoint_every": 7,
    "keep_checkpoints": 2,
    "on_worker_loss": "drop",
    "on_timeout": "drop",
    "output": "all",
    "strategy": "ssp",
    "staleness": 2,
    "optimizer_options": {"lr": 0.05},
}


@pytest.fixture
def run(tmp_path):
    """The folder of a run of a script with an argument, and those options."""
    script = tmp_path / "train.py"
    script.touch()
    folder = RunFolder.create(tmp_path, "first")
    how = ScriptRun(**OPTIONS, out=str(tmp_path))
    folder.write_job(dump_job(how, SCRIPT, script=[str(script), "--lr=1"], command="shoal run"))
    return folder.path


def continued(run, *command, **asked):
    said = []
    found = continued_script(command, {"resume": str(run), **asked}, says=said.append)
    return *found, said


def test_all_options_are_those_of_the_run_before(run, tmp_path):
    script, args, how, [said] = continued(run)
    assert (script, args) == (tmp_path / "train.py", ["--lr=1"])
    assert how == ScriptRun(**OPTIONS, out=str(tmp_path), resume=str(run))
    assert said == f"running {script} --lr=1 (script), as {run}/job.toml says"


def test_options_that_are_given_again_win(run, tmp_path):
    again = {"workers": 1, "output": "rank0", "keep_checkpoints": 0, "resume_at": 14}
    _, _, how, _ = continued(run, **again)
    assert how == ScriptRun(**{**OPTIONS, **again}, out=str(tmp_path), resume=str(run))
    more = continued(run, optimizer_options={"momentum": 0.9})[2]
    assert more.optimizer_options == {"lr": 0.05, "momentum": 0.9}
    assert continued(run, optimizer_options={"lr": 0.1})[2].optimizer_options == {"lr": 0.1}


def test_another_strategy_has_its_own_settings(run):
    assert continued(run, staleness=5)[2].staleness == 5
    other = continued(run, strategy="diloco", set={"tau": 3})[2]
    assert (other.strategy, other.set, other.staleness) == ("diloco", {"tau": 3}, 0)


def test_a_script_that_is_given_again_has_its_own_arguments(run, tmp_path):
    other = tmp_path / "other.py"
    other.touch()
    script, args, how, said = continued(run, str(other), "--x")
    assert (script, args, how.workers, said) == (other, ["--x"], 4, [])


def test_the_steps_of_all_runs_before_are_known(run, tmp_path):
    job = job_of(run)
    assert job.steps_until(14) == ((4, 14),)
    later = ScriptJob(workers=2, steps_before=((4, 14), (8, 6)))
    assert later.steps_until(25) == ((4, 14), (8, 6), (2, 5))


def test_what_contradicts_the_options_of_the_run_before_is_refused_by_name(run):
    with pytest.raises(InvalidValue, match="--replicas 2 needs at least 2 servers"):
        continued(run, servers=1)
    with pytest.raises(InvalidValue, match=r"checkpoints are the servers': add --servers"):
        continued(run, servers=0, replicas=1)
    with pytest.raises(InvalidValue, match="both say when a slow worker is dropped"):
        continued(run, slow_workers="drop")
    with pytest.raises(InvalidValue, match="'allreduce' has its parameters on workers"):
        check_script(
            continued(run, strategy="allreduce", on_worker_loss="stop", on_timeout="ask")[2]
        )


def test_the_run_of_another_user_runs_nothing_unless_it_is_trusted(run, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4321)
    with pytest.raises(NotTrusted, match=r"would import .*train\.py --lr=1 \(script\)"):
        continued(run)
    with trusting():
        script, *_ = continued_script((), {"resume": str(run)}, says=lambda text: None)
    assert script == tmp_path / "train.py"


def test_a_script_that_is_gone_is_named(run, tmp_path):
    (tmp_path / "train.py").unlink()
    with pytest.raises(DataMissing, match=r"train\.py, of which .* was a run, is not there"):
        continued(run)


@pytest.mark.parametrize(
    ("job", "error", "told"),
    [
        (None, DataMissing, "is not the folder of a run"),
        (
            JobSpec(workers=7),
            InvalidValue,
            "a run of `shoal train`, which .*: shoal train --resume",
        ),
    ],
    ids=["none", "train"],
)
def test_a_run_of_another_command_has_checkpoints_only(job, error, told, tmp_path):
    folder = RunFolder.create(tmp_path, "other")
    if job is not None:
        folder.write_job(dump_job(job))
    assert job_of(folder.path) is None
    with pytest.raises(error, match=told):
        continued(folder.path)
    script, args, how, said = continued(folder.path, "train.py", "--x")
    assert (script, args, said) == (Path("train.py"), ["--x"], [])
    assert how == ScriptRun(resume=str(folder.path))


@pytest.mark.parametrize(
    ("text", "told"),
    [("workers = 0\n", "workers: expected `int` >= 1"), ("workerz = 2\n", "workerz")],
)
def test_a_damaged_job_names_its_file(text, told, tmp_path):
    folder = RunFolder.create(tmp_path, "damaged")
    folder.write_job(f'application = "{SCRIPT}"\n{text}')
    with pytest.raises((InvalidValue, DataCorrupt), match=rf"job\.toml: .*{told}"):
        continued(folder.path, "train.py")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"strategy": "sink"}, "unknown strategy 'sink'"),
        ({"strategy": "diloco", "set": {"H": 3}}, "unknown setting of strategy 'diloco' 'H'"),
        ({"set": {"tau": 3}}, "unknown setting of strategy 'sync' 'tau'"),
        ({"set": {"quorum": 3}}, "quorum 3 is more than the 2 workers"),
        ({"strategy": "sync", "servers": 0}, "--servers 0: the parameters of this run are on"),
        ({"set": {"quorum": 1}, "servers": 0}, "--servers 0: the parameters of this run are on"),
        ({"strategy": "allreduce", "checkpoint_every": 3}, "has its parameters on workers"),
        ({"strategy": "allreduce", "checkpoint_every_s": 3}, "use --checkpoint-every"),
        ({"strategy": "allreduce", "slow_workers": "drop"}, "has no servers to measure"),
        ({"strategy": "allreduce", "on_worker_loss": "drop"}, "can be 'stop', not 'drop'"),
        ({"strategy": "allreduce", "on_timeout": "drop"}, "cannot go on without one"),
        ({"strategy": "gradient_coding"}, "`shoal train --redundancy` gives them"),
        ({"strategy": "nothing.py:Mine"}, "nothing.py"),
    ],
    ids=str,
)
def test_a_strategy_that_cannot_train_is_refused(options, told):
    with pytest.raises(UsageError, match=told):
        check_script(ScriptRun(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"servers": 0},  # the script may name a strategy that needs none
        {"servers": 0, "strategy": "allreduce"},
        {"servers": 0, "strategy": "p2p", "on_worker_loss": "drop"},
        {"servers": 0, "strategy": "diloco", "set": {"exchange": "allreduce"}},
        {"servers": 1, "strategy": "allreduce"},  # the script may have tables
        {"strategy": "ssp", "staleness": 0},
        {"workers": 3, "set": {"quorum": 3}},
    ],
    ids=str,
)
def test_a_strategy_that_can_train_is_not(options):
    check_script(ScriptRun(**options))


def test_a_bound_belongs_to_ssp():
    for strategy in ("", "diloco"):
        with pytest.raises(InvalidValue, match="staleness belongs to strategy 'ssp'"):
            ScriptRun(staleness=2, strategy=strategy)
