"""shoal.leases in scripts of one's own."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import shoal
from shoal.cli import main
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.errors import Refused, UsageError
from shoal.storage.run_folder import RunFolder
from tests.real.texts import pattern

pytestmark = pytest.mark.real

SCRIPT = str(Path(__file__).parent / "scripts" / "leasing.py")


@pytest.mark.parametrize("strategy", ["sync", "asgd"])
def test_a_dead_workers_batches_are_done_by_the_others(tmp_path, strategy):
    words = ["run", "--workers", "3", "--on-worker-loss", "drop", "--out", str(tmp_path / "runs")]
    result = CliRunner().invoke(main, [*words, SCRIPT, str(tmp_path), strategy])
    assert result.exit_code == 0, result.output
    files = sorted(tmp_path.glob("*.json"))
    assert [each.name for each in files] == ["0.json", "2.json"]
    told = Counter(tuple(each) for file in files for each in json.loads(file.read_text()))
    both = {(epoch, batch) for epoch in range(2) for batch in range(20)}
    assert told.keys() <= both
    assert len(both - told.keys()) in (4, 5)  # the dead one's, done and told by nobody else
    if strategy == "sync":
        assert set(told.values()) == {1}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_is_replaced_takes_leases_like_its_predecessor(rank, tmp_path):
    words = ["run", "--workers", "3", "--on-worker-loss", "replace", "--transport", "tcp"]
    words += ["--out", str(tmp_path / "runs"), SCRIPT, str(tmp_path), "sync", str(rank)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "killed").exists()
    files = sorted(tmp_path.glob("*.json"))
    assert [each.name for each in files] == ["0.json", "1.json", "2.json"]
    told = Counter(tuple(each) for file in files for each in json.loads(file.read_text()))
    both = {(epoch, batch) for epoch in range(2) for batch in range(20)}
    assert told.keys() <= both
    assert len(both - told.keys()) in (4, 5)  # those of the killed process, which told nobody


@pytest.fixture
def client(tmp_path):
    with Processes(RunFolder.create(tmp_path, "run")) as processes:
        address = start_cluster(processes, 1, 1)
        with shoal.connect(address) as client:
            client.create_table(shoal.TableSpec("w", 2, access=shoal.tables.Access("sum")))
            yield client


def test_each_lease_is_one_clock(client):
    ones = torch.ones(2)
    some = shoal.leases(1, 4, client=client)
    next(some)
    client.push("w", ones).wait()
    with pytest.raises(UsageError, match=pattern("leasing.no_step")):
        next(some)
    found = []
    for each in shoal.leases(1, 4, client=client):  # nobody has come further: it is done again
        client.push("w", ones).wait()
        client.advance().wait()
        found.append(each)
    assert [each.batch for each in found if each.batch is not None] == [0, 1, 2, 3]
    assert client.blocking.pull("w").tolist() == [5.0, 5.0]


def test_all_workers_have_the_same_data(client):
    next(shoal.leases(1, 4, client=client))
    with pytest.raises(Refused, match=pattern("leasing.unlike_data")):
        next(shoal.leases(1, 5, client=client))
