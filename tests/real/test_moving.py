"""Processes that are killed again and again, and servers that come and go, on this machine."""

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from shoal.apps.why import explain
from shoal.cli import main
from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.cluster import server_task, start_cluster
from shoal.engines.processes import Processes
from shoal.factories import importable
from shoal.protocol.supervision.supervisor import loss_policy
from shoal.reports.events import read_events
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import bsp
from shoal.tables.spec import Access, TableSpec
from tests.real.texts import text
from tests.real.waiting import until
from tests.transport.rigs import free_port

pytestmark = pytest.mark.real

UNMOVABLE = Path(__file__).parent / "scripts" / "unmovable.py"
ROWS = 600
PLATEAU = 20  # epochs, after which rounds without a dead worker do not show in digits' accuracy


@pytest.fixture
def cluster(tmp_path):
    """Two servers, a worker's client, and the engine that has started them."""
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        address = start_cluster(processes, 2, 1)
        client = Client(address)
        try:
            yield processes, address, client
        finally:
            client.close()


def server_names(client):
    return [member.name for member in client.view.servers]


def holders(client):
    return {
        rank
        for placements in client.view.placements
        for placement in placements
        for rank in placement.in_sync
    }


def settled(client, servers):
    placements = [placement for placements in client.view.placements for placement in placements]
    return (
        len(client.view.servers) == servers
        and len(holders(client)) == servers
        and not any(placement.syncing_since for placement in placements)
    )


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_server_joins_and_another_leaves_while_updates_go_on(cluster, kind):
    processes, address, client = cluster
    common = {"access": Access("sum"), "merge": "sum", "consistency": bsp()}
    if kind == "dense":
        client.create_table(TableSpec("w", ROWS, fragment_rows=10, **common))
    else:
        client.create_table(TableSpec("w", 0, (1,), kind="sparse", **common))
    keys = None if kind == "dense" else torch.arange(ROWS)
    ones = torch.ones(ROWS if kind == "dense" else (ROWS, 1))
    pushed = 0

    def push():
        nonlocal pushed
        client.push("w", ones, keys)
        client.advance().wait()
        pushed += 1
        return True

    until(lambda: push() and pushed >= 20, "pushes")
    processes.start(server_task(processes, address, 2))
    until(lambda: push() and settled(client, 3), "a third server")
    os.kill(processes.pid("server-0"), signal.SIGTERM)
    until(lambda: push() and settled(client, 2), "one that leaves")
    assert server_names(client) == ["server-1", "server-2"]
    until(lambda: "server-0" not in processes.running or processes.exits(0.1) is None, "its end")
    out = torch.empty_like(ones)
    client.blocking.pull("w", keys, out)
    assert out.unique().tolist() == [pushed]


def test_a_server_with_an_immovable_table_does_not_leave(tmp_path):
    module = importable(str(UNMOVABLE))
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        with Client(start_cluster(processes, 2, 1, imports=[module])) as client:
            client.create_table(TableSpec("b", kind="custom", access=Access("unmovable")))
            keys = list(range(50))
            client.push("b", torch.ones(50), keys).wait()
            os.kill(processes.pid("server-0"), signal.SIGTERM)
            log = processes.folder.log("server-0")
            until(lambda: text("moving.cannot_leave") in log.read_text(), "its log")
            values, _ = client.pull("b", keys).wait()
            assert values.tolist() == [1.0] * 50
        processes.finish()


def test_what_handlers_have_survives_one_server_after_the_other(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    spec = TableSpec("b", kind="custom", access=Access("lists"))
    keys = list(range(50))
    with Processes(folder) as processes:
        with Client(start_cluster(processes, 3, 1, replicas=2)) as client:
            assert client.create_table(spec).saves
            for times, name in enumerate(("server-0", "server-1", "server-0"), start=1):
                client.push("b", torch.ones(50), keys).wait()
                os.kill(processes.pid(name), signal.SIGKILL)
                values, _ = client.pull("b", keys).wait()
                assert values.tolist() == [times] * 50
                until(
                    lambda name=name: name not in processes.running or processes.exits(0.1),
                    "it ends",
                )
                processes.start_again(name)
                until(lambda: whole(client, 3), "its rows are on two servers again")
        processes.finish()


def whole(client, servers):
    view = client.view
    placements = [placement for placements in view.placements for placement in placements]
    return len(view.servers) == servers and all(
        len(placement.in_sync) == 2 for placement in placements
    )


def test_chaos_loses_nothing(tmp_path):
    """Of a server, a worker and the scheduler, each of which is killed."""
    report = chaos("--kills", 3, out=tmp_path)
    assert report["faults"] == {"kill-server": 1, "kill-worker": 1, "kill-scheduler": 1}
    assert_nothing_is_lost(report)
    assert report["scheduler_back_s_max"] is not None
    assert report["takeover_s_max"] is not None


def test_chaos_strikes_whom_it_is_told_to_at_the_step_that_it_is_told(tmp_path):
    faults = "kill-server-1@5,restart-server-2@10,stop-worker-0@15,restart-worker@20"
    report = chaos("--faults", faults, out=tmp_path)
    kinds = ("kill-server", "restart-server", "stop-worker", "restart-worker")
    assert report["faults"] == dict.fromkeys(kinds, 1)
    injected = [(each["name"], each["step"]) for each in report["injected"]]
    assert [name for name, _ in injected[:3]] == ["server-1", "server-2", "worker-0"]
    assert all(step >= asked for (_, step), asked in zip(injected, (5, 10, 15, 20), strict=True))
    assert_nothing_is_lost(report)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs namespaces")
def test_nothing_is_lost_where_links_are_cut_or_slow(tmp_path):
    faults = "partition-server,slow-worker,partition-scheduler"
    report = chaos("--faults", faults, "--kills", 3, out=tmp_path)
    assert report["faults"] == dict.fromkeys(faults.split(","), 1)
    assert_nothing_is_lost(report)
    assert not list(Path("/run/netns").glob(f"shoal-{os.getpid()}-*"))


def chaos(*arguments, out):
    words = ["chaos", "digits", "--epochs", str(PLATEAU), *map(str, arguments)]
    words += ["--out", str(out), "--json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def assert_nothing_is_lost(report):
    """Nor is training worse than undisturbed."""
    wrong = ("acknowledged_lost", "acknowledged_doubled", "strange")
    assert {each: report[each] for each in wrong} == dict.fromkeys(wrong, 0)
    assert report["acknowledged"] > 100
    assert report["accuracy"] == pytest.approx(report["accuracy_undisturbed"], abs=0.005)


def test_chaos_needs_replicas(tmp_path):
    result = CliRunner().invoke(
        main, ["chaos", "digits", "--replicas", "1", "--out", str(tmp_path)]
    )
    assert result.exit_code != 0
    assert text("moving.needs_replicas") in result.output


def test_a_fault_that_is_not_in_the_schedule_is_named(tmp_path):
    result = CliRunner().invoke(main, ["chaos", "--faults", "kill-cat", "--out", str(tmp_path)])
    assert result.exit_code != 0
    assert text("moving.unknown_fault") in result.output


def test_a_server_that_is_killed_before_all_have_joined_is_started_again(tmp_path):
    """At first its former self still counts, and there is no room for another."""
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        address = start_cluster(processes, 2, 1, replicas=2)

        def only_the_worker_is_missing():
            reasons = [wait["reason"] for wait in explain(address)["waits"]]
            return reasons == [text("moving.worker_missing")]

        until(only_the_worker_is_missing, "both servers have joined")
        os.kill(processes.pid("server-0"), signal.SIGKILL)
        policy = {"policy": loss_policy(2, 2)}
        watching = threading.Thread(target=processes.join, kwargs=policy, daemon=True)
        watching.start()
        with Client(address, ClientOptions(init_timeout_s=30.0)) as client:
            assert len(client.view.servers) == 2
        watching.join()


def test_a_process_exit_over_tcp_is_noticed_at_once(tmp_path):
    """Over TCP a connection that breaks proves nothing for 3 s: one that the engine has does."""
    folder = RunFolder.create(tmp_path, "run")
    listen = f"tcp://127.0.0.1:{free_port()}"
    more = {"replicas": 2, "token": "a token of sixteen", "folder": str(folder.path)}
    with Processes(folder) as processes:
        start_cluster(processes, 2, 1, listen, server_listen="tcp://127.0.0.1:0", **more)
        options = ClientOptions(init_timeout_s=30.0, token="a token of sixteen")
        with Client(listen, options) as client:
            os.kill(processes.pid("server-1"), signal.SIGKILL)
            until(lambda: processes.exits(0.01), "the engine sees it")
            until(lambda: len(client.view.servers) == 1, "the others are told")
    lost = [each for each in read_events(folder.events) if each["kind"] == "lost"]
    assert [(each["name"], each["how"]) for each in lost] == [
        ("server-1", text("moving.process_ended"))
    ]


def test_all_replicas_of_some_rows_are_killed_and_the_job_is_resumed(tmp_path):
    arguments = ["chaos", "digits", "--kills", "20", "--faults", "kill-server", "--early"]
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert text("moving.rows_lost") in report["range_lost"]
    assert abs(report["accuracy"] - report["accuracy_undisturbed"]) < 0.005
