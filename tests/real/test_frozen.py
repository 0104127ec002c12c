"""A scheduler that dies in the middle of a view change."""

import os
import signal
import time

import pytest

from shoal.engines.cluster import server_task
from shoal.engines.options import ServerRole
from shoal.engines.processes import Processes
from shoal.storage.run_folder import RunFolder
from tests.real.pushing import TOKEN, Cluster

pytestmark = pytest.mark.real


def test_servers_that_a_dead_scheduler_has_left_frozen_continue_without_it(tmp_path):
    """Server 0 has promised a view; server 1 was stopped, and finds the question afterwards."""
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        cluster = Cluster(processes, folder, servers=2, replicas=2, tables=2)
        os.kill(processes.pid("server-1"), signal.SIGSTOP)
        processes.start(server_task(processes, processes.scheduler, 2, ServerRole(token=TOKEN)))
        cluster.until(lambda: "server-2" in cluster.named("joined"))
        stopped_at = time.monotonic()
        cluster.until(lambda: time.monotonic() > stopped_at + 0.5)  # nobody pushes any more
        assert all(cluster.pushes(table)[-1][0] < stopped_at + 0.1 for table in range(2))
        cluster.killed |= {"scheduler", "server-2"}
        os.kill(processes.pid("scheduler"), signal.SIGKILL)
        os.kill(processes.pid("server-1"), signal.SIGCONT)
        cluster.until(
            lambda: all(cluster.pushes(t)[-1][0] > stopped_at + 2 for t in range(2)), 10.0
        )
        cluster.finish()
