"""Servers whose loop is busy, or hangs: their process lives."""

import os
import signal
import time
from pathlib import Path

import pytest

from shoal.engines.processes import Processes
from shoal.storage.run_folder import RunFolder
from tests.real.pushing import Cluster
from tests.real.texts import text

pytestmark = pytest.mark.real

BLOCKING = str(Path(__file__).with_name("blocking.py"))


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Starts a cluster whose members may be silent for three seconds."""
    folder = RunFolder.create(tmp_path, "run")
    monkeypatch.setenv("SHOAL_TEST_FOLDER", str(folder.path))
    begun = []

    def cluster(servers, replicas, **scheduler):
        begun.append(Processes(folder))
        begun[0].__enter__()
        limits = {"failure_timeout_s": 3.0, "sole_replica_timeout_s": 3.0, **scheduler}
        return Cluster(begun[0], folder, servers, replicas, 2, imports=(BLOCKING,), limits=limits)

    yield cluster
    for processes in begun:
        processes.__exit__(None, None, None)


def block(cluster, server):
    file = cluster.folder.path / f"block-{cluster.processes.pid(server)}"
    file.touch()
    return file


def test_a_server_whose_loop_is_busy_for_longer_than_the_failure_timeout_is_not_dead(cluster):
    cluster = cluster(servers=1, replicas=1)
    file, since = block(cluster, "server-0"), time.monotonic()
    cluster.until(lambda: time.monotonic() > since + 8)
    assert cluster.pushes(0)[-1][0] < since + 0.5  # nothing goes on meanwhile
    file.unlink()
    cluster.until(lambda: cluster.pushes(0)[-1][0] > since + 8)
    cluster.finish()
    assert cluster.lost() == []


def test_a_server_whose_loop_hangs_is_dead_after_the_hang_timeout(cluster):
    cluster = cluster(servers=2, replicas=2, hang_timeout_s=4.0)
    block(cluster, "server-0")
    cluster.until(lambda: "server-0" in cluster.lost())
    [how] = cluster.values("lost", "how")
    assert how.startswith(text("busy.hung"))
    cluster.killed.add("server-0")
    os.kill(cluster.processes.pid("server-0"), signal.SIGKILL)
    cluster.finish()
