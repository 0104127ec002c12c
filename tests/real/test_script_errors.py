"""Errors and prints of a user's script under `shoal run`: what its user sees."""

import subprocess
import sys
from collections import Counter
from textwrap import dedent

import pytest
from click.testing import CliRunner

from shoal.apps.script import ScriptApplication, ScriptRun
from shoal.cli import main
from shoal.errors import InvalidValue, NotFinite, ProcessDied
from shoal.runs.run import run_here

pytestmark = pytest.mark.real

SCRIPT = """
import sys
from pathlib import Path

import torch
import shoal

def price_of(row):
    return row["price"]

def train(context):
    model = torch.nn.Linear(4, 1)
    optimizer = shoal.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), strategy="asgd")
    for step in range(20):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        if context.rank == 1 and step == 5:
            FAIL
        optimizer.step()
    print(f"rank {context.rank} is done")
    Path(sys.argv[1], f"done-{context.rank}").touch()

BEGIN
"""
PLAIN, WITH = "train(shoal.init())", "with shoal.init() as context:\n    train(context)"
FAILS = {
    "a user's": 'price_of({"cost": 1})',
    "shoal's": "model.weight.grad[0, 0] = float('nan')",
}


def script(tmp_path, fail=FAILS["a user's"], begin=PLAIN):
    path = tmp_path / "script.py"
    path.write_text(dedent(SCRIPT).replace("FAIL", fail).replace("BEGIN", begin))
    return path


def done(tmp_path):
    return sorted(int(each.name.removeprefix("done-")) for each in tmp_path.glob("done-*"))


def test_a_workers_error_comes_with_its_traceback_its_rank_and_its_log(tmp_path):
    how = ScriptRun(out=str(tmp_path / "runs"))
    with pytest.raises(ProcessDied) as raised:
        run_here(ScriptApplication(script(tmp_path), [str(tmp_path)], how))
    first, *frames, last = str(raised.value).splitlines()
    assert first == "worker-1: KeyError: 'price'"
    assert frames[0] == "  Traceback (most recent call last):"
    assert "script.py" in frames[1]  # no line of what has started it is before the user's
    assert any("price_of" in each for each in frames)
    [log] = (tmp_path / "runs").glob("*/logs/worker-1.log")
    assert last == f"  its log: {log}"
    assert "KeyError" in log.read_text()


def test_an_error_of_shoals_says_where_in_the_script_it_came_from(tmp_path):
    how = ScriptRun(out=str(tmp_path / "runs"))
    with pytest.raises(NotFinite, match=r"(?s)worker-1.*script.py.*optimizer.step\(\)"):
        run_here(ScriptApplication(script(tmp_path, FAILS["shoal's"]), [str(tmp_path)], how))


@pytest.mark.parametrize("begin", [PLAIN, WITH], ids=["plain", "with"])
@pytest.mark.parametrize("fail", FAILS.values(), ids=FAILS)
def test_with_drop_an_exception_is_a_loss_like_any_other(tmp_path, caplog, fail, begin):
    how = ScriptRun(workers=3, on_worker_loss="drop", out=str(tmp_path / "runs"))
    run_here(ScriptApplication(script(tmp_path, fail, begin), [str(tmp_path)], how))
    assert done(tmp_path) == [0, 2]
    [lost] = [each.message for each in caplog.records if "is lost" in each.message]
    assert lost.startswith("worker-1 is lost, and the run goes on without it: ")
    assert "script.py" in lost


def test_a_strategy_that_cannot_go_on_without_a_lost_worker_is_refused_at_the_start(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        """import shoal, torch
shoal.init()
model = torch.nn.Linear(1, 1)
shoal.Optimizer(torch.optim.SGD(model.parameters()), strategy="allreduce")
"""
    )
    how = ScriptRun(workers=2, on_worker_loss="replace", out=str(tmp_path / "runs"))
    with pytest.raises(InvalidValue, match=r"'allreduce' .* can be 'stop', not 'replace'"):
        run_here(ScriptApplication(path, [], how))


def test_where_all_workers_fail_the_first_ones_error_ends_the_run(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import no_such_module\n")
    how = ScriptRun(on_worker_loss="drop", out=str(tmp_path / "runs"))
    with pytest.raises(ProcessDied, match="No module named 'no_such_module'"):
        run_here(ScriptApplication(path, [], how))


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
    result = CliRunner().invoke(main, [*words, str(script(tmp_path, "pass")), str(tmp_path)])
    assert result.exit_code == 0, result.output
    shown = capfd.readouterr().out + result.output  # rank 0 has the descriptor itself
    assert {each for each in shown.splitlines() if "is done" in each} == lines
    logs = {each.stem: each.read_text() for each in (tmp_path / "runs").glob("*/logs/worker-*.log")}
    assert "rank 2 is done" in logs["worker-2"]
    assert ("rank 0 is done" in logs["worker-0"]) == (output != "rank0")


def test_lines_of_several_workers_are_whole(tmp_path):
    path, lines = tmp_path / "script.py", 20
    path.write_text(
        "import shoal\n"
        "rank = shoal.init().rank\n"
        f"for line in range({lines}):\n"
        "    print('BEGIN', str(rank) * 100_000, 'END', flush=True)\n"
    )
    command = [sys.executable, "-m", "shoal", "run", "--workers", "3", "--output", "all", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = Counter(line for line in done.stdout.splitlines() if "BEGIN" in line)
    assert shown == {f"worker-{rank} | BEGIN {str(rank) * 100_000} END": lines for rank in range(3)}
