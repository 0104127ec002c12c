"""`shoal why`, and workers that are dropped because the others wait for them."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.apps.bench.suites import stragglers
from shoal.apps.train.command import TrainApplication
from shoal.apps.why import explain
from shoal.cli import main
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.errors import DataMissing, JoinTimeout
from shoal.reports.events import read_events
from shoal.runs.job import from_mapping
from shoal.runs.run import run_here
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import bsp
from shoal.tables.spec import TableSpec
from tests.real.texts import pattern, text

pytestmark = pytest.mark.real
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def run(tmp_path):
    """A run's folder, and two workers in this process; one of them has finished its clock."""
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        address = start_cluster(processes, 2, 2)
        clients = []
        threads = [
            threading.Thread(target=lambda: clients.append(Client(address, ClientOptions())))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        try:
            yield folder, address, sorted(clients, key=lambda client: client.rank)
        finally:
            for client in clients:
                client.close()


def wait_until(found, what):
    """Ask until it is so: a request is on its way."""
    for _ in range(200):
        told = found()
        if what(told):
            return told
    raise AssertionError(told)


def test_why_names_the_worker_that_is_waited_for(run):
    folder, address, (first, second) = run
    for client in (first, second):
        client.create_table(TableSpec("w", 100, consistency=bsp(), fragment_rows=50))
    first.advance().wait()
    pulled = first.pull("w")
    told = wait_until(lambda: explain(str(folder.path)), lambda told: len(told["waits"]) == 2)
    assert {wait["at"] for wait in told["waits"]} == {"server-0", "server-1"}
    for wait in told["waits"]:
        assert wait["who"] == "worker-0"
        assert wait["reason"] == text("why.waits_for_a_worker")
    assert {wait["what"] for wait in told["waits"]} == {
        text("why.pull", start=0, stop=50),
        text("why.pull", start=50, stop=100),
    }
    shown = CliRunner().invoke(main, ["why", address])
    assert text("why.waits_for_a_worker") in " ".join(shown.output.split())
    second.advance().wait()
    pulled.wait()
    last = CliRunner().invoke(main, ["why", str(folder.path), "--json"])
    assert json.loads(last.stdout)["waits"] == []


def test_why_names_the_worker_missing_at_a_barrier(run):
    folder, _, (first, second) = run
    entered = threading.Thread(target=first.barrier, args=("epoch",))
    entered.start()
    told = wait_until(lambda: explain(str(folder.path)), lambda told: told["waits"])
    [wait] = told["waits"]
    assert (wait["who"], wait["what"]) == ("worker-0", text("why.barrier"))
    assert wait["reason"] == text("why.at_a_barrier")
    second.barrier("epoch")
    entered.join()


def test_why_without_a_run_says_so(tmp_path):
    with pytest.raises(DataMissing, match=pattern("why.no_folder")):
        explain(str(tmp_path / "nowhere"))
    with pytest.raises(JoinTimeout, match=pattern("why.nobody_answers")):
        explain(f"unix://{tmp_path}/nobody.sock")
    summary = run_here(
        TrainApplication(from_mapping({"epochs": 1, "max_steps": 2, "out": str(tmp_path)}), [])
    )
    with pytest.raises(DataMissing, match=pattern("why.all_finished")):
        explain(summary["run_dir"])


def test_a_job_drops_a_worker_that_is_too_slow(tmp_path):
    """The others would wait for it in three quarters of the time."""
    folder = RunFolder.create(tmp_path, "slow")
    told = stragglers._run(folder, 0, seconds=4.0, slow_workers="drop")
    assert 2 * told[0]["steps"] < min(each["steps"] for each in told[1:])


def test_neighbours_go_on_without_a_worker_that_is_late(tmp_path):
    flags = "--workers 3 --servers 0 --on-timeout drop --sync-timeout-s 1"
    script = [str(SCRIPTS / "late_neighbour.py"), str(tmp_path)]
    words = ["run", *flags.split(), "--out", str(tmp_path), *script]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert max(told[rank]["seconds"] for rank in (0, 2)) < 6.0 < told[1]["seconds"]
    assert told[0]["ends"] == told[1]["ends"] == told[2]["ends"]  # flush waits for all


def test_on_a_timeout_a_worker_that_others_wait_for_is_dropped(tmp_path):
    """A slow one is not, though the others wait for it most of the time."""
    flags = "--workers 3 --servers 1 --on-timeout drop --sync-timeout-s 2 --title run"
    script = [str(SCRIPTS / "slow_worker.py"), "once"]
    words = ["run", *flags.split(), "--out", str(tmp_path), *script]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    [folder] = tmp_path.glob("run-*")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    [dropped] = [each for each in events if each["kind"] == "dropped"]
    assert dropped["name"] == "worker-2"


def test_a_script_drops_a_worker_that_is_too_slow(tmp_path):
    flags = ["--workers", "3", "--servers", "1", "--slow-workers", "drop", "--out", str(tmp_path)]
    script = [str(SCRIPTS / "slow_worker.py"), "always"]
    done = CliRunner().invoke(main, ["run", *flags, "--title", "run", *script])
    assert done.exit_code == 0, done.output
    [folder] = tmp_path.glob("run-*")
    told = json.loads((folder / "logs" / "worker-2.error").read_text())
    assert told["type"] == "Dropped"
    assert text("why.too_slow") in told["message"]


def test_others_do_what_a_slow_worker_had_and_it_comes_again(tmp_path, monkeypatch):
    shutil.copy(SCRIPTS / "slow_model.py", tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(tmp_path)
    epochs = 150
    words = ["--model", "slow_model:make", "--workers", 3, "--epochs", epochs, "--batch-size", 32]
    words += ["--on-worker-loss", "reassign", "--slow-workers", "backup", "--out", tmp_path]
    done = CliRunner().invoke(main, ["train", "digits", *map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    [slow] = summary["dropped"]
    events = list(read_events(Path(summary["run_dir"]) / "events.jsonl"))
    views = [each["reason"] for each in events if each["kind"] == "view"]
    assert [reason for reason in views if slow in reason] == [
        text("why.member_left", name=slow),
        text("why.member_joined", name=slow),
    ]
    assert summary["reassigned"] > 0
    counted = sum(each["samples"] for each in events if each["kind"] == "step")
    assert epochs * 1438 - 32 <= counted <= epochs * 1438  # its last counted, or another's did
