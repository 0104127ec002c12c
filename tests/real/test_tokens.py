"""Who can reach the processes of a run on this machine."""

import socket
import time
from contextlib import ExitStack
from pathlib import Path
from stat import S_IMODE

import pytest
import torch

from shoal.apps.script import ScriptApplication, ScriptRun
from shoal.apps.why import explain
from shoal.client.client import Client
from shoal.client.connect import connect
from shoal.client.options import ClientOptions
from shoal.engines.processes import Processes
from shoal.errors import HandshakeRefused
from shoal.node.strangers import MOST
from shoal.runs.plan import cluster_of
from shoal.storage.run_folder import RunFolder
from shoal.tables.consistency import asp
from shoal.tables.spec import TableSpec
from shoal.transport import Identity, transport_for
from shoal.transport.tcp import endpoint_of
from tests.real.texts import pattern

pytestmark = pytest.mark.real


@pytest.fixture
def processes(tmp_path):
    """A run of one worker over TCP."""
    folder = RunFolder.create(tmp_path, "run")
    with Processes(folder) as processes:
        how = ScriptRun(workers=1, servers=1, transport="tcp")
        for task in cluster_of(ScriptApplication(Path(__file__), [], how), processes, time.time()):
            processes.start(task)
        yield processes
    assert not folder.token.exists()


@pytest.fixture
def run(processes):
    """Its folder."""
    return processes.folder


def test_a_stranger_on_this_machine_is_refused_by_a_server_that_listens_on_tcp(run):
    with connect(str(run.path)) as client:  # this user's, who can read the folder
        client.create_table(TableSpec("w", 4, consistency=asp()))
        client.push("w", torch.ones(4)).wait()
        address = client.view.servers[0].address
        assert address.startswith("tcp://127.0.0.1:")
        for token in ("", "a guess that is wrong"):
            stranger = Identity("worker-x", "worker", token=token)
            with pytest.raises(HandshakeRefused, match=pattern("tokens.refused")):
                transport_for(address).connect(address, stranger, 5.0)
        with pytest.raises(HandshakeRefused, match=pattern("tokens.refused")):
            Client(run.scheduler.read_text(), ClientOptions(init_timeout_s=5.0))
        assert client.pull("w").wait().tolist() == [1.0] * 4
        assert explain(str(run.path))["servers"] == ["server-0"]


def test_the_file_that_has_the_token_is_its_owners(run):
    end = time.monotonic() + 10.0
    while not run.token.exists():
        assert time.monotonic() < end
    assert S_IMODE(run.token.stat().st_mode) == 0o600
    with connect(str(run.path)):
        pass


def test_idle_connections_of_strangers_use_few_descriptors(run, processes):
    with connect(str(run.path)) as client, ExitStack() as strangers:
        client.create_table(TableSpec("w", 4, consistency=asp()))
        server = client.view.servers[0]
        files = Path(f"/proc/{processes.pid(server.name)}/fd")
        before = len(list(files.iterdir()))
        for _ in range(MOST + 300):
            endpoint = endpoint_of(server.address)
            strangers.enter_context(socket.create_connection(endpoint, 10.0))
            client.push("w", torch.ones(4)).wait()
        others = 8  # connections of members, and what is being accepted or closed now
        assert len(list(files.iterdir())) <= before + MOST + others
        assert client.pull("w").wait().tolist() == [MOST + 300.0] * 4
