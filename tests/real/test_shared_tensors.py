"""Pushes from memory that servers read in place leave the rows that other pushes leave."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.errors import RequestTimeout
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import asp, bsp
from shoal.tables.spec import Access, TableSpec
from shoal.transport.tensors import shared_zeros

pytestmark = pytest.mark.real

ROWS = 3_000_017  # no whole number of fragments, on two servers
METHODS = {"sgd": {"lr": 0.1}, "adam": {"lr": 0.1}, "sum": {}}


@pytest.mark.parametrize("replicas", [1, 2])
def test_rows_are_bitwise_those_of_pushes_from_ordinary_memory(tmp_path, replicas):
    """The values change as soon as each push is done: servers must not read them after that."""
    rules = {"asp": asp(), "bsp": bsp()}
    with Processes(RunFolder.create(tmp_path, "shared")) as processes:
        scheduler = start_cluster(processes, 2, 1, replicas=replicas)
        with Client(scheduler, ClientOptions(rank=0)) as client:
            memories = {"shared": shared_zeros(ROWS), "ordinary": torch.zeros(ROWS)}
            names = [(method, rule) for method in METHODS for rule in rules]
            for method, rule in names:
                for memory in memories:
                    access = Access(method, METHODS[method])
                    more = {"access": access, "consistency": rules[rule]}
                    client.create_table(TableSpec(f"{method}-{rule}-{memory}", ROWS, **more))
            for seed in range(4):
                for method, rule in names:
                    for memory, values in memories.items():
                        torch.manual_seed(seed)
                        values.copy_(torch.randn(ROWS))
                        pushed = client.push(f"{method}-{rule}-{memory}", values)
                        client.advance().wait()
                        pushed.wait()
                        values.fill_(1e9)
            for method, rule in names:
                found = [client.blocking.pull(f"{method}-{rule}-{each}") for each in memories]
                assert found[0].equal(found[1]), (method, rule)
                assert 0 < found[0].abs().max() < 1e6
        processes.finish()


def test_what_a_timed_out_push_brings_is_what_was_pushed(tmp_path):
    """Its worker has its tensor back, and writes to it, before the server has used the values.

    The server is stopped when the first push comes, and waits for another worker with the second.
    """
    with Processes(RunFolder.create(tmp_path, "shared")) as processes:
        scheduler = start_cluster(processes, 1, 2)
        with ThreadPoolExecutor(2) as threads:
            join = partial(Client, scheduler)
            one, other = threads.map(join, (ClientOptions(rank=0), ClientOptions(rank=1)))
        with one, other:
            for client in (one, other):
                for name, rule in (("asp", asp()), ("bsp", bsp())):
                    more = {"access": Access("sum"), "merge": "sum", "consistency": rule}
                    client.create_table(TableSpec(name, ROWS, **more))
            values = shared_zeros(ROWS).fill_(1.0)
            os.kill(processes.pid("server-0"), signal.SIGSTOP)
            with pytest.raises(RequestTimeout):
                one.push("asp", values, timeout_s=0.1).wait()
            values.fill_(777.0)
            os.kill(processes.pid("server-0"), signal.SIGCONT)
            one.advance()
            values = shared_zeros(ROWS).fill_(2.0)
            late = one.push("bsp", values, timeout_s=0.5)
            advanced = one.advance()
            with pytest.raises(RequestTimeout):
                late.wait()
            values.fill_(888.0)
            pushed = other.push("bsp", shared_zeros(ROWS).fill_(5.0))
            other.advance()
            other.advance().wait()
            pushed.wait()
            advanced.wait()
            assert other.blocking.pull("asp").unique().tolist() == [1.0]
            assert other.blocking.pull("bsp").unique().tolist() == [7.0]
            values.fill_(3.0)
            again = one.push("bsp", values)
            one.advance()
            other.advance().wait()
            again.wait()
            assert one.blocking.pull("bsp").unique().tolist() == [10.0]
        processes.finish()
