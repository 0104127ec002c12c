"""Dense tables through torch.distributed.checkpoint."""

import threading

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

import shoal
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.errors import InvalidValue
from shoal.storage.run_folder import RunFolder
from tests.real.texts import pattern

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]


@pytest.fixture
def clients(tmp_path):
    """Two workers, and a server."""
    with Processes(RunFolder.create(tmp_path, "run")) as processes:
        address = start_cluster(processes, 1, 2)
        found = {}

        def join(rank):
            found[rank] = shoal.connect(address, rank=rank)

        threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        yield found
        for each in found.values():
            each.close()


def both(clients, call):
    threads = [threading.Thread(target=call, args=(each,)) for each in clients.values()]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def test_a_distributed_checkpoint_restores_the_rows(clients, tmp_path):
    for name, rows in (("w", 5), ("v", 3)):
        spec = shoal.TableSpec(name, rows, (2,), access=shoal.tables.Access("sgd", {"lr": 1.0}))
        for each in clients.values():
            each.create_table(spec)
    clients[0].push("w", torch.arange(10.0).view(5, 2)).wait()
    clients[0].push("v", torch.ones(3, 2)).wait()
    tables = shoal.pytorch.TableState("w", "v", client=clients[0])
    assert isinstance(tables, Stateful)
    before = tables.state_dict()
    dcp.save({"tables": tables}, checkpoint_id=tmp_path / "saved", no_dist=True)
    clients[1].push("w", torch.ones(5, 2)).wait()

    def load(client):
        state = {"tables": shoal.pytorch.TableState("w", "v", client=client)}
        dcp.load(state, checkpoint_id=tmp_path / "saved", no_dist=True)

    both(clients, load)
    after = shoal.pytorch.TableState("w", "v", client=clients[1]).state_dict()
    assert before.keys() == after.keys() == {"w", "v"}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_table_state_of_a_sparse_table_is_refused(clients):
    clients[0].create_table(shoal.TableSpec("s", kind="sparse", access=shoal.tables.Access("sum")))
    with pytest.raises(InvalidValue, match=pattern("table_state.sparse")):
        shoal.pytorch.TableState("s", client=clients[0])
    with pytest.raises(InvalidValue, match=pattern("table_state.unknown_table")):
        shoal.pytorch.TableState("x", client=clients[0])
