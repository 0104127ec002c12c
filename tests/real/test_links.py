"""Paths between hosts that are cut: who dies, and how long exchanges take."""

import ctypes
import os
import shutil
import socket
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.engines.hosts import Hosts, HostsEngine
from shoal.engines.processes import Processes
from shoal.storage.run_folder import RunFolder
from tests.real.pushing import Cluster
from tests.transport.rigs import drop_packets_to

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs namespaces"),
]
DOWN_S = 8.0  # of the 10 s after which silence is a death


@contextmanager
def cluster_of(tmp_path, servers, replicas, tables):
    """Each process on a host of its own."""
    names = ["scheduler", "worker-0", *(f"server-{rank}" for rank in range(servers))]
    folder = RunFolder.create(tmp_path, "run")
    with Hosts(names) as hosts, Processes(folder, HostsEngine(hosts)) as processes:
        yield hosts, Cluster(processes, folder, servers, replicas, tables)


def test_a_link_that_is_down_for_less_than_silence_kills_nobody(tmp_path):
    """The scheduler's, so that no heartbeat arrives for 8 s of the 10, and a server's."""
    with cluster_of(tmp_path, 3, 2, 3) as (hosts, cluster):
        cut_at = time.monotonic()
        for name in ("scheduler", "server-1"):
            hosts.cut(name)
        time.sleep(DOWN_S)  # the fault lasts so long; nothing happens that could be waited for
        for name in ("scheduler", "server-1"):
            hosts.mend(name)
        mended_at = time.monotonic()
        cluster.until(lambda: all(cluster.pushes(t)[-1][0] > mended_at for t in range(3)))
        for table in range(3):
            assert cluster.longest(table, cut_at) < mended_at - cut_at + 2.0
        # whoever is to be declared dead is declared dead by then
        cluster.until(lambda: all(pushed_since(cluster, t, mended_at + 3) for t in range(3)))
        cluster.finish()
        assert cluster.lost() == []


def test_servers_that_are_out_of_reach_hold_up_no_exchange_with_others(tmp_path):
    with cluster_of(tmp_path, 8, 1, 8) as (hosts, cluster):
        for rank in range(2, 8):
            hosts.cut(f"server-{rank}")
        cut_at = time.monotonic()
        cluster.until(lambda: all(pushed_since(cluster, table, cut_at + 6) for table in range(2)))
        assert max(cluster.longest(table, cut_at) for table in range(2)) < 0.5
        assert not any(pushed_since(cluster, table, cut_at + 1) for table in range(2, 8))
        for rank in range(2, 8):
            hosts.mend(f"server-{rank}")
        cluster.finish()
        assert cluster.lost() == []


def pushed_since(cluster, table, at):
    return cluster.pushes(table)[-1][0] > at


def test_connections_that_are_cut_in_silence_are_replaced(tmp_path):
    """All of a server's: to the worker, to the scheduler, and to the next server of its chain."""
    with cluster_of(tmp_path, 3, 2, 3) as (_, cluster):  # TCP is used between hosts only
        cut_at = time.monotonic()
        assert drop_all_packets_to(cluster.processes.pid("server-0")) >= 3
        cluster.until(lambda: all(cluster.pushes(t)[-1][0] > cut_at + 3 for t in range(3)))
        for table in range(3):
            assert cluster.longest(table, cut_at) < 3.0
        cluster.finish()
        assert cluster.lost() == []


def drop_all_packets_to(pid):
    """To all connections over TCP that a process has; returns their number. New ones are open."""
    libc, pidfd, dropped = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid), 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        if not str(each.readlink()).startswith("socket:"):
            continue
        fd = libc.syscall(438, pidfd, int(each.name), 0)  # pidfd_getfd
        assert fd >= 0, os.strerror(ctypes.get_errno())
        with socket.socket(fileno=fd) as sock:
            listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if sock.family == socket.AF_INET and not listens:
                drop_packets_to(sock)
                dropped += 1
    os.close(pidfd)
    return dropped
