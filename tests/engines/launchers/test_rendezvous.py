"""Ranks that meet: what each hears, who is missing, and stores that are older than the world."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from subprocess import run
from threading import Event

import pytest
import torch.distributed as dist

from shoal.engines.launchers import rendezvous
from shoal.engines.launchers.rendezvous import StoreRendezvous, rendezvous_of
from shoal.engines.launchers.world import World
from shoal.errors import InvalidValue, JoinTimeout, PackageMissing
from tests.transport.rigs import free_port

MPIRUN = Path(sys.executable).with_name("mpirun")


def world(rank, size=3, launcher="torchrun", local_size=1):
    return World(launcher, rank, size, rank % local_size, local_size, "")


@pytest.fixture
def store():
    return dist.HashStore()


def meet(store, answer, ranks=(0, 1, 2), timeout_s=10.0):
    """What each of these ranks of a world of three gets, or its error."""

    def one(rank):
        place = StoreRendezvous(world(rank), store, "here")
        try:
            return place.meet({"rank": rank}, answer, timeout_s)
        except (InvalidValue, JoinTimeout) as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return [*pool.map(one, ranks)]


def test_rank_0_hears_all_and_all_get_its_answer(store):
    def answer(heard):
        return {"ranks": [each["rank"] for each in heard]}

    assert meet(store, answer) == [{"ranks": [0, 1, 2]}] * 3
    assert meet(store, lambda heard: {"again": True}) == [{"again": True}] * 3


def test_an_error_of_rank_0_is_that_of_all(store):
    def answer(heard):
        raise InvalidValue("--replicas 2 needs at least 2 servers")

    for error in meet(store, answer):
        assert isinstance(error, InvalidValue)
        assert "2 servers" in error.message


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ((0, 1), "ranks 0 to 1 have come, and rank 2 has not"),
        ((0, 2), "rank 0 has come, and rank 1 has not"),
        ((1, 2), "rank 0 has not answered"),
    ],
)
def test_who_is_missing_is_named_with_the_place(store, ranks, told):
    error = meet(store, lambda heard: {}, ranks, timeout_s=0.3)[0]
    assert isinstance(error, JoinTimeout)
    assert "the 3 ranks of torchrun at here" in error.message
    assert told in error.message


def test_a_wait_is_told_before_it_is_given_up(store, monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "SAY_S", 0.1)
    meet(store, lambda heard: {}, (0, 1), timeout_s=0.35)
    told = [each for each in caplog.messages if "waiting for" in each]
    assert len(told) >= 2
    assert any("rank 2 has not" in each for each in told)


def test_answers_of_an_earlier_group_do_not_count(store):
    """torchrun starts all ranks again beside the same store, the others before rank 0."""
    assert meet(store, lambda heard: {"group": 1}) == [{"group": 1}] * 3
    begun = Event()

    def late(heard):
        return {"group": 2}

    def follower(rank):
        begun.set()
        return StoreRendezvous(world(rank), store, "here").meet({"rank": rank}, late, 10.0)

    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(follower, rank) for rank in (1, 2)]
        begun.wait()
        first = StoreRendezvous(world(0), store, "here").meet({"rank": 0}, late, 10.0)
        assert [first, *(each.result() for each in others)] == [{"group": 2}] * 3


def test_asks_of_an_earlier_group_do_not_count(store):
    """It ended before all of its ranks had come: rank 0 waits for those of its own group."""
    assert isinstance(meet(store, lambda heard: {}, (0, 1), timeout_s=0.3)[0], JoinTimeout)
    error = meet(store, lambda heard: {}, (0, 2), timeout_s=0.3)[0]
    assert "rank 1 has not" in error.message


def test_an_unexpected_error_of_rank_0_is_told_to_the_others(store):
    def one(rank):
        place = StoreRendezvous(world(rank, 2), store, "here")
        try:
            place.meet({}, answer, 10.0)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def answer(heard):
        raise OSError("no space left")

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(one, (0, 1))
    assert first == "OSError: no space left"
    assert second == "ProcessDied: rank 0 has failed: OSError: no space left"


def test_ranks_that_are_known_to_be_gone_are_not_waited_for(store):
    def one(rank):
        place = StoreRendezvous(world(rank), store, "here")
        return place.meet({"rank": rank}, lambda heard: {"heard": heard[1]}, 10.0, absent={1})

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(one, (0, 2))] == [{"heard": {}}] * 2


def test_rank_0_stays_until_the_others_have_its_answer():
    """Its store ends with it."""
    port = free_port()
    places = [None] * 3

    def one(rank):
        where = rendezvous_of(world(rank, launcher="srun"), {}, f"127.0.0.1:{port}", 10.0)
        places[rank] = where
        found = where.meet({"rank": rank}, lambda heard: {"n": len(heard)}, 10.0)
        if rank == 0:
            places[0] = None
            del where  # the last reference to the store
        return found

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(one, range(3))] == [{"n": 3}] * 3


def test_nobody_at_the_rendezvous_is_told_with_the_address():
    with pytest.raises(JoinTimeout, match=r"nobody serves the rendezvous at tcp://127.0.0.1:\d+"):
        rendezvous_of(world(1), {}, f"127.0.0.1:{free_port()}", 0.5)


def test_a_port_that_is_taken_is_told():
    held = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=1))
    with pytest.raises(InvalidValue, match="rank 0 cannot serve the rendezvous"):
        rendezvous_of(world(0), {}, f"127.0.0.1:{held.port}", 1.0)


def test_torchruns_place_is_needed():
    with pytest.raises(InvalidValue, match=r"no MASTER_ADDR.*SHOAL_LAUNCHER=none"):
        rendezvous_of(world(1), {}, "", 1.0)


def test_ranks_of_one_host_meet_at_a_file_of_this_user(tmp_path, monkeypatch):
    monkeypatch.setattr(rendezvous.tempfile, "gettempdir", lambda: str(tmp_path))
    env = {"PMIX_NAMESPACE": "prterun-1@1"}
    places = [rendezvous_of(world(r, 3, "mpirun", 3), env, "", 1.0) for r in range(3)]
    with ThreadPoolExecutor(3) as pool:
        said = pool.map(lambda place: place.meet({}, lambda heard: {"n": len(heard)}, 10.0), places)
        assert [*said] == [{"n": 3}] * 3
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    [file] = folder.iterdir()
    os.utime(file, (0, 0))
    rendezvous_of(world(0, 3, "mpirun", 3), {"PMIX_NAMESPACE": "prterun-2@1"}, "", 1.0)
    assert not file.exists()  # left by a world of another day


def test_ranks_without_a_name_for_their_job_have_what_started_them():
    assert rendezvous._starter() == rendezvous._starter()
    name, parent, began = rendezvous._process(os.getpid())
    assert (parent, began.isdigit()) == (os.getppid(), True)
    assert name


def test_a_step_without_a_first_node_is_refused():
    with pytest.raises(InvalidValue, match="--rendezvous HOST:PORT"):
        rendezvous_of(world(1, launcher="srun"), {}, "", 1.0)


def test_mpi_on_several_hosts_needs_mpi4py_or_a_rendezvous(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(PackageMissing, match=r"shoal\[mpi\].*--rendezvous HOST:PORT"):
        rendezvous_of(world(1, launcher="mpirun"), {}, "", 1.0)


@pytest.mark.real
def test_ranks_meet_by_mpi():
    script = str(Path(__file__).parent / "scripts" / "meets.py")
    words = [MPIRUN, "-n", "3", "--oversubscribe", "--allow-run-as-root", sys.executable, script]
    done = run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == [
        "0 012 refused",
        "1 012 refused",
        "2 012 refused",
    ]


@pytest.mark.real
def test_mpirun_ends_the_others_when_a_rank_fails_that_has_met_them_by_mpi():
    script = str(Path(__file__).parent / "scripts" / "meets.py")
    words = [MPIRUN, "-n", "3", "--oversubscribe", "--allow-run-as-root", sys.executable, script]
    done = run([*words, "fail"], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode != 0
    assert "SystemError: rank 2 fails" in done.stderr
