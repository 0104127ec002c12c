"""Worker groups on a real cluster: others attach to a run, and neither waits for the other."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import shoal
from shoal.apps.why import explain
from shoal.client.context import Context
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.errors import (
    ClusterFull,
    DataMissing,
    InvalidValue,
    JoinRefused,
    JoinTimeout,
    Refused,
    RunAborted,
    SyncTimeout,
)
from shoal.reports.events import read_events
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import asp, bsp
from shoal.tables.sparse.optimizers import row_methods
from shoal.tables.spec import Access, TableSpec
from tests.real.texts import pattern, text
from tests.real.waiting import until

pytestmark = pytest.mark.real

ROWS = 600
SCRIPT = Path(__file__).parent / "scripts" / "guest.py"


def table(name, rule=None):
    return TableSpec(name, ROWS, access=Access("sum"), consistency=rule or bsp(), merge="sum")


@pytest.fixture
def run(tmp_path):
    """Two servers with a replica of each row, the run's folder, and a worker of its own."""
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        start_cluster(processes, 2, 1, replicas=2, folder=str(folder.path))
        client = shoal.connect(str(folder.path))
        client.create_table(table("w"))
        try:
            yield processes, folder, client
        finally:
            client.close()


def push(client, name, value=1.0):
    return client.push(name, torch.full((ROWS,), value))


def test_each_group_has_clocks_and_tables_of_its_own(run):
    _, folder, first = run
    with shoal.connect(str(folder.path), group="eval") as guest:
        assert (guest.rank, guest.world_size, first.world_size) == (0, 1, 1)
        assert guest.groups == {"": 1, "eval": 1}
        assert [m.name for m in guest.view.workers] == ["worker-0", "eval/worker-0"]
        guest.create_table(table("w"))
        assert [spec.name for spec in guest.view.tables] == ["/w", "w"]
        for _ in range(3):  # its rounds close without the first group, which has not moved
            push(guest, "w", 2.0)
            guest.advance().wait()
        assert guest.blocking.pull("w").tolist() == [6.0] * ROWS
        push(first, "w")
        assert guest.blocking.pull("/w").tolist() == [0.0] * ROWS  # a round that is open
        first.advance().wait()
        assert first.blocking.pull("w").tolist() == [1.0] * ROWS
        assert guest.blocking.pull("/w").tolist() == [1.0] * ROWS
        assert (first.clock, guest.clock) == (1, 3)
        guest.barrier("there")  # the first group is in none of that name
    assert [spec.name for spec in first.view.tables] == ["w", "eval/w"]
    assert first.blocking.pull("eval/w").tolist() == [6.0] * ROWS


def test_a_group_may_not_push_to_anothers_synchronous_table(run):
    _, folder, first = run
    with shoal.connect(str(folder.path), group="eval") as guest:
        with pytest.raises(InvalidValue, match=pattern("groups.synchronous_table_of_another")):
            push(guest, "/w").wait()
        with pytest.raises(InvalidValue, match=pattern("groups.table_unknown")):
            guest.blocking.pull("w")
        with pytest.raises(Refused, match=pattern("groups.another_specification")):
            guest.create_table(TableSpec("/w", ROWS + 1))
        with pytest.raises(ClusterFull, match=pattern("groups.full")):
            shoal.connect(str(folder.path), group="eval")
        first.advance().wait()
    with pytest.raises(InvalidValue, match=pattern("groups.name_wrong")):
        shoal.connect(str(folder.path), group="a/b")
    with pytest.raises(InvalidValue, match=pattern("groups.size_wrong")):
        shoal.connect(str(folder.path), group="a", group_size=0)
    with pytest.raises(DataMissing, match=pattern("groups.no_folder")):
        shoal.connect(str(folder.path / "absent"), group="eval")


def test_groups_share_a_namespace_and_asynchronous_tables(run):
    _, folder, first = run
    first.create_table(table("shared", asp()))
    with shoal.connect(str(folder.path), group="more", namespace="") as guest:
        guest.create_table(table("shared", asp()))
        push(guest, "shared").wait()
        push(first, "shared").wait()
        assert guest.blocking.pull("shared").tolist() == [2.0] * ROWS
        assert guest.blocking.pull("w").tolist() == [0.0] * ROWS


def test_a_group_begins_when_all_its_workers_have_joined(run):
    _, folder, first = run
    with pytest.raises(JoinTimeout):
        shoal.connect(str(folder.path), group="two", group_size=2, init_timeout_s=0.5)
    assert first.groups == {"": 1}
    joined = []
    # who has timed out is taken for dead after a while: ranks are given around it
    threads = [
        threading.Thread(
            target=lambda: joined.append(
                shoal.connect(str(folder.path), group="pair", group_size=2)
            )
        )
        for _ in range(2)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    one, other = sorted(joined, key=lambda client: client.rank)
    try:
        assert [(c.rank, c.world_size) for c in (one, other)] == [(0, 2), (1, 2)]
        with pytest.raises(JoinRefused, match=pattern("groups.another_size")):
            shoal.connect(str(folder.path), group="pair", group_size=3)
        sums = [torch.ones(4), torch.ones(4)]
        futures = [c.all_reduce(each) for c, each in zip((one, other), sums, strict=True)]
        for each in futures:
            each.wait()
        assert [each.tolist() for each in sums] == [[2.0] * 4] * 2  # of the group, and no other
        one.create_table(table("w"))
        other.create_table(table("w"))
        push(one, "w")
        one.advance().wait()
        with pytest.raises(SyncTimeout, match=pattern("groups.waits_in_the_group")):
            one.blocking.pull("w", timeout_s=0.3)
        found = explain(str(folder.path))
        assert "pair/worker-1" in found["workers"]
    finally:
        for each in (one, other):
            each.close()


def test_a_failed_group_ends_alone_and_its_name_is_free_again(run):
    _, folder, first = run

    def failing():
        with shoal.connect(str(folder.path), group="eval") as guest:
            guest.barrier("once")
            guest.create_table(table("w"))
            list_of(guest)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    until(lambda: first.groups == {"": 1}, "the group that failed is still there")
    for _ in range(2):
        with shoal.connect(str(folder.path), group="eval") as guest:
            guest.barrier("once")
            assert guest.rank == 0
            assert list_of(guest) == [0, 1, 2, 3]
    push(first, "w")
    first.advance().wait()
    assert first.blocking.pull("w").tolist() == [1.0] * ROWS


def list_of(client):
    """What it is leased: every batch of an epoch of its own."""
    found = []
    for _, batch in shoal.leases(1, 4, client=client):
        found.append(batch)
        client.advance().wait()
    return [each for each in found if each is not None]


def test_a_group_leases_data_of_its_own(run):
    _, folder, first = run
    with shoal.connect(str(folder.path), group="eval") as guest:
        assert list_of(guest) == [0, 1, 2, 3]
    with shoal.connect(str(folder.path), group="eval") as guest:
        assert list_of(guest) == [0, 1, 2, 3]  # the one before has finished
    assert list_of(first) == [0, 1, 2, 3]
    leased = [each for each in read_events(folder.events) if each["kind"] == "leased"]
    assert {each["group"] for each in leased} == {"", "eval"}


def test_a_run_waits_for_an_attached_group(run):
    processes, folder, first = run
    with shoal.connect(str(folder.path), group="eval") as guest:
        push(first, "w")
        first.close()
        until(lambda: "" not in guest.groups, "the first group is not said to have finished")
        # it reads what a replica has, which may not have the last round yet
        until(lambda: guest.blocking.pull("/w").tolist() == [1.0] * ROWS, "its push is lost")
        processes.exits(0.0)
        assert "scheduler" in processes.running
    processes.join()


def test_two_groups_survive_a_servers_death(run):
    processes, folder, first = run
    stop, read = threading.Event(), []
    with shoal.connect(str(folder.path), group="eval") as guest:
        guest.create_table(table("w"))

        def look():
            while not stop.is_set():
                read.append(guest.blocking.pull("/w")[0].item())
                push(guest, "w")
                guest.advance().wait()

        looking = threading.Thread(target=look)
        looking.start()
        for step in range(60):
            if step == 20:
                os.kill(processes.pid("server-0"), signal.SIGKILL)
                processes.exits(5.0)
            push(first, "w")
            first.advance().wait()
            assert first.blocking.pull("w").tolist() == [step + 1.0] * ROWS
        stop.set()
        looking.join()
        assert read == sorted(read)
        assert guest.blocking.pull("w").tolist() == [float(guest.clock)] * ROWS
        assert len(first.view.servers) == 1


def test_a_script_joins_as_a_group(run):
    _, folder, first = run
    command = [sys.executable, "-m", "shoal", "worker", "--scheduler", str(folder.path)]
    done = subprocess.run(
        [*command, "--group", "guests", SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 1 ['', 'guests'] ['/w']", "stepped"]
    assert first.await_until(
        lambda: any(spec.name.startswith("guests/") for spec in first.view.tables), 5.0
    )
    wrong = subprocess.run(
        [*command, "--group", "a b", SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert wrong.returncode == 2
    assert text("groups.name_wrong") in wrong.stderr


def test_an_error_in_the_first_group_ends_the_run(run):
    _, folder, first = run
    guest = shoal.connect(str(folder.path), group="eval")
    why = "it is enough"
    first.abort(why)
    with pytest.raises(RunAborted, match=why):
        until(lambda: guest.blocking.pull("/w") is None, "the end has not reached the guest")
    guest.close()


def test_two_groups_train_one_model(run):
    """Whoever comes later goes on with the parameters that are there."""
    _, folder, first = run

    def trainer(client, seed):
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 1)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        context = Context(client.rank, client.world_size, client)
        return model, shoal.Optimizer(inner, strategy="asgd", context=context)

    mine, optimizer = trainer(first, 1)
    with shoal.connect(str(folder.path), group="more", namespace="") as guest:
        theirs, other = trainer(guest, 2)
        assert torch.equal(mine.weight, theirs.weight)
        for model, step in ((theirs, other), (mine, optimizer)):
            step.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            step.step()
        assert torch.allclose(mine.weight, theirs.weight - 0.1)  # a step of each
        params = shoal.pytorch.FlatParams(theirs.parameters())
        params.pull(guest)
        assert torch.equal(mine.weight, theirs.weight)
        with pytest.raises(InvalidValue, match=pattern("groups.parameters_do_not_fit")):
            shoal.pytorch.FlatParams(torch.nn.Linear(30, 1).parameters()).pull(guest)


def test_a_table_that_servers_cannot_open_is_refused_and_ends_nobody(run):
    _, folder, first = run
    row_methods.add("known_here", row_methods["sum"], again=True)
    with shoal.connect(str(folder.path), group="eval") as guest:
        with pytest.raises(Refused, match=pattern("groups.unknown_method")):
            guest.create_table(TableSpec("w", kind="sparse", access=Access("known_here")))
        guest.create_table(TableSpec("w", kind="sparse", access=Access("sum")))
        assert guest.blocking.pull("w", keys=[1]).tolist() == [0.0]
    push(first, "w")
    first.advance().wait()
    assert first.blocking.pull("w").tolist() == [1.0] * ROWS


def test_long_table_names_are_accepted_up_to_their_limit(run):
    _, folder, first = run
    first.create_table(table("n" * 200))
    with shoal.connect(str(folder.path), group="eval") as guest:
        assert guest.blocking.pull("/" + "n" * 200).tolist() == [0.0] * ROWS
        with pytest.raises(InvalidValue, match=pattern("groups.table_name_too_long")):
            guest.create_table(table("m" * 199))
        with pytest.raises(InvalidValue, match=pattern("groups.barrier_with_servers")):
            guest.barrier("all", ("workers", "servers"))
    with pytest.raises(InvalidValue, match=pattern("groups.starts_no_run")):
        shoal.init(group="eval")
