"""`shoal.log` in scripts: under `shoal run`, plain python and torchrun, and where they fail."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import shoal
from shoal.cli import main
from tests.real.texts import text

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).parent / "scripts" / "logs.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(SCRIPT, tmp_path / "script.py")
    return tmp_path


def called(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, env=env)


def shoal_run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return called(folder, sys.executable, "-m", "shoal", "run", "--workers", "2", *words)


def run_in(folder: Path) -> shoal.Run:
    (found,) = folder.glob("shoal-runs/*")
    return shoal.load_run(found)


def report(run: Path, *words: str) -> str:
    done = CliRunner().invoke(main, ["report", str(run), *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_of_a_script_has_its_figures_everywhere(folder):
    done = shoal_run(folder, "script.py", "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert text("logging.course") in done.stderr
    run = run_in(folder)
    assert text("logging.figures", run=run.path.relative_to(folder)) in done.stderr
    assert run.logged[1]["loss"] == [10.0 / (1 + step) + 1 for step in range(10)]
    assert run.logged[0]["step"] == list(range(10))
    assert run.summary["logged"]["loss"]["last"] == 1.0
    assert run.summary["workers"] == 2
    assert (run.path / "workers/1/logged.csv").read_text().startswith("t,step,valid/accuracy,loss")
    said = json.loads(report(run.path, "--json", "--csv", str(folder / "csv")))
    assert said["table"][0]["logged"]["loss"]["least"] == 1.0
    assert {Path(each).name for each in said["figures"]} == {"loss.csv", "valid-accuracy.csv"}
    page = (run.path / "report.html").read_text()
    assert "<title>script.py" in page
    assert 'id="valid-accuracy"' in page
    assert f"shoal run {folder}/script.py --lr 0.1</code>" in page


def test_the_summary_is_json_on_request(folder):
    done = shoal_run(folder, "--json", "script.py")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["logged"]["valid/accuracy"]["greatest"] == 0.9
    assert summary["run_dir"] == str(run_in(folder).path.relative_to(folder))


@pytest.mark.parametrize("how", ["fail", "die"])
def test_nothing_is_lost_where_a_worker_fails_or_is_killed(how, folder):
    done = shoal_run(folder, "script.py", how)
    assert done.returncode == 1
    run = run_in(folder)
    assert run.summary == {}
    assert run.logged[1]["step"] == list(range(7))
    assert text("logging.not_ended") in json.loads(report(run.path, "--json"))["warnings"][0]


def test_plain_python_makes_a_folder_for_it(folder):
    done = called(folder, sys.executable, "script.py", "leave")
    assert done.returncode == 0, done.stderr
    run = run_in(folder)
    assert text("logging.written_to", folder=run.path) in done.stderr
    assert run.logged[0]["loss"][-1] == 1.0
    assert json.loads(report(run.path, "--json"))["warnings"] == []


def test_workers_of_torchrun_write_to_one_folder(folder):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = called(folder, sys.executable, *torchrun, "script.py")
    assert done.returncode == 0, done.stderr
    assert [len(table["loss"]) for table in run_in(folder).logged.values()] == [10, 10]


def test_a_script_that_records_nothing_leaves_no_folder_and_its_run_says_so(folder):
    (folder / "script.py").write_text(
        "import shoal\nif __name__ == '__main__':\n    shoal.init()\n"
    )
    assert called(folder, sys.executable, "script.py").returncode == 0
    assert not (folder / "shoal-runs").exists()
    assert shoal_run(folder, "script.py").returncode == 0
    run = run_in(folder)
    assert (run.logged, run.summary["logged"]) == ({}, {})
    warnings = json.loads(report(run.path, "--json"))["warnings"]
    assert warnings == [text("logging.no_figures")]


def test_shoal_train_says_who_resumes_the_run_of_a_script(folder):
    assert shoal_run(folder, "script.py").returncode == 0
    done = CliRunner().invoke(main, ["train", "--resume", str(run_in(folder).path)])
    assert done.exit_code == 2
    assert text("logging.resumed_by") in done.output
