"""SIGTERM and Ctrl-C at any moment of a command: one line and a shell's exit status."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.texts import text

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("processes_are_those_of_users")]
MOMENTS = Path(__file__).parent / "moments.py"
SCRIPT = "import shoal\nif __name__ == '__main__':\n    shoal.init()\n"
BEFORE, AFTER = text("signals.before_a_run"), text("signals.in_a_run")
TRAIN = ("train", "digits", "--epochs", "1", "--workers", "1")
RUN = ("run", "--workers", "1", "--servers", "1", "script.py")


def ended(folder: Path, number: int, moments: str, *words: str) -> tuple[int, list[str]]:
    """The exit status of a command that gets a signal at a moment, and the lines that it says.

    A progress display, which is above them, is left out.
    """
    (folder / "script.py").write_text(SCRIPT)
    file = folder / "seen.json"
    line = [sys.executable, MOMENTS, file, moments, str(int(number)), *words]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120)
    assert json.loads(file.read_text())["sent"], f"there was no {moments}"
    return done.returncode, [each for each in done.stderr.splitlines() if "worker-0" not in each]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["click", "msgspec", "shoal.cli.tools", "shoal.apps.train.comm"])
def test_while_the_command_itself_is_imported(number, module, tmp_path):
    assert ended(tmp_path, number, f"import:{module}", *TRAIN) == (128 + number, [BEFORE])
    assert not (tmp_path / "shoal-runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["torch", "torch.nn"])
def test_while_torch_is_imported(number, module, tmp_path):
    assert ended(tmp_path, number, f"import:{module}", *TRAIN) == (128 + number, [AFTER])
    assert not (tmp_path / "shoal-runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "moment", ["open:pids.json", "open:train.csv", "open:summary.json", "shutil.rmtree:"]
)
def test_while_a_run_goes_on_and_ends(number, moment, tmp_path):
    assert ended(tmp_path, number, moment, *TRAIN) == (128 + number, [AFTER])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "moment", ["import:torch.nn,shutil.rmtree:", "os.remove:/scheduler", "shutil.rmtree:"]
)
def test_while_the_run_of_a_script_ends(number, moment, tmp_path):
    """Where torch was imported at its end, a signal meanwhile ended in a traceback."""
    assert ended(tmp_path, number, moment, *RUN) == (128 + number, [AFTER])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_all_is_said_nothing_is_left_to_be_interrupted(number, tmp_path):
    assert ended(tmp_path, number, "finalization:", "list", "strategies") == (0, [])
