"""shoal.Optimizer in a process of its own: it equals torch's optimizer where it is alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
SCRIPTS = Path(__file__).parent / "scripts"


def run(tmp_path, *words):
    """What a case of the script that compares with torch prints."""
    done = subprocess.run(
        [sys.executable, SCRIPTS / "beside_torch.py", *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_an_optimizer_equals_torchs_under_an_lr_scheduler(tmp_path, kind):
    out = run(tmp_path, "schedule", kind)
    assert out.split() == ["sync", "ssp", "asgd", "allreduce"]


def test_an_unsupported_optimizer_is_refused_by_name(tmp_path):
    assert "LBFGS" in run(tmp_path, "unsupported")


def test_an_unused_parameter_is_not_updated(tmp_path):
    """`model.zero_grad()` sets `.grad` to None; the flat buffer still has the last one's."""
    run(tmp_path, "unused_parameter")


def test_changes_that_servers_cannot_know_of_are_refused(tmp_path):
    lines = run(tmp_path, "changes").splitlines()
    assert "momentum was 0.9 when the optimizer was wrapped and is 0.5 now" in lines[0]
    assert "parameters cannot be added" in lines[1]
    assert "parameters were written to since the last step (parameter 0 (3, 5))" in lines[2]
    assert "strategy 'downpour', which has gradients under way" in lines[2]
    assert len(lines) == 3


def test_parameter_groups_have_options_and_schedules_of_their_own(tmp_path):
    lines = run(tmp_path, "groups").splitlines()
    assert lines == [f"{s} ['float32', 'float32.1']" for s in ("sync", "ssp", "asgd", "allreduce")]


def test_with_codecs_a_flushed_model_is_the_servers(tmp_path):
    lines = run(tmp_path, "codecs").splitlines()
    assert lines == [f"{strategy} ['float32']" for strategy in ("sync", "asgd", "diloco")]


def test_an_optimizer_that_evaluates_the_loss_needs_a_closure(tmp_path):
    out = run(tmp_path, "no_closure")
    assert "LBFGS evaluates the loss: give step a closure" in out


@pytest.mark.parametrize(
    ("strategy", "settings", "kind"),
    [
        ("model_averaging", {"tau": 1}, "SGD"),
        ("diloco", {"tau": 5}, "AdamW"),
        ("bmuf", {"tau": 4}, "SGD"),
        ("easgd", {"tau": 3}, "SGD"),
        ("double_buffering", {}, "SGD"),
        ("downpour", {"n_push": 2, "n_fetch": 2}, "SGD"),
    ],
)
def test_strategies_with_local_steps_wrap_a_torch_optimizer(tmp_path, strategy, settings, kind):
    command = [sys.executable, "-m", "shoal", "run", "--workers", "2", "--output", "all"]
    words = [SCRIPTS / "local_steps.py", strategy, json.dumps(settings), kind]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr + done.stdout
    lines = [line.split("W ")[1] for line in done.stdout.splitlines() if "W " in line]
    assert len(lines) == 2
    one, other = (json.loads(line[line.index("[") : line.index("]") + 1]) for line in lines)
    if strategy not in ("easgd", "downpour"):
        assert one == other  # after the flush
    near = 0.9 if strategy == "easgd" else 0.5
    assert all(abs(weight - 1) < near for weight in one)  # on the way to a sum
    if kind == "AdamW":
        assert lines[0].endswith("{12}")  # the worker's own state
