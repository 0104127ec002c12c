"""The hosts of ranks: which has which process, and where the run's folder is on each."""

from contextlib import ExitStack

import pytest

from shoal.engines.base import Task
from shoal.engines.launchers.hosts import RanksEngine, folder_here, keeping
from shoal.engines.launchers.meeting import Heard, Ranks, check_server
from shoal.errors import InvalidValue, NotTrusted
from shoal.storage.run_folder import RunFolder

ONE = [Heard(0, "a", "m"), Heard(1, "a", "m")]
TWO = [Heard(0, "a", "m"), Heard(1, "a", "m"), Heard(0, "b", "m"), Heard(1, "b", "m")]


@pytest.fixture
def run(tmp_path):
    return RunFolder.begin_in(tmp_path / "here" / "digits-1", 1000.0)


def test_the_ranks_of_one_host_need_no_desk(run):
    engine = RanksEngine(Ranks(ONE), run)
    try:
        assert (engine.told["desk"], engine.token) == ("", "")
        engine.reserve(run)
        assert engine.host("server-1") is engine.host("scheduler") is engine.hosts[0]
        assert engine.host("scheduler").address("scheduler").startswith("unix://")
    finally:
        engine.close()
        engine.hosts[0].stop()


def test_servers_are_spread_and_workers_have_the_folders_of_their_hosts(run, tmp_path):
    ranks = Ranks(
        [Heard(0, "a", "m"), Heard(1, "a", "m"), Heard(0, "b", "n"), Heard(1, "b", "n")], "lo"
    )
    engine = RanksEngine(ranks, run)
    (tmp_path / "there").mkdir()
    own = RunFolder(tmp_path / "there" / "digits-1")
    code = {"imports": [], "script": []}
    with keeping(2, engine.told, own, lambda task: check_server(task, code)):
        reserved = engine.reserve(run)
        a, b = reserved.hosts
        assert [reserved.host(f"server-{n}") for n in range(3)] == [a, b, a]
        assert reserved.host("scheduler") is a
        assert b.address("server-1").startswith("tcp://127.0.0.1:0")
        assert own.started_at() == pytest.approx(1000.0, abs=0.5), "its folder was not begun"
        job = {"folder": str(run.path), "started_at": 1000.0}
        placed = engine.placed([Task(f"worker-{rank}", "m:f", job) for rank in range(4)])
        folders = [each["args"]["folder"] for each in placed]
        assert folders == [str(run.path)] * 2 + [str(own.path)] * 2
        for host in reserved.hosts:
            host.stop()
    engine.close()


def test_two_hosts_that_share_a_folder_with_each_other_begin_it_once(run, tmp_path):
    ranks = Ranks([Heard(0, "a", "m"), Heard(0, "b", "n"), Heard(0, "c", "o")], "lo")
    engine = RanksEngine(ranks, run)
    own = RunFolder(tmp_path / "there")
    with ExitStack() as stack:
        stack.callback(engine.close)
        for rank in (1, 2):
            stack.enter_context(keeping(rank, engine.told, own, lambda task: None))
        reserved = engine.reserve(run)
        marks = [host.files.mark() for host in reserved.hosts]
        assert marks[0] == run.mark() != marks[1] == marks[2]
        for host in reserved.hosts:
            host.stop()


def test_a_rank_whose_host_has_no_first_rank_is_named():
    ranks = Ranks([Heard(0, "a", "m"), Heard(1, "b", "n")])
    assert ranks.leader_of(0) == 0
    with pytest.raises(InvalidValue, match="rank 1 on b sees no process of the first rank"):
        ranks.leader_of(1)


def test_ranks_of_two_nodes_on_one_machine_have_the_first_ranks_of_their_nodes():
    by_node = Ranks(
        [Heard(0, "a", "m"), Heard(1, "a", "m"), Heard(0, "a", "m"), Heard(1, "a", "m")]
    )
    assert [by_node.leader_of(rank) for rank in range(4)] == [0, 0, 2, 2]
    in_turn = Ranks(
        [Heard(0, "a", "m"), Heard(0, "b", "n"), Heard(1, "a", "m"), Heard(1, "b", "n")], "lo"
    )
    assert [in_turn.leader_of(rank) for rank in range(4)] == [0, 1, 0, 1]


def told_of(run):
    return {"folder": str(run.path), "mark": run.mark()}


def test_a_folder_that_this_host_sees_is_the_runs(run, tmp_path):
    out = tmp_path / "there"
    assert folder_here(told_of(run), out).path == run.path
    assert folder_here({**told_of(run), "mark": "0" * 16}, out).path == out / "digits-1"


def test_a_folder_that_this_host_sees_under_another_path_is_the_runs(run, tmp_path):
    told = {**told_of(run), "folder": "/export/runs/digits-1"}
    assert folder_here(told, run.path.parent).path == run.path


def test_a_folder_of_another_run_is_left_alone(run, tmp_path):
    told = {"folder": "/runs/digits-1", "mark": "0123456789abcdef"}
    assert folder_here(told, run.path.parent).path.name == "digits-1-0123456789abcdef"


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_folder_that_others_may_write_to_is_not_shared(run, tmp_path, mode):
    run.path.chmod(mode)
    assert folder_here(told_of(run), tmp_path / "there").path == tmp_path / "there" / "digits-1"


@pytest.mark.parametrize("folder", ["", "/", "/runs/..", "..", ".ssh", "/runs/a b"])
def test_a_name_that_leads_elsewhere_is_refused(folder, tmp_path):
    with pytest.raises(NotTrusted, match="names a folder"):
        folder_here({"folder": folder, "mark": "0123456789abcdef"}, tmp_path)


@pytest.mark.parametrize("mark", ["", "../x", "a/b"])
def test_a_mark_is_no_path(mark, run, tmp_path):
    with pytest.raises(NotTrusted):
        folder_here({**told_of(run), "mark": mark}, tmp_path)
