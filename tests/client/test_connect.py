"""`shoal.connect`: from a folder or an address to a client."""

import threading
from time import monotonic

import pytest

import shoal
from shoal.client import client
from shoal.client.client import Client
from shoal.errors import (
    DataMissing,
    JoinTimeout,
    ProcessDied,
    RequestTimeout,
    RunAborted,
    UsageError,
)
from shoal.storage.held_file import HeldFile
from shoal.storage.run_folder import RunFolder


def test_a_killed_run_is_refused_at_once(tmp_path):
    RunFolder(tmp_path).scheduler.write_text(f"unix://{tmp_path}/gone.sock")
    with pytest.raises(DataMissing, match="was killed before its end"):
        shoal.connect(str(tmp_path))


def test_a_run_that_is_killed_during_the_wait_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "CHECK_S", 0.05)
    held = HeldFile(RunFolder(tmp_path).scheduler, f"unix://{tmp_path}/silent.sock")
    killed = threading.Timer(0.3, held.release)
    killed.start()
    with pytest.raises(DataMissing, match="was killed before its end"):
        shoal.connect(str(tmp_path))
    killed.join()


def test_a_check_ends_the_wait_with_its_error(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "CHECK_S", 0.05)
    calls = []

    def check():
        calls.append(1)
        if len(calls) == 3:
            raise ProcessDied("the scheduler has failed")

    with pytest.raises(ProcessDied, match="the scheduler has failed"):
        Client(f"unix://{tmp_path}/silent.sock", check=check)


def test_a_check_that_finds_nothing_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "CHECK_S", 0.05)
    options = client.ClientOptions(init_timeout_s=0.3)
    with pytest.raises(JoinTimeout):
        Client(f"unix://{tmp_path}/silent.sock", options, lambda: None)


@pytest.mark.real
def test_a_reader_waits_for_the_table_of_the_first_group(cluster, monkeypatch):
    monkeypatch.setattr(client, "CHECK_S", 60.0)  # the event has to do it
    processes, [trainer] = cluster()
    with shoal.connect(processes.scheduler, group="read") as reader:
        with pytest.raises(RequestTimeout, match="no worker has created table"):
            reader.await_table("/later", 0.1)
        create = threading.Timer(0.2, trainer.create_table, [shoal.TableSpec("later", 3)])
        create.start()
        began = monotonic()
        assert reader.await_table("/later", 30.0).rows == 3
        assert monotonic() - began < 15
        create.join()
        assert reader.await_table("/later", 0.0).name == "/later"


@pytest.mark.real
def test_a_closed_client_waits_for_no_table(cluster):
    processes, [trainer] = cluster()
    reader = shoal.connect(processes.scheduler, group="read")
    reader.close()
    with pytest.raises(UsageError, match="closed"):
        reader.await_table("/later", 60.0)
    other = shoal.connect(processes.scheduler, group="other")
    ends = threading.Timer(0.3, trainer.abort, ["broken"])
    ends.start()
    with pytest.raises(RunAborted, match="broken"):
        other.await_table("/later", 60.0)
    ends.join()
