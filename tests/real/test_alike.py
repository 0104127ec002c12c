"""Two workers begin and stay alike, or the run ends with an error that says how they differ."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.texts import pattern, text

pytestmark = pytest.mark.real

SCRIPT = str(Path(__file__).parent / "scripts" / "alike.py")


def run(tmp_path, strategy, case, *words, options=(), code=0, workers=2):
    """What each worker has found, in the order of ranks; and what the command has printed."""
    command = [sys.executable, "-m", "shoal", "run", "--workers", str(workers), "--servers", "1"]
    done = subprocess.run(
        [*command, "--output", "all", *options, SCRIPT, case, strategy, *words],
        capture_output=True, text=True, timeout=100, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode == 0) == (code == 0), done.stderr + done.stdout
    files = sorted(tmp_path.glob("found-*.json"))
    return [json.loads(each.read_text()) for each in files], done.stdout + done.stderr


HOW = [
    *((strategy, "rank0") for strategy in ("sync", "allreduce", "diloco")),
    *(("allreduce", how) for how in ("mean", "local")),
]


@pytest.mark.parametrize(("strategy", "buffers"), HOW)
def test_buffers_and_frozen_layers_begin_as_rank_0s(tmp_path, strategy, buffers):
    (one, other), _ = run(tmp_path, strategy, "module", buffers)
    assert one[0] != other[0]
    assert one[0] == one[1] == other[1]
    assert one[2] != other[2]
    assert (one[3]["norm.running_mean"] == other[3]["norm.running_mean"]) == (buffers != "local")
    of_both = zip(one[2], other[2], strict=True)
    mean = {"rank0": one[2], "mean": [(a + b) / 2 for a, b in of_both], "local": one[2]}
    assert one[4] == pytest.approx(mean[buffers], abs=1e-6)
    alike = {name for name in one[3] if one[3][name] == other[3][name]}
    if strategy != "asgd":
        assert {name for name in one[3] if "norm.running" not in name} <= alike


def test_a_module_is_broadcast_bit_for_bit(tmp_path):
    (one, other), _ = run(tmp_path, "sync", "broadcast")
    assert one == other


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_draw_numbers_of_their_own_from_every_library(tmp_path, workers):
    drawn, _ = run(tmp_path, "sync", "draws", workers=workers)
    for number in range(len(drawn[0])):
        assert len({str(each[number]) for each in drawn}) == workers, number


TOLD = {
    "width": pattern("alike.width"),
    "dtype": pattern("alike.dtype"),
    "frozen": pattern("alike.frozen"),
    "class": pattern("alike.class"),
    "lr": pattern("alike.lr"),
}


@pytest.mark.parametrize(
    ("which", "strategy"),
    [*((which, "sync") for which in TOLD), ("width", "allreduce"), ("lr", "allreduce")],
)  # all others under allreduce: tests/pytorch/loop/test_agreement.py
def test_workers_that_differ_end_the_run_with_their_first_difference(tmp_path, which, strategy):
    accepted, printed = run(tmp_path, strategy, "differs", which, code=1)
    assert len(accepted) < 2
    assert re.search(pattern("alike.differ"), printed)
    assert re.search(TOLD[which], printed), printed


@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_a_parameter_that_some_workers_use_gets_the_mean_over_those(tmp_path, strategy):
    """Against torch alone, which has the gradients of both workers one after the other."""
    (one, other), _ = run(tmp_path, strategy, "some_use_it")
    assert one == other
    assert one[0] <= 1e-6


@pytest.mark.parametrize("strategy", ["sync", "asgd", "allreduce", "diloco", "p2p"])
def test_uneven_data_end_well(tmp_path, strategy):
    (one, other), printed = run(tmp_path, strategy, "uneven", "flush")
    assert (one[0], other[0]) == (6, 4)
    if strategy in ("allreduce", "p2p"):  # with servers the first one to end has its last step's
        assert one[1] == other[1]
    assert "Broken" not in printed


@pytest.mark.parametrize("case", ["uneven", "in_turn"])
def test_uneven_data_end_well_without_a_flush(tmp_path, case):
    (one, other), printed = run(tmp_path, "allreduce", case)
    assert (one[0], other[0]) == (6, 4)
    assert "Broken" not in printed


@pytest.mark.parametrize("strategy", ["diloco", "downpour", "p2p"])
def test_steps_that_were_not_exchanged_are_told_and_exchanged_at_the_end(tmp_path, strategy):
    (one, other), printed = run(tmp_path, strategy, "local_steps")
    log = "".join(
        path.read_text() for path in (tmp_path / "shoal-runs").glob("*/logs/worker-*.log")
    )
    assert text("alike.not_exchanged_at_the_end") in printed + log
    assert text("alike.not_exchanged_when_saved") in one[0][0]
    if "diloco" in strategy:
        assert one[2] != other[2]
    if strategy != "downpour":
        assert one[1] == other[1]
    for each in tmp_path.glob("found-*.json"):
        each.unlink()
    again, printed = run(tmp_path, strategy, "local_steps", "flush")
    assert text("alike.not_exchanged_at_the_end") not in printed
    if strategy != "downpour":
        assert again[0][1] == again[1][1] == one[1]


@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_a_write_by_only_one_worker_ends_the_run(tmp_path, strategy):
    options = ["--sync-timeout-s", "1"]
    done, printed = run(tmp_path, strategy, "writes", "one", options=options, code=1)
    assert not done
    assert text("alike.written_by_one") in printed


def test_all_workers_go_on_from_what_rank_0_has_written(tmp_path):
    (one, other), _ = run(tmp_path, "sync", "writes", "all")
    assert one == other
    assert abs(one[0] - 4) < 1.5  # four weights of 1, and a step


def test_a_write_is_refused_where_others_train_meanwhile(tmp_path):
    _, printed = run(tmp_path, "asgd", "writes", "all", code=1)
    assert "UsageError" in printed
    assert text("alike.written_meanwhile") in printed


def test_rates_that_part_end_the_run(tmp_path):
    _, printed = run(tmp_path, "allreduce", "rates", code=1)
    assert text("alike.rates_part") in printed


@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
@pytest.mark.parametrize("policy", ["reject", "zero"])
def test_a_nan_of_one_worker_is_refused_or_replaced(tmp_path, strategy, policy):
    done, printed = run(tmp_path, strategy, "nan", policy, code=policy == "reject")
    if policy == "reject":
        assert "NotFinite" in printed
    else:
        assert done[0] == done[1]
        assert done[0][1] is True


def test_clip_norm_clips_the_mean_as_with_ddp(tmp_path):
    (one, other), _ = run(tmp_path, "allreduce", "clips")
    assert one == other
    assert one[0] <= 1e-6
