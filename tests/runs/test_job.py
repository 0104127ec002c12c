"""A job's options: its strategy's usual ones, and those of the run that it continues."""

import tomllib
from pathlib import Path

import pytest

from shoal.errors import InvalidValue
from shoal.runs.job import JobSpec, continued, from_mapping
from shoal.runs.job_file import SCRIPT, dump_job, inherited, load_job
from shoal.storage.run_folder import RunFolder
from shoal.strategies import strategies

OWN = f"{Path(__file__).parent}/scripts/own.py:Mine"


def test_a_strategy_says_its_usual_optimizer():
    for name in [*strategies, OWN]:
        usual = {"eamsgd": "sgd", "sync": "adam", OWN: "adagrad"}
        job = from_mapping({"strategy": name})
        assert job.optimizer == ""
        assert job.chosen_optimizer == job.resolved.optimizer == usual.get(name, "adam")
        assert job.strategy_options(10).access.name == job.chosen_optimizer
        given = from_mapping({"strategy": name, "optimizer": "rmsprop"})
        assert given.chosen_optimizer == given.resolved.optimizer == "rmsprop"


def test_the_usual_rate_is_that_of_the_usual_optimizer():
    assert from_mapping({"strategy": "eamsgd"}).access_options(1)["lr"] == 0.1
    assert from_mapping({"strategy": "easgd"}).access_options(1)["lr"] == 0.002


def test_no_job_file_is_told(tmp_path):
    with pytest.raises(InvalidValue, match="no job file at"):
        load_job(tmp_path / "absent.toml")


BEFORE = {
    "strategy": "diloco",
    "set": {"tau": 5, "outer_lr": 0.5},
    "optimizer": "adam",
    "optimizer_options": {"beta1": 0.8},
    "workers": 4,
    "resume_at": 7,
}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {}),
        ({"workers": 2, "resume_at": 3}, {"workers": 2, "resume_at": 3}),
        ({"set": {"tau": 9}}, {"set": {"tau": 9, "outer_lr": 0.5}}),
        ({"strategy": "diloco", "set": {"tau": 9}}, {"set": {"tau": 9, "outer_lr": 0.5}}),
        ({"strategy": "easgd"}, {"strategy": "easgd", "set": None}),
        ({"strategy": "bmuf", "set": {"tau": 9}}, {"strategy": "bmuf", "set": {"tau": 9}}),
        ({"strategy": ""}, {"strategy": "", "set": None}),
        ({"optimizer": "sgd"}, {"optimizer": "sgd", "optimizer_options": None}),
        (
            {"optimizer": "adam", "optimizer_options": {"beta2": 0.9}},
            {"optimizer_options": {"beta1": 0.8, "beta2": 0.9}},
        ),
    ],
    ids=str,
)
def test_what_is_asked_for_wins_and_the_rest_stays(asked, expected):
    values = {**BEFORE, "resume_at": -1, **expected}
    assert inherited(BEFORE, asked) == {n: v for n, v in values.items() if v is not None}


def test_no_strategy_is_the_usual_one():
    before = {"strategy": "", "set": {"quorum": 1}}
    assert inherited(before, {"strategy": "sync"})["set"] == {"quorum": 1}
    assert "set" not in inherited(before, {"strategy": "asgd"})


def test_a_job_that_was_written_is_read_again(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    job = JobSpec(strategy="diloco", set={"tau": 5}, optimizer_options={"beta1": 0.8})
    folder.write_job(dump_job(job))
    assert from_mapping(continued(folder.path, {})) == job
    text = dump_job(job, SCRIPT, script=["train.py"])
    assert tomllib.loads(text)["script"] == ["train.py"]


@pytest.mark.parametrize(
    ("application", "command"), [(SCRIPT, "shoal run"), ("ctr", "shoal train ctr")]
)
def test_the_run_of_another_command_is_refused_by_its_name(application, command, tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    folder.write_job(f'application = "{application}"\n')
    with pytest.raises(InvalidValue, match=f"is a run of `{command}`, which resumes it"):
        continued(folder.path, {})
