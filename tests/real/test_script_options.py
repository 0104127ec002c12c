"""`shoal run` and `shoal worker`: options of a script's optimizers, and of a run before."""

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shoal.storage.checkpoints import Checkpoints
from tests.real.texts import text

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).parent / "scripts" / "tells_options.py"
WHOLE = {str(epoch): 6 for epoch in range(5)}  # steps of each of two workers


def start(*words, **env):
    command = [sys.executable, *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **env}, **pipes)


def told(process):
    """What rank 0 has found."""
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    [line] = [each for each in printed.splitlines() if "{" in each]
    return json.loads(line.removeprefix("worker-0 | "))  # as with --output all


def shoal(*words, **env):
    return start("-m", "shoal", *words, **env)


def run(tmp_path, *words, **env):
    return told(shoal("run", "--out", tmp_path / "runs", *words, **env))


def folders(tmp_path):
    return sorted((tmp_path / "runs").iterdir(), key=lambda each: each.stat().st_mtime_ns)


def test_options_of_the_command_are_those_of_an_optimizer_without_its_own(tmp_path):
    diloco = ["--strategy", "diloco", "--set", "tau=3", "--set", "outer_lr=0.5"]
    found = run(tmp_path, *diloco, "--optimizer-option", "lr=0.05", SCRIPT, "--x")
    assert (found["strategy"], found["set"]) == ("diloco", {"tau": 3, "outer_lr": 0.5})
    assert (found["lr"], found["betas"], found["args"]) == (0.05, [0.9, 0.999], ["--x"])
    [folder] = folders(tmp_path)
    job = (folder / "job.toml").read_text()
    assert 'strategy = "diloco"' in job
    assert "tau = 3" in job
    assert "lr = 0.05" in job


def test_what_the_script_says_goes_before_the_command(tmp_path):
    ssp = ["--strategy", "ssp", "--staleness", 2]
    found = run(tmp_path, *ssp, SCRIPT, 'strategy="asgd"')
    assert (found["strategy"], found["staleness"]) == ("asgd", 0)
    [folder] = folders(tmp_path)
    assert text("script_options.script_goes_before") in (folder / "logs/worker-0.log").read_text()
    found = run(tmp_path, *ssp, SCRIPT, "staleness=1")
    assert (found["strategy"], found["staleness"]) == ("ssp", 1)


def test_no_servers_are_needed_where_the_strategy_needs_none(tmp_path):
    without = ["--servers", 0, "--strategy", "allreduce"]
    found = run(tmp_path, *without, "--optimizer-option", "betas=[0.8,0.9]", SCRIPT)
    assert (found["strategy"], found["servers"], found["betas"]) == ("allreduce", 0, [0.8, 0.9])


def test_an_option_that_the_optimizer_does_not_have_ends_the_run_by_name(tmp_path):
    process = shoal("run", "--out", tmp_path, "--optimizer-option", "momentum=0.9", SCRIPT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert text("script_options.unknown_option") in errors


@pytest.mark.parametrize("how", ["python", "torchrun"])
def test_variables_say_the_same_without_shoal_run(how):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {"SHOAL_STRATEGY": "diloco", "SHOAL_SET": "tau=3 outer_lr=0.5"}
    env |= {"SHOAL_OPTIMIZER_OPTIONS": "lr=0.05", "OMP_NUM_THREADS": "1"}
    found = told(start(*(launcher if how == "torchrun" else ()), SCRIPT, **env))
    assert found["workers"] == (2 if how == "torchrun" else 1)
    assert (found["strategy"], found["set"]) == ("diloco", {"tau": 3, "outer_lr": 0.5})
    assert found["lr"] == 0.05


def test_shoal_run_does_not_take_the_variables_of_its_caller(tmp_path):
    env = {"SHOAL_STRATEGY": "diloco", "SHOAL_SET": "tau=3", "SHOAL_OPTIMIZER_OPTIONS": "lr=0.05"}
    found = run(tmp_path, SCRIPT, **env)
    assert (found["strategy"], found["set"], found["lr"]) == ("sync", {}, 0.01)


def by_hand(tmp_path, name, script, servers=(), workers=(), **env):
    """What a cluster that was started by hand has found."""
    address = ["--scheduler", f"unix://{tmp_path}/{name}.sock"]
    listen = ["--listen", address[1], "--workers", "1", "--servers", "1"]
    started = [shoal("scheduler", *listen), shoal("server", *address, *servers)]
    found = told(shoal("worker", *address, *workers, script, **env))
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    return found


def test_a_worker_that_is_started_by_hand_has_the_options_too(tmp_path):
    options = ["--strategy", "ssp", "--staleness", 2, "--optimizer-option", "lr=0.05"]
    env = {"SHOAL_STRATEGY": "diloco", "SHOAL_OPTIMIZER_OPTIONS": "betas=[0.8,0.9]"}
    more = ["--out", tmp_path / "runs", "--checkpoint-every", 16]
    found = by_hand(tmp_path, "first", SCRIPT, more, options, **env)
    assert (found["strategy"], found["staleness"], found["lr"]) == ("ssp", 2, 0.05)
    assert found["betas"] == [0.9, 0.999]  # a flag is all of an option's values
    [folder] = folders(tmp_path)
    resume = ["--resume", folder, "--resume-at", 16]
    found = by_hand(tmp_path, "second", SCRIPT, resume, resume)
    assert (found["began_at"], found["epochs"]) == (16, {"1": 8, "2": 12, "3": 12, "4": 12})
    assert found["evaluated"] == [1, 2, 3, 4]


def test_a_worker_with_a_wrong_option_does_not_join():
    nowhere = ["--scheduler", "unix:///nowhere.sock"]
    for words, said in (
        (["--strategy", "sink"], text("script_options.unknown_strategy")),
        (["--strategy", "diloco", "--set", "H=3"], text("script_options.unknown_setting")),
        (["--staleness", 2], text("script_options.staleness")),
        (["--optimizer-option", "lr"], text("script_options.no_value")),
    ):
        process = shoal("worker", *nowhere, *words, SCRIPT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, said in errors) == (2, True), errors


def test_a_resumed_run_has_all_options_and_leaves_out_what_is_done(tmp_path):
    options = ["--servers", 2, "--replicas", 2, "--checkpoint-every", 4, "--keep-checkpoints", 0]
    options += ["--strategy", "ssp", "--staleness", 1, "--optimizer-option", "lr=0.05"]
    whole = run(tmp_path, *options, SCRIPT, "--x")
    assert (whole["epochs"], whole["evaluated"]) == (WHOLE, [0, 1, 2, 3, 4])
    [folder] = folders(tmp_path)
    rest = run(tmp_path, "--resume", folder, "--resume-at", 16)
    left_out = {"began_at": 16, "epochs": {"2": 2, "3": 6, "4": 6}, "evaluated": [2, 3, 4]}
    assert rest == {**whole, **left_out}
    [_, second] = folders(tmp_path)
    again = run(tmp_path, "--resume", second, "--resume-at", 24, "--workers", 1, "--servers", 3)
    assert again["evaluated"] == [4]
    assert again["epochs"] == {"4": 12}  # twice the steps of two workers
    assert (again["workers"], again["servers"], again["lr"]) == (1, 3, 0.05)
    [*_, third] = folders(tmp_path)
    job = tomllib.loads((third / "job.toml").read_text())
    assert job["steps_before"] == [[2, 16], [2, 8]]


def test_a_run_that_was_killed_says_how_to_go_on_with_its_options(tmp_path):
    """Also one that has resumed another, and has no checkpoint of its own yet."""
    options = ["--checkpoint-every", 3, "--optimizer-option", "lr=0.05", "--title", "first"]
    options += ["--out", tmp_path / "runs", SCRIPT, "--x"]
    words = how_to_go_on(shoal("run", *options, KILLED_IN="1", RUNS=str(tmp_path / "runs")))
    [folder] = folders(tmp_path)
    at = Checkpoints(folder / "checkpoints").choose()
    assert words == ["run", "--resume", str(folder)]
    more = ["--title", "second", "--output", "all", "--optimizer-option", "betas=[0.8,0.9]"]
    more += ["--checkpoint-every", 0]
    words = how_to_go_on(shoal(*words, *more, SCRIPT, "--y", KILLED_IN="first"))
    assert words[:3] == ["run", "--resume", str(folder)]
    found = told(shoal(*words))
    assert (found["began_at"], found["lr"], found["betas"]) == (at, 0.05, [0.8, 0.9])
    assert found["args"] == ["--y"]
    [*_, last] = folders(tmp_path)
    assert last.name.startswith("second-")
    job = (last / "job.toml").read_text()
    assert 'output = "all"' in job
    assert "checkpoint_every = 0" in job  # the usual value, and not the one of the first run


def how_to_go_on(process):
    """The words that a run which was killed says."""
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert text("script_options.resume_with") in errors, errors
    return shlex.split(errors.split(text("script_options.resume_with"))[1].split("\n")[0])


def test_a_run_keeps_its_last_checkpoints(tmp_path):
    run(tmp_path, "--checkpoint-every", 1, SCRIPT)
    [folder] = folders(tmp_path)
    assert Checkpoints(folder / "checkpoints").complete() == [26, 27, 28, 29, 30]
