"""Saving and loading as torch does: the next run goes on as the one that was saved would have."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from shoal.cli import main
from tests.real.texts import text

pytestmark = pytest.mark.real

SCRIPT = str(Path(__file__).parent / "scripts" / "optimizer_state.py")


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Runs a case of the script in a cluster; returns what rank 0 has printed."""
    monkeypatch.chdir(tmp_path)

    def ran(case, *words):
        result = CliRunner().invoke(main, ["run", "--out", str(tmp_path), *words, SCRIPT, case])
        assert result.exit_code == 0, result.output
        return capfd.readouterr().out

    return ran


def test_the_next_run_goes_on_as_the_one_that_was_saved(run, tmp_path):
    chains = ("--workers", "2", "--servers", "2", "--replicas", "2")
    wanted = json.loads(run("save", *chains))
    loaded = json.loads(run("load", *chains))
    assert loaded == wanted  # bit by bit: rounds are merged in the order of ranks
    command = [sys.executable, SCRIPT, "alone"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    for name, losses in json.loads(done.stdout).items():
        assert losses == pytest.approx(wanted[name], rel=1e-5), name


def test_optimizers_of_whole_matrices_and_closures_run_on_the_workers(run):
    assert run("whole", "--workers", "2").split() == ["muon", "adafactor", "lbfgs"]


def test_after_a_barrier_all_workers_have_the_servers_state(run, tmp_path):
    run("stale", "--workers", "2", "--servers", "2")
    names = ("state-0", "state-1", "again-0", "again-1")
    first, *others = [torch.load(tmp_path / f"{name}.pt") for name in names]
    assert {int(state["step"]) for state in first["state"].values()} == {41}
    for other in others:
        for index, state in first["state"].items():
            for name, value in state.items():
                assert torch.equal(value, other["state"][index][name]), name


def test_a_state_that_does_not_fit_changes_nothing(run):
    lines = run("refused", "--workers", "1").splitlines()
    assert text("optimizer_state.options_changed") in lines[0]
    assert text("optimizer_state.shape_changed") in lines[1]
    assert text("optimizer_state.no_state") in lines[2]
    assert json.loads(lines[3]) == [4, 3, 4, 4]
