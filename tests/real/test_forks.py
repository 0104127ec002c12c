"""A fork of a worker's process does not speak for the worker."""

import os
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path

import pytest
import torch

from shoal.client.context import Context
from shoal.errors import UsageError
from shoal.storage.run_folder import RunFolder
from shoal.tables.spec import TableSpec
from tests.real.texts import text

pytestmark = pytest.mark.real

FORK = text("forks.fork", process=os.getpid())
SCRIPTS = Path(__file__).parent / "scripts"


def in_fork(call):
    """What a fork of this process has met: the error of a call, "" for none, or its traceback."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            told = ""
        except UsageError as error:
            told = error.message
        except BaseException:
            told = traceback.format_exc()
        os.write(writes, told.encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        told = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return told


def run(tmp_path, *words):
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("strategy", "child", "status"),
    [
        ("sync", "exits", 0),
        ("sync", "closes", 0),
        ("allreduce", "exits", 3),
        ("sync", "raises", 1),
        ("sync", "leaves", 4),
    ],
)
def test_the_end_of_a_fork_is_not_its_parents(tmp_path, strategy, child, status):
    words = ["-m", "shoal", "run", SCRIPTS / "forks.py", strategy, child, status]
    assert run(tmp_path, *words) == [f"child {status}", "steps 6"]
    [folder] = (tmp_path / "shoal-runs").iterdir()
    assert not any(RunFolder(folder).error(f"worker-{rank}").exists() for rank in range(2))


def test_a_script_by_itself_keeps_its_servers_when_a_fork_ends(tmp_path):
    words = [SCRIPTS / "forks.py", "sync", "exits", 0]
    assert run(tmp_path, *words) == ["child 0", "steps 6"]


def test_what_a_fork_asks_for_is_refused_and_nothing_is_lost(cluster):
    _, [client] = cluster(2)
    client.create_table(TableSpec("w", 4, merge="sum"))
    calls = (
        lambda: client.push("w", torch.ones(4)).wait(),
        lambda: client.pull("w").wait(),
        lambda: client.blocking.push("w", torch.ones(4)),
        lambda: client.create_table(TableSpec("other", 4)),
        lambda: client.barrier("met"),
        lambda: client.advance().wait(),
    )
    for call in calls:
        under_way = [client.push("w", torch.ones(4)) for _ in range(50)]
        assert in_fork(call).startswith(FORK)
        told = in_fork(under_way[-1].wait)
        assert told == "" or told.startswith(FORK)  # it may be done
        for leave in (client.close, partial(client.abort, "no"), partial(client.fail, OSError())):
            assert in_fork(leave) == ""
        for each in under_way:
            each.wait()
    assert client.pull("w").wait().tolist() == [50.0 * len(calls)] * 4


def test_a_fork_may_leave_alone_what_other_threads_do(cluster):
    """A fork while another thread has the lock does not wait for it for ever."""
    _, [client] = cluster()
    client.create_table(TableSpec("w", 4))
    with client._driver.own():
        told = in_fork(lambda: client.pull("w").wait())
    assert FORK in told


def test_a_fork_has_no_run_of_its_own(cluster):
    _, [client] = cluster()
    context = Context(0, 1, client)
    assert FORK in in_fork(client.check_process)
    client.check_process()
    assert in_fork(context.close) == ""
    assert not client.closed


def test_the_processes_of_a_data_loader_are_forks(tmp_path):
    assert run(tmp_path, "-m", "shoal", "run", SCRIPTS / "loads_data.py") == ["steps 8"]
