"""A worker that asks for much and reads nothing: what does a server hold for it?"""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.engines.base import Task
from shoal.engines.cluster import start_cluster
from shoal.engines.processes import Processes
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import asp
from shoal.tables.spec import TableSpec

pytestmark = pytest.mark.real

ROWS, PULLS = 4 << 20, 60  # 16 MiB each


def ask_for_much(scheduler: str, folder: str) -> None:
    """Ask for many large pulls, and stop before any is read."""
    with Client(scheduler, ClientOptions()) as client:
        client.create_table(TableSpec("w", ROWS, consistency=asp()))
        outs = [torch.empty(ROWS) for _ in range(PULLS)]
        tickets = [client.pull("w", out=out) for out in outs]
        Path(folder, "asked").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        for ticket, out in zip(tickets, outs, strict=True):
            ticket.wait()
            assert bool(out.eq(out[0]).all())
        Path(folder, "read").touch()


def memory_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


def test_a_server_holds_little_for_a_worker_that_was_stopped(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        scheduler = start_cluster(processes, 1, 2)
        given = {"scheduler": scheduler, "folder": str(tmp_path)}
        processes.start(Task("worker-1", "tests.real.test_slow_readers:ask_for_much", given))
        with Client(scheduler, ClientOptions()) as client:
            client.create_table(TableSpec("w", ROWS, consistency=asp()))
            client.pull("w").wait()
            server, end = processes.pid("server-0"), time.monotonic() + 20.0
            while not (tmp_path / "asked").exists():
                assert time.monotonic() < end
            before = memory_of(server)
            for _ in range(10):  # rows that are lent to unsent answers are copied
                client.push("w", torch.ones(ROWS)).wait()
            assert memory_of(server) - before < 300 << 20  # 960 MiB were asked for
            os.kill(processes.pid("worker-1"), signal.SIGCONT)
            while not (tmp_path / "read").exists():
                assert time.monotonic() < end + 40.0
        processes.finish()
