"""Errors and prints of a user's script under `shoal run`: what its user sees."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.apps.script import ScriptApplication, ScriptRun
from shoal.cli import main
from shoal.errors import InvalidValue, NotFinite, ProcessDied
from shoal.runs.run import run_here
from tests.real.texts import pattern, text

pytestmark = pytest.mark.real

SCRIPTS = Path(__file__).parent / "scripts"


def script(tmp_path, fails="price", begins="plain", **how):
    """A run of the script, of which a worker fails, or `never` does."""
    args = [str(tmp_path), fails, begins]
    return ScriptApplication(
        SCRIPTS / "fails.py", args, ScriptRun(out=str(tmp_path / "runs"), **how)
    )


def done(tmp_path):
    return sorted(int(each.name.removeprefix("done-")) for each in tmp_path.glob("done-*"))


def test_a_workers_error_comes_with_its_traceback_its_rank_and_its_log(tmp_path):
    with pytest.raises(ProcessDied) as raised:
        run_here(script(tmp_path))
    first, *frames, last = str(raised.value).splitlines()
    assert first == "worker-1: KeyError: 'price'"
    assert frames[0] == "  Traceback (most recent call last):"
    assert "fails.py" in frames[1]  # no line of what has started it is before the user's
    assert any("price_of" in each for each in frames)
    [log] = (tmp_path / "runs").glob("*/logs/worker-1.log")
    assert last == "  " + text("script_errors.its_log", log=log)
    assert "KeyError" in log.read_text()


def test_an_error_of_shoals_says_where_in_the_script_it_came_from(tmp_path):
    with pytest.raises(NotFinite) as raised:
        run_here(script(tmp_path, "nan"))
    at = [str(raised.value).index(each) for each in ("worker-1", "fails.py", "optimizer.step()")]
    assert at == sorted(at)


@pytest.mark.parametrize("begins", ["plain", "with"])
@pytest.mark.parametrize("fails", ["price", "nan"])
def test_with_drop_an_exception_is_a_loss_like_any_other(tmp_path, caplog, fails, begins):
    run_here(script(tmp_path, fails, begins, workers=3, on_worker_loss="drop"))
    assert done(tmp_path) == [0, 2]
    said = text("script_errors.lost")
    [lost] = [each.message for each in caplog.records if said in each.message]
    assert lost.startswith(text("script_errors.gone_on_without", name="worker-1"))
    assert "fails.py" in lost


def test_a_strategy_that_cannot_go_on_without_a_lost_worker_is_refused_at_the_start(tmp_path):
    how = ScriptRun(workers=2, on_worker_loss="replace", out=str(tmp_path / "runs"))
    with pytest.raises(InvalidValue, match=pattern("script_errors.cannot_lose_workers")):
        run_here(ScriptApplication(SCRIPTS / "without_servers.py", [], how))


def test_where_all_workers_fail_the_first_ones_error_ends_the_run(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import no_such_module\n")
    how = ScriptRun(on_worker_loss="drop", out=str(tmp_path / "runs"))
    with pytest.raises(ProcessDied) as raised:
        run_here(ScriptApplication(path, [], how))
    assert "No module named 'no_such_module'" in str(raised.value)


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("rank0", {"rank 0 is done"}),
        ("all", {f"worker-{rank} | rank {rank} is done" for rank in range(3)}),
        ("none", set()),
    ],
)
def test_whose_prints_come_to_the_terminal(tmp_path, capfd, output, lines):
    words = ["run", "--workers", "3", "--output", output, "--out", str(tmp_path / "runs")]
    words += [str(SCRIPTS / "fails.py"), str(tmp_path), "never", "plain"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    shown = capfd.readouterr().out + result.output  # rank 0 has the descriptor itself
    assert {each for each in shown.splitlines() if "is done" in each} == lines
    logs = {each.stem: each.read_text() for each in (tmp_path / "runs").glob("*/logs/worker-*.log")}
    assert "rank 2 is done" in logs["worker-2"]
    assert ("rank 0 is done" in logs["worker-0"]) == (output != "rank0")


def test_lines_of_several_workers_are_whole(tmp_path):
    lines = 20
    command = [sys.executable, "-m", "shoal", "run", "--workers", "3", "--output", "all"]
    command += [str(SCRIPTS / "long_lines.py"), str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = Counter(line for line in done.stdout.splitlines() if "BEGIN" in line)
    assert shown == {f"worker-{rank} | BEGIN {str(rank) * 100_000} END": lines for rank in range(3)}
