"""A few runs on real processes: what a user types, and what they see when something dies."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import shoal
from shoal.cli import main
from shoal.errors import DataMissing
from shoal.runs.resume import resumed_at
from tests.real.texts import text
from tests.transport.rigs import free_port

SHOAL = [sys.executable, "-m", "shoal"]
SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.real


def command(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SHOAL, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
    )


@contextmanager
def training(folder: Path, words: str) -> Iterator[subprocess.Popen[str]]:
    """`shoal train digits`, under way."""
    with subprocess.Popen(
        [*SHOAL, "train", "digits", *words.split()],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        yield run


@pytest.mark.usefixtures("processes_are_those_of_users")
@pytest.mark.parametrize(
    "strategy", [["sync"], ["ssp", "--staleness", "1"], ["asgd"], ["allreduce"]], ids=lambda s: s[0]
)
def test_every_strategy_learns_digits(strategy, tmp_path):
    done = command(
        "train", "digits", "--workers", "2", "--servers", "2", "--epochs", "12",
        "--strategy", *strategy, "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["accuracy"] >= 0.9
    assert set(summary) >= {
        "accuracy", "loss", "samples_per_s", "wall_s", "time_to", "bytes_pushed", "bytes_pulled",
        "run_dir",
    }  # fmt: skip
    run = shoal.load_run(tmp_path / summary["run_dir"])
    assert set(run.steps) == set(run.evals) == {0, 1}
    assert (run.path / "model.safetensors").exists()
    assert (run.path / "workers" / "1" / "eval.csv").read_text().startswith("t,epoch,step,accuracy")
    if strategy[0] in ("sync", "allreduce"):  # all workers' evaluations are equal
        assert run.evals[0]["accuracy"] == run.evals[1]["accuracy"]
    if strategy[0] != "allreduce":
        assert summary["bytes_pushed"] > 0


def test_a_job_file_with_tcp_trains(tmp_path):
    (tmp_path / "job.toml").write_text(
        'data = "digits"\ntransport = "tcp"\nepochs = 2\nservers = 2\n'
        'layers = ["Flatten", ["Linear", 32], "Tanh", {type = "Linear", out_features = 10}]\n'
    )
    done = command("train", "job.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    resolved = Path(tmp_path / json.loads(done.stdout)["run_dir"] / "job.toml").read_text()
    assert 'transport = "tcp"' in resolved


@pytest.mark.parametrize("victim", ["server-1", "worker-0", "scheduler"])
def test_a_killed_process_is_named_and_nothing_stays(victim, tmp_path):
    with training(tmp_path, "--workers 2 --servers 2 --epochs 5000") as run:
        pid = _pid_in_training(tmp_path, victim, run)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        _, errors = run.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert run.returncode != 0
    assert victim in errors
    assert "SIGKILL" in errors
    if victim == "server-1":
        assert text("runs.rows_lost") in errors
        assert text("runs.add_replicas") in errors
    _assert_nothing_left(run.pid)


@pytest.mark.parametrize("strategy", ["sync", "asgd"])
def test_a_replicated_run_survives_a_servers_death(strategy, tmp_path):
    words = "--workers 2 --servers 3 --replicas 2 --epochs 20 --batch-size 16 --json"
    with training(tmp_path, f"{words} --strategy {strategy}") as run:
        os.kill(_pid_in_training(tmp_path, "server-1", run), signal.SIGKILL)
        answer, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    summary = json.loads(answer.splitlines()[-1])
    assert summary["lost"] == ["server-1"]
    assert summary["accuracy"] >= 0.9
    log = shoal.load_run(tmp_path / summary["run_dir"]).path / "events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    died = next(event["t"] for event in events if event["kind"] == "lost")
    after = [event for event in events if event["kind"] == "step" and event["t"] > died]
    assert {event["node"] for event in after} == {"worker-0", "worker-1"}
    shards = Path(tmp_path / summary["run_dir"]) / "shards"
    names = {each.name for each in shards.iterdir()}
    assert len(names) == 3  # one was started in its place
    assert {"server-0.safetensors", "server-2.safetensors"} < names
    exported = command("export", summary["run_dir"], "--out", "w.safetensors", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    _assert_nothing_left(run.pid)


@pytest.mark.parametrize("strategy", ["sync", "asgd"])
def test_a_killed_workers_data_is_reassigned(strategy, tmp_path):
    """Each sample counts in each epoch: what is not in a survivor's steps is in the dead one's."""
    epochs, samples, batch = 60, 1438, 64
    words = f"--workers 3 --strategy {strategy} --epochs {epochs} --on-worker-loss reassign --json"
    with training(tmp_path, words) as run:
        os.kill(_pid_in_training(tmp_path, "worker-1", run), signal.SIGKILL)
        answer, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    summary = json.loads(answer.splitlines()[-1])
    assert summary["lost"] == ["worker-1"]
    assert summary["may_repeat"] <= (strategy == "asgd")
    log = tmp_path / summary["run_dir"] / "events.jsonl"
    steps = [json.loads(line) for line in log.read_text().splitlines() if '"step"' in line]
    counted = sum(each["samples"] for each in steps if each["kind"] == "step")
    assert epochs * samples - batch <= counted  # the dead one's last may have counted untold
    assert counted <= epochs * samples + batch * summary["may_repeat"]
    _assert_nothing_left(run.pid)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_without_servers_the_others_go_on_without_a_killed_neighbour(mode, tmp_path):
    words = f"--workers 4 --strategy p2p --set graph=ring --set mode={mode} --epochs 40"
    with training(tmp_path, f"{words} --on-worker-loss drop --json") as run:
        os.kill(_pid_in_training(tmp_path, "worker-1", run), signal.SIGKILL)
        answer, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    summary = json.loads(answer.splitlines()[-1])
    assert summary["lost"] == ["worker-1"]
    assert summary["accuracy"] >= 0.85
    _assert_nothing_left(run.pid)


def test_a_scheduler_whose_disk_is_full_waits_for_room(tmp_path):
    """Leases are logged before workers hear of them; heartbeats are answered meanwhile."""
    words = "--workers 2 --servers 2 --epochs 60 --on-worker-loss reassign --checkpoint-every 50"
    with training(tmp_path, f"{words} --json") as run:
        pid = _pid_in_training(tmp_path, "scheduler", run)
        [folder] = tmp_path.glob("shoal-runs/*")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        steps, since, until = -1, time.monotonic(), time.monotonic() + 30
        while time.monotonic() < since + 4:  # longer than any member may be silent here
            assert time.monotonic() < until
            if (now := (folder / "events.jsonl").read_bytes().count(b'"step"')) != steps:
                steps, since = now, time.monotonic()
            time.sleep(0.05)  # polls other processes' files
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        answer, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    assert text("runs.failed") not in errors
    summary = json.loads(answer.splitlines()[-1])
    assert summary["lost"] == []
    assert summary["accuracy"] >= 0.9
    assert text("runs.disk_has_room") in (folder / "logs" / "scheduler.log").read_text()
    _assert_nothing_left(run.pid)


def test_a_run_ends_when_the_last_replica_of_rows_dies(tmp_path):
    with training(tmp_path, "--workers 2 --servers 2 --replicas 2 --epochs 5000") as run:
        for name in ("server-0", "server-1"):
            os.kill(_pid_in_training(tmp_path, name, run), signal.SIGKILL)
        _, errors = run.communicate(timeout=30)
    assert run.returncode != 0
    assert text("runs.all_rows_lost") in errors
    _assert_nothing_left(run.pid)


@pytest.mark.parametrize(
    ("words", "victim", "told"),
    [
        ("--servers 2", "server-1", text("runs.some_rows_lost")),
        ("--strategy allreduce", "worker-1", text("runs.killed", name="worker-1")),
        ("--strategy p2p", "worker-0", text("runs.killed", name="worker-0")),
    ],
)
def test_a_run_without_replicas_resumes_from_its_last_checkpoint(tmp_path, words, victim, told):
    words += " --workers 2 --epochs 25 --batch-size 16 --checkpoint-every 20"
    with training(tmp_path, words) as run:
        pid = _pid_in_training(tmp_path, victim, run)
        [folder] = tmp_path.glob("shoal-runs/*")
        until = time.monotonic() + 20
        while not _has_a_checkpoint(folder):
            assert time.monotonic() < until
            time.sleep(0.05)  # polls other processes' files
        os.kill(pid, signal.SIGKILL)
        _, errors = run.communicate(timeout=30)
    assert run.returncode != 0
    assert told in errors
    how = errors.split(text("runs.resume_with"))[1].split("\n")[0].split()
    done = command(*how, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["accuracy"] >= 0.9


def _has_a_checkpoint(run: Path) -> bool:
    try:
        return resumed_at(str(run)) > 0
    except DataMissing:
        return False


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_clean_up(ends, tmp_path):
    with training(tmp_path, "--epochs 5000 --checkpoint-every 1") as run:
        _pid_in_training(tmp_path, "worker-0", run)
        os.kill(run.pid, ends)
        _, errors = run.communicate(timeout=20)
    assert run.returncode == 128 + ends
    assert text("runs.interrupted") in errors
    _assert_nothing_left(run.pid)


def _pid_in_training(folder: Path, name: str, run: subprocess.Popen[str]) -> int:
    """Wait for the run's first evaluation, then find the named process's pid in its log."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert run.poll() is None, run.communicate()
        for events in folder.glob("shoal-runs/*/events.jsonl"):
            if '"kind":"eval"' in events.read_text():
                pids = json.loads((events.parent / "pids.json").read_text())
                return int(pids[name])
        time.sleep(0.05)  # polls another process's files; there is no event to wait for
    raise AssertionError("the run did not begin to train")


def _assert_nothing_left(parent: int) -> None:
    left = subprocess.run(
        ["pgrep", "-f", f"shoal.engines.fork_server.*/shoal-{parent}-"],
        capture_output=True,
        text=True,
    )
    assert left.stdout == ""
    assert not list(Path("/tmp").glob(f"shoal-{parent}-*"))


def test_invalid_input_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = {
        ("train", "digit"): text("runs.closest_dataset"),
        ("train", "digits", "--strategy", "sinc"): text("runs.unknown_strategy"),
        ("train", "digits", "--workers", "0"): "workers",
        ("train", "digits", "--staleness", "2"): text("runs.staleness"),
        ("train", "digits", "--optimizer", "adamm"): text("runs.closest_method"),
        ("train", "digits", "--redundancy", "2"): text("runs.redundancy"),
        ("train", "digits", "--on-worker-loss", "reassign", "--assignment", "noniid"): text(
            "runs.whose_data"
        ),
        (
            "train",
            "digits",
            "--on-worker-loss",
            "drop",
            "--strategy",
            "allreduce",
        ): text("runs.losses_kept"),
        ("train", "digits", "--optimizer-option", "momentun=1"): "momentun",
        ("train", "nowhere.toml"): text("runs.no_job_file"),
        ("train", "digits", "--model", "nn:nothing"): "nn",
        ("train", "csv:absent.csv"): "absent.csv",
        ("scheduler", "--listen", "tcp://0.0.0.0:0", "--workers", "1", "--servers", "1"): text(
            "runs.token_missing"
        ),
        ("server", "--scheduler", "nonsense"): text("runs.not_an_address"),
        ("train", "digits", "--global-batch-size", "33"): text("runs.batch_not_divisible"),
        ("train", "digits", "--out", "/proc/nowhere"): text("runs.out_not_writable"),
    }
    cases["train", "wine"] = text("runs.unknown_dataset")
    for words, told in cases.items():
        done = CliRunner().invoke(main, words)
        assert done.exit_code != 0, words
        assert told in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr, (words, done.stderr)
    assert not list(tmp_path.iterdir())  # refused before anything starts


def test_roles_started_by_hand_name_the_missing_members(tmp_path):
    done = command(
        "scheduler", "--listen", f"unix://{tmp_path}/private/s.sock", "--workers", "1",
        "--servers", "2", "--join-timeout-s", "0.3", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert text("runs.members_missing") in done.stderr


def test_roles_started_by_hand_train_a_job(tmp_path):
    """A server that is reached by another name than it listens at, and a worker's own script."""
    address = f"tcp://127.0.0.1:{free_port()}"
    roles = [
        ("scheduler", "--listen", address, "--workers", "1", "--servers", "1"),
        ("server", "--scheduler", address, "--advertise", "tcp://localhost:0"),
        ("worker", "--scheduler", address, str(EXAMPLES / "kv.py")),
    ]
    processes = [
        subprocess.Popen(
            [*SHOAL, *words],
            cwd=tmp_path,
            env={**os.environ, "SHOAL_TOKEN": "the token of the roles"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in roles
    ]
    for process, words in zip(processes, roles, strict=True):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, (words, errors)


def test_a_wrong_token_is_refused_at_once(tmp_path):
    address = f"tcp://127.0.0.1:{free_port()}"
    with subprocess.Popen(
        [*SHOAL, "scheduler", "--listen", address, "--workers", "1", "--servers", "1"],
        cwd=tmp_path,
        env={**os.environ, "SHOAL_TOKEN": "the right token of it"},
        stderr=subprocess.PIPE,
    ) as scheduler:
        scheduler.stderr.readline()  # it listens
        for token, error, told in (
            ("a token that is wrong", "HandshakeRefused", text("runs.wrong_token")),
            ("", "AddressInvalid", text("runs.pass_a_token")),
        ):
            began = time.monotonic()
            done = command("server", "--scheduler", address, cwd=tmp_path, SHOAL_TOKEN=token)
            assert error in done.stderr
            assert told in done.stderr
            assert time.monotonic() - began < 20, "it waited to be let in"
        scheduler.kill()


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [("leaves.py", 0, "left 0"), ("hello.py", 2, text("runs.never_joined"))],
)
def test_a_script_may_leave_its_run_but_has_to_join_it(script, code, says, tmp_path):
    words = ("run", "--workers", "2", "--servers", "1", str(SCRIPTS / script))
    done = command(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr
