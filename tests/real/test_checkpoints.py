"""A run that is resumed from a checkpoint, on other servers, goes on as it would have."""

import json
import os
import shutil
import signal
import subprocess
import sys
from errno import ENOSPC
from pathlib import Path
from time import time

import pytest
from click.testing import CliRunner
from safetensors import SafetensorError

import shoal
from shoal.apps.train.command import TrainApplication
from shoal.cli import main
from shoal.engines.processes import Processes
from shoal.errors import InvalidValue
from shoal.reports.events import load_run, read_events
from shoal.runs.ending import join_run
from shoal.runs.job import from_mapping
from shoal.runs.plan import tasks_of
from shoal.storage.checkpoints import Checkpoints
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import SavedShards
from tests.real.texts import pattern, text
from tests.real.waiting import until

MARKS_ITS_IMPORT = Path(__file__).parent / "scripts" / "marks_its_import.py"
END = 3 * (23 + 1)  # epochs of 23 batches and of the round that ends them

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("checkpoints")]  # they share a run


def train(*arguments):
    result = CliRunner().invoke(main, ["train", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return load_run(json.loads(result.stdout.splitlines()[-1])["run_dir"])


def losses(run):
    return {
        (rank, step): loss
        for rank, steps in run.steps.items()
        for step, loss in zip(steps["step"], steps["loss"], strict=True)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on two servers, that has left checkpoints."""
    out = tmp_path_factory.mktemp("runs")
    more = ["--optimizer", "adam", "--lr", "0.01", "--epochs", "3", "--batch-size", "32"]
    return train("digits", "--servers", 2, *more, "--checkpoint-every", 20, "--out", out)


def test_a_resumed_run_has_the_losses_of_the_uninterrupted_one(whole, tmp_path):
    resumed = train("--resume", whole.path, "--resume-at", 20, "--servers", 3, "--out", tmp_path)
    before, after = losses(whole), losses(resumed)
    assert 60 < len(after) < len(before)
    assert all(abs(before[key] - loss) < 1e-6 for key, loss in after.items())
    assert abs(resumed.summary["loss"] - whole.summary["loss"]) < 1e-6
    clocks = sorted(int(each.name) for each in (resumed.path / "checkpoints").iterdir())
    assert clocks == [40, 60, END]  # it goes on with them


def test_a_run_resumed_from_a_timed_checkpoint_has_the_same_losses(tmp_path):
    more = ["--lr", "0.01", "--epochs", "30", "--batch-size", "16", "--checkpoint-every-s", "0.2"]
    more += ["--keep-checkpoints", "0"]  # the last ones may all be near the end
    whole = train("digits", "--servers", 2, "--replicas", 2, *more, "--out", tmp_path)
    clocks = sorted(int(each.name) for each in (whole.path / "checkpoints").iterdir())
    assert len(clocks) > 2
    at = clocks[len(clocks) // 2]
    assert len(list((whole.path / "checkpoints" / f"{at:010}").glob("worker-*"))) == 2
    resumed = train("--resume", whole.path, "--resume-at", at, "--servers", 3, "--out", tmp_path)
    before, after = losses(whole), losses(resumed)
    assert 60 < len(after) < len(before)
    assert all(abs(before[key] - loss) < 1e-6 for key, loss in after.items())


@pytest.mark.parametrize(
    "codecs",
    [
        ["onebit"],
        ["qsgd:4", "--server-codec", "qsgd:8"],
        ["topk:0.1+int:4", "--replicas", "2"],
        ["onebit", "--server-codec", "delta:qsgd:4", "--replicas", "2"],
    ],
    ids=lambda words: words[0],
)
def test_with_codecs_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(codecs, tmp_path):
    more = ["--servers", 2, "--epochs", "2", "--batch-size", "32", "--seed", "3", "--codec"]
    whole = train("digits", *more, *codecs, "--checkpoint-every", 20, "--out", tmp_path)
    resumed = train("--resume", whole.path, "--resume-at", 20, "--servers", 3, "--out", tmp_path)
    before, after = losses(whole), losses(resumed)
    assert 40 < len(after) < len(before)
    assert all(before[key] == loss for key, loss in after.items())
    assert resumed.summary["loss"] == whole.summary["loss"]
    [state] = (whole.path / "checkpoints" / "0000000020").glob("worker-0*")
    assert ("residuals" in state.read_bytes()[:100_000].decode(errors="ignore")) == (
        "qsgd:4" not in codecs
    )


@pytest.mark.parametrize(
    "how",
    [
        ["allreduce", "onebit"],
        ["allreduce", "powersgd:2"],
        ["allreduce", "qsgd:4"],
        ["p2p", "bf16"],
        ["diloco", "topk:0.1+int:4", "--set", "exchange=allreduce", "--set", "tau=3"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_with_codecs_among_workers_a_resumed_run_is_the_uninterrupted_one(how, tmp_path):
    strategy, codec, *settings = how
    more = ["--epochs", "2", "--batch-size", "32", "--seed", "3", "--codec", codec, *settings]
    every = 6 if strategy == "diloco" else 20
    common = ["--strategy", strategy, *more, "--checkpoint-every", every, "--out", tmp_path]
    whole = train("digits", *common)
    resumed = train("--resume", whole.path, "--resume-at", every, "--out", tmp_path)
    before, after = losses(whole), losses(resumed)
    assert 40 < len(after) < len(before)
    assert all(before[key] == loss for key, loss in after.items())
    assert resumed.summary["loss"] == whole.summary["loss"]
    assert any(event["kind"] == "codec" for event in whole.events) == (strategy != "p2p")


def test_dropout_and_batch_norm_resume_exactly(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(
        'data = "digits"\nepochs = 3\ncheckpoint_every = 10\nservers = 2\n'
        'layers = ["Flatten", ["Linear", 32], "BatchNorm1d", ["Dropout", 0.5], ["Linear", 10]]'
    )
    whole = train(job, "--out", tmp_path)
    resumed = train("--resume", whole.path, "--resume-at", 20, "--out", tmp_path)
    before, after = losses(whole), losses(resumed)
    assert len(after) > 10
    assert all(abs(before[key] - loss) < 1e-6 for key, loss in after.items())
    assert abs(resumed.summary["loss"] - whole.summary["loss"]) < 1e-6
    state = next((whole.path / "checkpoints" / "0000000020").glob("worker-*"))
    state.write_bytes(state.read_bytes()[:-3])
    result = CliRunner().invoke(main, ["train", "--resume", str(whole.path), "--resume-at", "20"])
    assert result.exit_code != 0
    assert text("checkpoints.damaged_state", state=state) in " ".join(result.output.split())


def test_a_damaged_last_checkpoint_is_refused_and_an_older_one_offered(whole, tmp_path):
    run = tmp_path / "damaged"
    shutil.copytree(whole.path, run)
    last = sorted((run / "checkpoints").iterdir())[-1]
    file = next(last.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-9])
    result = CliRunner().invoke(main, ["train", "--resume", str(run), "--out", str(tmp_path)])
    assert result.exit_code != 0
    assert text("checkpoints.damaged", clock=END) in " ".join(result.output.split())
    assert text("checkpoints.older_one") in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("every", "cut"),
    [
        (("--checkpoint-every", 5000), ()),
        (("--checkpoint-every-s", 500), ()),
        (("--checkpoint-every", 10), ("--max-steps", 15)),  # in the middle of an epoch
        (("--checkpoint-every", 16), ("--max-steps", 15)),
        (("--checkpoint-every", 10), ("--max-steps", 20)),
        (("--checkpoint-every", 5000), ("--batch-size", 359)),  # 3 batches, and 2
        (("--checkpoint-every", 5000), ("--batch-size", 359, "--max-steps", 5)),
        (("--checkpoint-every", 5000), ("--strategy", "asgd", "--workers", 1)),
    ],
    ids=str,
)
def test_the_end_of_a_run_is_a_checkpoint(tmp_path, caplog, every, cut):
    """With more epochs it goes on as one run would, and without them there is nothing to do."""
    some = ("digits", "--schedule", "constant", "--seed", 3, "--out", tmp_path)
    whole = train(*some, "--epochs", 4, *cut, "--max-steps", 0)
    first = train(*some, "--epochs", 2, *every, *cut)
    rest = train("--resume", first.path, "--epochs", 4, "--max-steps", 0, "--out", tmp_path)
    before, after = losses(whole), losses(rest)
    assert {*before} == {*losses(first)} | {*after}
    assert not {*losses(first)} & {*after}
    assert all(abs(before[key] - loss) < 1e-6 for key, loss in after.items())
    assert text("checkpoints.nothing_left") not in caplog.text
    again = train("--resume", first.path, "--out", tmp_path)
    assert not losses(again)
    assert again.summary["loss"] == pytest.approx(first.summary["loss"], abs=1e-6)
    assert text("checkpoints.nothing_left") in caplog.text


def test_workers_that_wait_for_nobody_go_on_with_their_own_batches(tmp_path):
    some = ("digits", "--batch-size", 359, "--strategy", "asgd", "--out", tmp_path)
    first = train(*some, "--epochs", 2, "--checkpoint-every", 5000)
    rest = train("--resume", first.path, "--epochs", 4, "--out", tmp_path)
    assert {*losses(rest)} == {
        *((0, step) for step in range(7, 13)),
        *((1, s) for s in (5, 6, 7, 8)),
    }


@pytest.mark.parametrize("error", [OSError(ENOSPC, "no space left"), SafetensorError("too large")])
def test_a_last_checkpoint_that_cannot_be_written_costs_nothing_else(
    tmp_path, caplog, monkeypatch, error
):
    def add(self, clock, ended):
        raise error

    monkeypatch.setattr(Checkpoints, "add", add)
    ended = train("digits", "--epochs", 1, "--checkpoint-every", 500, "--out", tmp_path)
    assert ended.summary["accuracy"] > 0.3
    assert text("checkpoints.last_not_written") in caplog.text
    assert text("checkpoints.none_written") in caplog.text


def test_a_run_without_checkpoints_cannot_be_resumed(tmp_path):
    run = train("digits", "--epochs", 1, "--out", tmp_path)
    result = CliRunner().invoke(main, ["train", "--resume", str(run.path)])
    assert result.exit_code != 0
    assert text("checkpoints.none_complete") in " ".join(result.output.split())


def test_an_ssp_checkpoint_has_exactly_the_pushes_before_its_clock(tmp_path):
    options = ["--strategy", "ssp", "--staleness", 3, "--workers", 3, "--replicas", 2]
    run = train("digits", *options, "--servers", 2, "--checkpoint-every", 10, "--out", tmp_path)
    folders = sorted((run.path / "checkpoints").iterdir())
    assert folders
    for folder in folders:
        saved = SavedShards(folder)
        [table] = saved.tables
        updates = [int(n) for _, state in saved.parts(table) for n in state["updates"]]
        assert set(updates) == {3 * int(folder.name)}
    resumed = train("--resume", run.path, "--resume-at", 10, "--servers", 3, "--out", tmp_path)
    counted = sum(sum(run.steps[rank]["samples"][:10]) for rank in range(3))
    assert resumed.summary["samples"] == run.summary["samples"] - counted


def test_a_resumed_run_with_leases_does_the_remaining_batches(tmp_path):
    """Which batches the checkpoint has in it follows from what was leased, and from its clock."""
    epochs, samples = 4, 1438
    options = ["digits", "--epochs", epochs, "--workers", 2, "--on-worker-loss", "reassign"]
    whole = train(*options, "--checkpoint-every", 20, "--out", tmp_path)
    assert whole.summary["samples"] == epochs * samples
    batches = -(-samples // 64)
    resumed = train("--resume", whole.path, "--resume-at", 20, "--servers", 3, "--out", tmp_path)
    done = {rank: min(20, len(steps["step"])) for rank, steps in whole.steps.items()}
    counted = sum(sum(whole.steps[rank]["samples"][:most]) for rank, most in done.items())
    assert resumed.summary["samples"] == epochs * samples - counted
    again = train("--resume", resumed.path, "--resume-at", 40, "--out", tmp_path)
    assert 0 < again.summary["samples"] < resumed.summary["samples"]
    assert again.summary["steps"] <= epochs * batches / 2 + 2
    without = train("digits", "--epochs", 2, "--checkpoint-every", 20, "--out", tmp_path)
    words = ["train", "--resume", str(without.path), "--on-worker-loss", "reassign"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code != 0
    assert text("checkpoints.trained_without_leases") in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("diloco", ["--set", "tau=5"]),
        ("bmuf", ["--set", "tau=4", "--set", "nesterov=true"]),
        ("local_sgd", ["--set", "tau=3", "--set", "after=6"]),
        ("fedavg", ["--set", "fraction=0.5", "--set", "seed=3"]),
        ("double_buffering", []),
        ("streaming_diloco", ["--set", "tau=6", "--set", "fragments=3", "--set", "overlap=1"]),
        ("sync", ["--set", "merge=median"]),
        ("allreduce", []),
        ("bmuf", ["--set", "tau=4", "--set", "exchange=allreduce"]),
        ("p2p", ["--set", "graph=ring", "--optimizer", "sgd"]),
    ],
)
def test_strategies_with_state_on_workers_resume_exactly(strategy, settings, tmp_path):
    """The optimizer of a worker, which batches it has done between two exchanges, and a delay."""
    more = ["--strategy", strategy, *settings, "--epochs", 4, "--lr", "0.01", "--batch-size", "32"]
    every = ["--checkpoint-every", 3, "--keep-checkpoints", 0]
    whole = train("digits", "--servers", 2, *more, *every, "--out", tmp_path)
    clocks = sorted(int(each.name) for each in (whole.path / "checkpoints").iterdir())
    assert len(list((whole.path / "checkpoints" / f"{clocks[0]:010}").glob("worker-*"))) == 2
    at = clocks[(len(clocks) - 1) // 2]  # the last is the end
    resumed = train("--resume", whole.path, "--resume-at", at, "--servers", 1, "--out", tmp_path)
    before, after = losses(whole), losses(resumed)
    assert 0 < len(after) < 0.7 * len(before)
    assert {key: before[key] for key in after} == after  # bit for bit
    assert resumed.summary["loss"] == whole.summary["loss"]


def test_without_servers_the_end_of_a_run_is_a_checkpoint_as_well(tmp_path):
    more = ["digits", "--strategy", "allreduce", "--schedule", "constant", "--out", tmp_path]
    whole = train(*more, "--epochs", 4)
    half = train(*more, "--epochs", 2, "--checkpoint-every", 10, "--keep-checkpoints", 2)
    assert len(list((half.path / "checkpoints").iterdir())) == 2
    resumed = train("--resume", half.path, "--epochs", 4, "--out", tmp_path)
    assert resumed.summary["loss"] == whole.summary["loss"]
    again = shoal.train(resume=half.path, epochs=4, out=tmp_path, progress=False)
    assert again.metrics["loss"] == whole.summary["loss"]  # its options are those of that run
    for words, told in (
        (["--workers", "3"], text("checkpoints.fewer_workers")),
        (["--strategy", "p2p"], text("checkpoints.another_strategy")),
        (["--strategy", "sync"], text("checkpoints.strategy_with_servers")),
        (["--optimizer", "sgd"], text("checkpoints.other_optimizer")),
        (["--optimizer-option", "amsgrad=true"], text("checkpoints.other_optimizer_option")),
        (["--model", "cnn"], text("checkpoints.another_model")),
    ):
        result = CliRunner().invoke(main, ["train", "--resume", str(half.path), *words])
        assert result.exit_code != 0
        assert told in " ".join(result.output.split()), result.output


def test_a_strategy_that_is_replaced_is_not_imported(tmp_path):
    code = shutil.copy(MARKS_ITS_IMPORT, tmp_path)
    more = f"--strategy {code}:Mine --epochs 2 --checkpoint-every 10 --out {tmp_path}"
    command = [sys.executable, "-m", "shoal", "train", "digits", *more.split()]
    subprocess.run(command, check=True, capture_output=True)  # or this process has it imported
    (tmp_path / "imported").unlink()
    [first] = tmp_path.glob("digits-*")
    words = ["--resume", first, "--resume-at", 10, "--out", tmp_path]
    train(*words, "--strategy", "sync")
    with pytest.raises(InvalidValue, match=pattern("checkpoints.strategy_without_servers")):
        shoal.train(resume=first, resume_at=10, strategy="allreduce", out=tmp_path)
    assert not (tmp_path / "imported").exists()
    train(*words)
    assert (tmp_path / "imported").exists()


def test_workers_of_unlike_data_leave_out_what_they_have_done(tmp_path):
    """In a run that continues one that continues another, clocks do not tell it."""
    more = ["digits", "--strategy", "p2p", "--workers", "3", "--assignment", "static:3,2,1"]
    more += ["--optimizer", "sgd", "--schedule", "constant", "--checkpoint-every", 7]
    first = train(*more, "--epochs", 2, "--out", tmp_path)
    second = train("--resume", first.path, "--epochs", 4, "--out", tmp_path)
    third = train("--resume", second.path, "--resume-at", 31, "--out", tmp_path)
    before, after = losses(second), losses(third)
    assert {rank for rank, _ in after} == {0, 1, 2}
    assert after == {key: before[key] for key in after}
    assert third.summary["loss"] == second.summary["loss"]


def test_an_end_between_two_exchanges_is_no_checkpoint(tmp_path):
    """The steps after the last exchange are taken again, as one run would have taken them."""
    more = ["digits", "--strategy", "model_averaging", "--set", "tau=4", "--schedule", "constant"]
    more += ["--optimizer", "sgd", "--checkpoint-every", 1, "--out", tmp_path]
    whole = train(*more, "--max-steps", 12)
    half = train(*more, "--max-steps", 6)
    assert Checkpoints(half.path / "checkpoints", workers=2).complete() == [1]
    resumed = train("--resume", half.path, "--max-steps", 12, "--out", tmp_path)
    assert losses(resumed) == {key: loss for key, loss in losses(whole).items() if key[1] > 4}
    assert resumed.summary["loss"] == whole.summary["loss"]


def test_a_worker_of_a_resumed_run_is_replaced_by_one_without_the_old_state(tmp_path):
    """It begins with the parameters that are there, and drags nobody back to the checkpoint's."""
    given = {"data": "digits", "strategy": "streaming_diloco", "set": {"tau": 6, "fragments": 3}}
    given |= {"schedule": "constant", "lr": 0.005, "epochs": 400, "out": str(tmp_path)}
    first = shoal.train(**given, max_steps=24, checkpoint_every=6, progress=False)
    more = {"resume": str(first.run_dir), "resume_at": 6, "on_worker_loss": "replace"}
    job = from_mapping({**given, **more, "max_steps": 4000})
    folder = RunFolder.create(tmp_path, "replaced")
    with Processes(folder) as processes:
        application = TrainApplication(job, [])
        application.begin_at(6)
        for task in tasks_of(application, processes, time()):
            processes.start(task)
        until(lambda: '"node":"worker-1","step":1500,' in folder.events.read_text())
        os.kill(processes.pid("worker-1"), signal.SIGKILL)
        join_run(processes, job, "train", start_clock=6)
    [lost] = (each["t"] for each in read_events(folder.events) if each["kind"] == "lost")
    steps = load_run(folder.path).steps[1]
    after = [loss for t, loss in zip(steps["t"], steps["loss"], strict=True) if t > lost][:10]
    assert len(after) == 10
    assert max(after) < 0.05  # at the checkpoint it was above 0.2


def test_a_checkpoint_without_the_states_of_workers_is_not_complete(tmp_path):
    more = ["--strategy", "diloco", "--set", "tau=5", "--epochs", 3, "--batch-size", "32"]
    whole = train("digits", *more, "--checkpoint-every", 3, "--out", tmp_path)
    for state in (whole.path / "checkpoints").glob("*/worker-1.safetensors"):
        state.unlink()
    result = CliRunner().invoke(main, ["train", "--resume", str(whole.path)])
    assert result.exit_code != 0
    assert text("checkpoints.state_of_a_worker_missing") in " ".join(result.output.split())
