"""Every strategy on four real workers, and wrong settings, which start nothing."""

import json
from pathlib import Path

import pytest

from tests.real.test_runs import command
from tests.real.texts import text

pytestmark = pytest.mark.real

EXAMPLE = Path(__file__).parents[2] / "examples" / "slowmo.py"
OTHERS = [
    ["double_buffering"],
    ["downpour", "--set", "n_push=2", "--set", "n_fetch=2"],
    ["dc_asgd"],
    ["model_averaging", "--set", "tau=4"],
    ["local_sgd", "--set", "tau=4", "--set", "after=8"],
    ["fedavg"],
    ["bmuf", "--set", "tau=4"],
    ["diloco", "--set", "tau=8"],
    ["diloco", "--set", "tau=8", "--set", "exchange=allreduce"],
    ["streaming_diloco", "--set", "tau=8", "--set", "fragments=2"],
    ["easgd", "--set", "tau=4"],
    ["eamsgd", "--set", "tau=4", "--set", "delta=0.9"],
    ["p2p"],
    ["p2p", "--set", "graph=ring", "--set", "mode=async"],
    ["gradient_coding", "--redundancy", "2"],
    ["sync", "--set", "quorum=3", "--set", "grace_s=0.05", "--set", "merge=median"],
    [f"{EXAMPLE}:SlowMo"],
]


@pytest.mark.parametrize("strategy", OTHERS, ids=lambda each: " ".join(each).rpartition(":")[2])
def test_every_strategy_runs_on_four_workers(strategy, tmp_path):
    done = command(
        "train", "digits", "--workers", "4", "--servers", "2", "--epochs", "10", "--batch-size",
        "16", "--strategy", *strategy, "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["accuracy"] >= 0.8
    assert summary["bytes_sent"] > 0
    assert (summary["bytes_pushed"] > 0) == (summary["servers"] > 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--strategy", "diloco", "--set", "H=3"], text("strategies.unknown_setting")),
        (["--strategy", "diloco", "--set", "tau=0"], text("strategies.setting_out_of_range")),
        (["--set", "quorum=3"], text("strategies.quorum_too_large")),
        (["--set", "tau"], text("strategies.setting_no_value")),
        (["--strategy", "eamsgd", "--optimizer", "adam"], text("strategies.eamsgd_with_adam")),
        (["--strategy", "gradient_coding"], text("strategies.gradient_coding_alone")),
        (["--strategy", "allreduce", "--on-timeout", "drop"], text("strategies.not_without_one")),
        (
            ["--strategy", "p2p", "--on-worker-loss", "replace"],
            text("strategies.loss_handled_otherwise"),
        ),
        (["--on-timeout", "drop", "--slow-workers", "drop"], text("strategies.slow_workers_twice")),
        (["--strategy", "nothing.py:Mine"], "nothing.py"),
        (["--strategy", "diloco", "--on-worker-loss", "reassign"], text("strategies.leases")),
    ],
)
def test_a_wrong_strategy_is_refused_before_anything_starts(wrong, said, tmp_path):
    done = command("train", "digits", *wrong, cwd=tmp_path)
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split()), done.stderr
    assert not (tmp_path / "shoal-runs").exists()
