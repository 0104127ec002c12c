"""`shoal run`: checkpoints of a user's own script, and runs that go on with them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli import main
from tests.real.texts import text

pytestmark = pytest.mark.real

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT, LEASES = SCRIPTS / "losses_by_step.py", SCRIPTS / "counts_leases.py"


@pytest.fixture
def run(tmp_path, capfd):
    """Runs a script; its exit code, what rank 0 has printed, and the folder."""

    def ran(script, *words, args=()):
        options = ["run", "--out", str(tmp_path), *map(str, words), str(script), *args]
        result = CliRunner().invoke(main, options)
        folder = max(tmp_path.glob(f"{script.stem}-*"), default=None)
        return result, capfd.readouterr().out, folder

    return ran


def test_a_script_goes_on_with_the_parameters_of_a_checkpoint(run):
    result, printed, folder = run(SCRIPT, "--servers", 2, "--checkpoint-every", 15)
    assert result.exit_code == 0, result.output
    before = json.loads(printed)
    assert sorted(int(each.name) for each in (folder / "checkpoints").iterdir()) == [15, 30]
    result, printed, _ = run(SCRIPT, "--servers", 3, "--resume", folder, "--resume-at", 15)
    assert result.exit_code == 0, result.output
    after = json.loads(printed)
    assert list(after) == [str(step) for step in range(15, 40)]
    assert all(abs(before[step] - loss) < 1e-6 for step, loss in after.items())


def test_leases_resume_where_the_checkpoint_was_taken(run, tmp_path):
    result, _, folder = run(LEASES, "--checkpoint-every", 5, args=[str(tmp_path), "17"])
    assert result.exit_code != 0
    result, printed, _ = run(LEASES, "--resume", folder, args=[str(tmp_path), "-1"])
    assert result.exit_code == 0, result.output
    assert json.loads(printed) == [1.0] * 60


def test_a_checkpoint_resumes_under_another_token(run, monkeypatch):
    monkeypatch.setenv("SHOAL_TOKEN", "of another cluster")
    result, printed, _ = run(SCRIPT)
    assert result.exit_code == 0, result.output
    assert json.loads(printed)


def test_a_resumed_script_with_parameters_missing_from_the_checkpoint_is_refused(run):
    result, _, folder = run(SCRIPT, "--checkpoint-every", 30)
    assert result.exit_code == 0, result.output
    result, _, _ = run(SCRIPT, "--resume", folder, args=["double"])
    assert result.exit_code != 0
    assert text("script_checkpoints.table_missing") in result.output
    result, _, _ = run(SCRIPT, "--resume", folder, args=["allreduce"])
    assert text("script_checkpoints.strategy_without_servers") in result.output
    result, _, _ = run(SCRIPT, "--resume-at", 30)
    assert text("script_checkpoints.resume_which") in result.output


def test_checkpoints_need_servers(run):
    result, _, _ = run(SCRIPT, "--servers", 0, "--checkpoint-every-s", 1)
    assert result.exit_code != 0
    assert text("script_checkpoints.servers_needed") in result.output


def test_a_script_run_without_checkpoints_cannot_be_resumed(run, tmp_path):
    result, _, _ = run(SCRIPT, "--resume", tmp_path)
    assert result.exit_code != 0
    assert text("script_checkpoints.none_complete") in result.output


def test_a_cluster_started_by_hand_checkpoints_to_a_shared_folder(tmp_path):
    def losses(name, servers, roles=(), workers=()):
        address = ["--scheduler", f"unix://{tmp_path}/{name}.sock"]
        listen = ["--listen", address[1], "--workers", "1", "--servers", str(servers)]
        started = [shoal("scheduler", *listen)]
        started += [shoal("server", *address, *roles) for _ in range(servers)]
        started.append(shoal("worker", *address, *workers, SCRIPT))
        told = [process.communicate(timeout=60) for process in started]
        assert not any(process.returncode for process in started), told
        return json.loads(told[-1][0])

    roles = ["--out", tmp_path, "--checkpoint-every", "10", "--keep-checkpoints", "2"]
    before = losses("first", 2, roles)
    [folder] = tmp_path.glob("run-*")
    clocks = [int(each.name) for each in (folder / "checkpoints").iterdir()]
    assert sorted(clocks) == [30, 40]
    resume = ["--resume", folder, "--resume-at", "30"]
    after = losses("second", 1, resume, resume)
    assert list(after) == [str(step) for step in range(30, 40)]
    assert all(abs(before[step] - loss) < 1e-6 for step, loss in after.items())


def shoal(*words):
    command = [sys.executable, "-m", "shoal", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
