"""Folders of runs: for their owner alone, unless the owner has made or opened them."""

import os
import stat

import pytest

from shoal.engines.cluster import cluster_here
from shoal.engines.options import ServerRole
from shoal.engines.roles import _checkpoint_writer
from shoal.protocol.session import Session
from shoal.protocol.session_options import SessionOptions
from shoal.storage.run_folder import RunFolder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_new_run_is_its_owners_alone(tmp_path):
    run = RunFolder.create(tmp_path / "all" / "runs", "run")
    assert mode(tmp_path / "all") == mode(tmp_path / "all" / "runs") == mode(run.path) == 0o700


def test_a_folder_that_the_user_has_made_keeps_its_mode(tmp_path):
    (tmp_path / "runs").mkdir(0o750)
    run = RunFolder.create(tmp_path / "runs", "run")
    assert mode(tmp_path / "runs") == 0o750
    run.path.chmod(0o755)  # to show it to others
    run.write_summary({})
    run.worker(0)
    assert mode(run.path) == 0o755
    assert mode(run.path / "workers" / "0") & 0o055 == 0o055, "one chmod shows all of it"


def test_checkpoints_of_a_cluster_by_hand_are_in_such_a_folder(tmp_path):
    session = Session("s", "server", "", "host", 0, SessionOptions())
    session.run = "run-1"
    writer = _checkpoint_writer(ServerRole(out=str(tmp_path / "out")), session, lambda: None)
    try:
        assert writer._folder() == tmp_path / "out" / "run-1" / "checkpoints"
        assert mode(tmp_path / "out") == mode(tmp_path / "out" / "run-1") == 0o700
    finally:
        writer.close()


@pytest.mark.real
def test_a_cluster_here_has_private_folders():
    processes = cluster_here(1, 1)
    try:
        assert mode(processes.folder.path) == mode(processes.private) == 0o700
    finally:
        processes.stop()
