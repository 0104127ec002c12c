"""A cluster that is started by hand: who is waited for, who may come, and what dies together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from shoal.apps.why import explain
from shoal.client.client import Client
from shoal.tables.spec import Access, TableSpec
from tests.real.texts import text

pytestmark = pytest.mark.real

SHOAL = [sys.executable, "-m", "shoal"]
SCRIPT = Path(__file__).parent / "scripts" / "endless.py"


@pytest.fixture
def by_hand(tmp_path):
    """Starts a role; all are ended at the end, if they have not by themselves."""
    address, started = f"unix://{tmp_path}/private/s.sock", []

    def start(role, *words):
        where = "--listen" if role == "scheduler" else "--scheduler"
        process = subprocess.Popen(
            [*SHOAL, role, where, address, *map(str, words)],
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if k != "SHOAL_TOKEN"},
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    start.address = address
    start.started = started
    yield start
    for process in started:
        process.kill()
        process.wait()


def until(true, what, limit_s=40.0):
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.02)  # polls other processes: there is no event to wait for


def test_a_server_that_alone_has_rows_may_stand_still_for_longer_than_silence(by_hand):
    by_hand("scheduler", "--workers", 1, "--servers", 1, "--failure-timeout-s", 3)
    server = by_hand("server")
    with Client(by_hand.address) as client:
        client.create_table(TableSpec("w", 8, access=Access("sum"), merge="sum"))
        client.blocking.push("w", torch.ones(8))
        server.send_signal(signal.SIGSTOP)
        late = client.push("w", torch.ones(8))
        said = []

        def told():
            found = explain(by_hand.address)["waits"]
            said[:] = [each["reason"] for each in found if each["at"] == "scheduler"]
            return any(text("by_hand.sole_owner") in reason for reason in said)

        until(told, lambda: said)
        server.send_signal(signal.SIGCONT)
        late.wait()
        assert client.blocking.pull("w").tolist() == [2.0] * 8
    assert [process.wait(20) for process in by_hand.started] == [0, 0]


def test_a_server_whose_scheduler_is_gone_obeys_sigterm(by_hand):
    scheduler = by_hand("scheduler", "--workers", 1, "--servers", 1)
    server = by_hand("server")
    client = Client(by_hand.address)
    client.create_table(TableSpec("w", 8, access=Access("sum"), merge="sum"))
    scheduler.kill()
    scheduler.wait()
    server.terminate()
    assert server.wait(4) == 128 + signal.SIGTERM  # 1.5 s, and what an exit takes on a busy machine
    client.fail(KeyboardInterrupt())  # a farewell would wait for the scheduler


def test_a_server_that_has_not_found_its_scheduler_obeys_sigterm(by_hand, tmp_path):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    server = by_hand("server")
    until(lambda: list(private.glob("*server*")), lambda: list(private.iterdir()))
    server.terminate()
    assert server.wait(4) == 128 + signal.SIGTERM


def test_a_server_that_waits_for_its_schedulers_name_obeys_sigterm(by_hand):
    command = [*SHOAL, "server", "--scheduler", "tcp://late.invalid:4000"]
    env = {**os.environ, "SHOAL_TOKEN": "a token of sixteen characters"}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as server:
        by_hand.started.append(server)
        assert text("by_hand.awaited_name") in server.stderr.readline()
        server.terminate()
        assert server.wait(4) == -signal.SIGTERM


def test_a_server_that_has_left_is_not_done_and_another_takes_its_rows(by_hand):
    """Its status says so to what restarts it, as Kubernetes does with pods of a drained node."""
    by_hand("scheduler", "--workers", 1, "--servers", 2, "--replicas", 2)
    leaves = by_hand("server")
    by_hand("server")
    with Client(by_hand.address) as client:
        client.create_table(TableSpec("w", 8, access=Access("sum"), merge="sum"))
        client.blocking.push("w", torch.ones(8))
        leaves.terminate()
        assert leaves.wait(20) == 128 + signal.SIGTERM
        assert client.await_until(lambda: len(client.view.servers) == 1, 20)
        by_hand("server")
        whole = lambda: all(len(each.in_sync) == 2 for each in client.view.placements[0])  # noqa: E731
        assert client.await_until(whole, 20)
        client.blocking.push("w", torch.ones(8))
        assert client.blocking.pull("w").tolist() == [2.0] * 8
    by_hand.started.remove(leaves)
    assert [process.wait(20) for process in by_hand.started] == [0, 0, 0]


def test_workers_of_an_elastic_cluster_join_late_and_leave_early(by_hand):
    by_hand("scheduler", "--workers", 1, "--servers", 1, "--elastic")
    by_hand("server")
    with Client(by_hand.address) as first:
        first.create_table(TableSpec("w", 8, access=Access("sum"), merge="sum"))
        with Client(by_hand.address) as second:
            until(lambda: len(first.view.workers) == 2, lambda: first.view)
            second.create_table(TableSpec("w", 8, access=Access("sum"), merge="sum"))
            second.blocking.push("w", torch.ones(8))
        assert first.blocking.pull("w").tolist() == [1.0] * 8
    assert [process.wait(20) for process in by_hand.started] == [0, 0]


@pytest.mark.parametrize("more", [(), ("--elastic",)], ids=["fixed", "elastic"])
def test_ctrl_c_on_a_worker_ends_that_worker_alone(by_hand, tmp_path, more):
    by_hand("scheduler", "--workers", 2, "--servers", 1, *more)
    by_hand("server")
    with (
        subprocess.Popen(
            [*SHOAL, "worker", "--scheduler", by_hand.address, SCRIPT],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        ) as worker,
        Client(by_hand.address) as other,
    ):
        other.barrier("params written")
        done = other.advance()
        until((tmp_path / "trains").exists, lambda: "it does not train")
        worker.send_signal(signal.SIGINT)
        _, said = worker.communicate(timeout=20)
        done.wait()
        until(lambda: len(other.view.workers) == 1, lambda: other.view)
        other.advance().wait()
    assert worker.returncode == 128 + signal.SIGINT
    assert said.splitlines()[-1] == text("by_hand.worker_interrupted")
    assert [process.wait(20) for process in by_hand.started] == [0, 0]


def test_replicas_are_on_servers_with_different_host_labels(by_hand):
    by_hand("scheduler", "--workers", 1, "--servers", 4, "--replicas", 2)
    for label in "aabb":
        by_hand("server", "--host-label", label)
    with Client(by_hand.address) as client:
        client.create_table(TableSpec("w", 80, fragment_rows=2, access=Access("sum"), merge="sum"))
        hosts = {member.rank: member.host for member in client.view.servers}
        assert sorted(hosts.values()) == ["a", "a", "b", "b"]
        for placement in client.view.placements_of("w"):
            assert {hosts[rank] for rank in placement.in_sync} == {"a", "b"}
