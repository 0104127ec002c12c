"""What the commands import: torch and its like only where they are needed, and not at the end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli import main

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("processes_are_those_of_users")]
MOMENTS = Path(__file__).parent / "moments.py"
SCRIPTS = Path(__file__).parent / "scripts"
PUSHES = str(SCRIPTS / "pushes.py")


def watched(folder: Path, *words: str) -> dict[str, list[str]]:
    """A command's large imports: all of them, and those before it has started a process."""
    file = folder / "seen.json"
    line = [sys.executable, MOMENTS, file, "never:", "0", *words]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120)
    seen = json.loads(file.read_text())
    return {**seen, "code": done.returncode, "said": done.stdout + done.stderr}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs: of a script, with checkpoints."""
    return tmp_path_factory.mktemp("light")


def run_in(folder: Path, title: str) -> str:
    (found,) = folder.glob(f"shoal-runs/{title}-*")
    return str(found.relative_to(folder))


def test_no_help_imports_a_large_package():
    line = [sys.executable, SCRIPTS / "helps.py"]
    env = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == ""
    assert len(main.commands) > 10


def test_running_a_script_imports_no_torch_with_checkpoints_or_without(folder):
    plain = ("run", "--servers", "1", "--workers", "1")
    seen = watched(folder, *plain, "--title", "plain", PUSHES)
    assert (seen["code"], seen["imported"]) == (0, []), seen["said"]
    seen = watched(folder, *plain, "--title", "saved", "--checkpoint-every", "2", PUSHES)
    assert (seen["code"], *seen["imported"]) in [(0,), (0, "numpy")], seen["said"]
    resumed = ("--resume", run_in(folder, "saved"), "--title", "resumed", PUSHES)
    seen = watched(folder, *plain, *resumed)
    assert (seen["code"], *seen["imported"]) == (0, "numpy"), seen["said"]


@pytest.mark.parametrize(
    "words",
    [("list", "strategies"), ("list", "data"), ("why", "nowhere"), ("checkpoint", "nowhere")],
    ids=" ".join,
)
def test_commands_that_look_at_a_run_import_nothing_large(words, folder):
    assert watched(folder, *words)["imported"] == []


def test_a_report_needs_what_draws_it_alone(folder):
    ended = watched(folder, "train", "digits", "--epochs", "1", "--title", "ended")
    assert ended["code"] == 0, ended["said"]
    seen = watched(folder, "report", run_in(folder, "ended"))
    assert (seen["code"], seen["imported"]) == (0, ["plotly", "jinja2"]), seen["said"]


def test_training_imports_torch_for_its_checks_and_nothing_once_it_has_begun(folder):
    seen = watched(folder, "train", "digits", "--epochs", "1", "--checkpoint-every", "5")
    assert seen["code"] == 0, seen["said"]
    assert seen["imported"] == seen["before"] == ["torch", "numpy"]


def test_applications_import_no_torch(folder):
    seen = watched(folder, "train", "ctr", "--epochs", "1")
    assert seen["code"] == 0, seen["said"]
    assert "torch" not in seen["imported"]
    seen = watched(folder, "train", "word2vec", "--epochs", "1", "--dim", "8")
    assert seen["code"] == 0, seen["said"]
    assert seen["imported"] == ["numpy"]
