"""Servers whose memory for tables is small: what does not fit is refused, and the run goes on."""

import shutil

import pytest
import torch
from click.testing import CliRunner

from shoal.cli import main
from shoal.client.client import Client
from shoal.engines.cluster import cluster_tasks
from shoal.engines.options import SchedulerRole, ServerRole
from shoal.engines.processes import Processes
from shoal.errors import InvalidValue, Refused
from shoal.storage.run_folder import RunFolder
from shoal.storage.shards import SavedShards
from shoal.tables.consistency import asp, bsp
from shoal.tables.spec import Access, TableSpec
from tests.real.texts import pattern, text

pytestmark = pytest.mark.real

WIDTH, STEP = 16, 2000


@pytest.fixture
def run(tmp_path):
    """Two servers with 4 MB for tables and a replica of each row, a worker, and their processes."""
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        roles = (
            SchedulerRole(listen=processes.scheduler, servers=2, workers=1, replicas=2),
            ServerRole(memory="4MB", folder=str(folder.path.resolve()), save=True),
        )
        for task in cluster_tasks(processes, *roles):
            processes.start(task)
        with Client(processes.scheduler) as client:
            yield processes, folder, client


def test_tables_that_no_server_has_memory_for_are_refused_and_nothing_else_is_affected(run):
    _, _, client = run
    client.create_table(TableSpec("w", 1000, access=Access("sum")))
    bounds = TableSpec("bounds", 1)
    for what, made in {
        pattern("memory.too_many_rows"): lambda: TableSpec("killer", 1 << 63),
        pattern("memory.row_too_large"): lambda: TableSpec("killer", 1 << 40, (1 << 40,)),
    }.items():
        with pytest.raises(InvalidValue, match=what):
            made()
    with pytest.raises(Refused, match=pattern("memory.too_large_for_all")):
        client.create_table(TableSpec("killer", 10**12))
    # smaller than both servers' memory together, and larger than one's
    with pytest.raises(Refused, match=pattern("memory.too_large_for_one")):
        client.create_table(TableSpec("large", 1_500_000, access=Access("sum")))
    with pytest.raises(Refused, match=pattern("memory.bounded_too_large")):
        client.create_table(TableSpec("bounded", kind="sparse", row_shape=(8,), max_rows=1 << 20))
    client.create_table(bounds)
    for _ in range(3):
        client.push("w", torch.ones(1000)).wait()
    assert client.pull("w").wait().tolist() == [3.0] * 1000


@pytest.mark.parametrize("rule", [asp(), bsp()], ids=["asp", "bsp"])
def test_a_sparse_table_grows_until_it_is_refused_and_its_old_keys_train_on(run, rule):
    processes, folder, client = run
    access = Access("sgd", {"lr": 1.0})
    spec = TableSpec("e", 0, (WIDTH,), kind="sparse", access=access, consistency=rule)
    client.create_table(spec)

    def push(first):
        keys = torch.arange(first, first + STEP)
        applied = client.push("e", torch.full((STEP, WIDTH), -1.0), keys=keys)
        if rule == bsp():
            client.advance().wait()
        applied.wait()

    pushed, refused = 0, None
    while refused is None and pushed < 100 * STEP:
        try:
            push(pushed)
            pushed += STEP
        except Refused as error:
            refused = error
    told = str(refused)
    assert text("memory.table_full") in told
    assert text("memory.table_full_what_to_do") in told
    assert pushed >= 10 * STEP
    for first in (0, STEP, pushed - STEP):
        push(first)
    found = client.pull("e", keys=torch.arange(pushed)).wait()[:, 0]
    expected = torch.ones(pushed)
    for first in (0, STEP, pushed - STEP):
        expected[first : first + STEP] += 1
    assert torch.equal(found, expected)
    absent = client.pull("e", keys=torch.arange(1 << 40, (1 << 40) + STEP)).wait()
    assert not absent.any()  # read, and not created
    client.close()
    processes.join()
    replicas = []
    for rank in range(2):
        alone = folder.path / f"only-{rank}"
        alone.mkdir()
        shutil.copy(folder.shards / f"server-{rank}.safetensors", alone)
        replicas.append(SavedShards(alone).merged("e"))
    # what one server has taken of the refused push is on both
    assert torch.equal(replicas[0]["keys"], replicas[1]["keys"])
    assert torch.equal(replicas[0]["rows"], replicas[1]["rows"])
    assert pushed <= len(replicas[0]["keys"]) < pushed + STEP


@pytest.mark.parametrize("words", ["server --scheduler unix:///x", "train digits", "run"])
def test_a_size_that_is_none_is_refused_before_anything_starts(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    script = ["script.py"] if words == "run" else []
    result = CliRunner().invoke(main, [*words.split(), "--memory", "lots", *script])
    assert result.exit_code == 2, result.output
    assert text("memory.no_size") in " ".join(result.output.split())
    assert not (tmp_path / "shoal-runs").exists()
