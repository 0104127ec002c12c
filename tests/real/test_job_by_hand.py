"""A training job whose processes are all started by hand, and what its workers refuse."""

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.apps.train.by_hand import become_job_worker
from shoal.apps.train.command import TrainApplication
from shoal.engines.options import WorkerRole
from shoal.errors import DataMissing, InvalidValue
from shoal.reports.events import read_events
from shoal.runs.job import from_mapping
from shoal.runs.run import run_here
from shoal.storage.run_folder import RunFolder

pytestmark = pytest.mark.real

SHOAL = [sys.executable, "-m", "shoal"]
TOKEN = "a token of sixteen and more"
JOB = {"data": "digits", "workers": 2, "servers": 2, "epochs": 2, "seed": 1}


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    lines = [f"{name} = {value!r}" for name, value in {**JOB, "out": str(tmp_path / "own")}.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def losses(path):
    steps = [e for e in read_events(RunFolder(path).events) if e["kind"] == "step"]
    return {(each["node"], each["step"]): each["loss"] for each in steps}


def test_workers_by_hand_have_the_losses_of_a_run_on_one_machine(job, tmp_path):
    place = f"unix://{tmp_path}/private/s.sock"
    roles = [
        ["scheduler", "--listen", place, "--workers", "2", "--servers", "2"],
        *(["server", "--scheduler", place] for _ in range(2)),
        *(["worker", "--scheduler", place, "--rank", str(r), str(job)] for r in range(2)),
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([*SHOAL, *words], cwd=tmp_path, **pipes) for words in roles]
    ends = [each.communicate(timeout=120) for each in started]
    assert [each.returncode for each in started] == [0] * 5, ends
    assert all("accuracy 0." in printed for printed, _ in ends[3:])
    here = run_here(TrainApplication(from_mapping({**JOB, "out": str(tmp_path / "here")}), []))
    folders = sorted((tmp_path / "own").iterdir())
    assert [folder.name.split("-2")[0] for folder in folders] == [
        "digits-worker-0",
        "digits-worker-1",
    ]
    by_hand = {at: loss for folder in folders for at, loss in losses(folder).items()}
    # by the last bits, as each has all cores of its host
    assert by_hand == pytest.approx(losses(Path(here["run_dir"])), rel=1e-4)


@pytest.mark.parametrize("rank", [-1, 2, 1000])
def test_a_worker_of_a_job_needs_its_rank(job, rank):
    with pytest.raises(InvalidValue) as found:
        become_job_worker(job, WorkerRole(scheduler="unix:///nothing", rank=rank), {})
    assert "give --rank, from 0 to 1" in str(found.value)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"strategy": "ssp"}, "--strategy"),
        ({"group": "eval"}, "--group"),
        ({"set": {"tau": 4}}, "--set"),
    ],
)
def test_options_of_scripts_are_refused(job, options, flag):
    with pytest.raises(InvalidValue) as found:
        become_job_worker(job, WorkerRole(scheduler="unix:///nothing", rank=0, **options), {})
    assert f"{flag} is for scripts" in str(found.value)


def test_nothing_is_begun_where_an_input_is_missing(job, tmp_path):
    job.write_text(job.read_text() + f"init = '{tmp_path / 'gone.safetensors'}'\n")
    with pytest.raises(DataMissing):
        become_job_worker(job, WorkerRole(scheduler="unix:///nothing", rank=0), {})
    assert not (tmp_path / "own").exists()
