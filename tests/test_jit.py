"""Compiled loops are kept where nobody else can write, and fetched from nowhere else."""

import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import shoal

PROBE = Path(__file__).parent / "scripts" / "probe.py"


class Planted:
    """What executes code when it is unpickled, as numba does with what it fetches."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def probe(tmp_path):
    """Where a process of its own keeps two loops (None: nowhere), whether one was fetched, and
    what it says."""

    def run(**env):
        inherited = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
        done = subprocess.run(
            [sys.executable, PROBE],
            env={**inherited, "XDG_CACHE_HOME": str(tmp_path / "cache"), **env},
            capture_output=True,
            text=True,
            check=True,
        )
        *paths, hits = done.stdout.split()
        places = {None if path == "None" else Path(path).parent for path in paths}
        return places, int(hits), done.stderr

    return run


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_loops_are_kept_in_a_folder_of_the_users_own(tmp_path, probe):
    folder = tmp_path / "cache" / "shoal" / "compiled"
    assert probe() == ({folder}, 0, "")
    assert mode(folder) == mode(folder.parent) == 0o700
    assert probe() == ({folder}, 1, "")


def test_the_folder_of_numba_is_used_where_it_is_given(tmp_path, probe):
    given = tmp_path / "given"
    assert probe(NUMBA_CACHE_DIR=str(given)) == ({given}, 0, "")
    assert mode(given) == 0o700


@pytest.mark.parametrize("opened", ["shoal/compiled", "shoal"])
@pytest.mark.parametrize("given", [False, True])
def test_nothing_is_fetched_from_where_others_can_write(tmp_path, probe, opened, given):
    folder = tmp_path / "cache" / "shoal" / "compiled"
    env = {"NUMBA_CACHE_DIR": str(folder)} if given else {}
    probe(**env)
    mark = tmp_path / "executed"
    for index in folder.rglob("*.nb?"):
        index.write_bytes(pickle.dumps(Planted(mark)))
    (tmp_path / "cache" / opened).chmod(0o777)
    places, hits, said = probe(**env)
    assert not mark.exists()
    assert (places, hits) == ({None}, 0)
    assert said.count("compiled code is not kept") == 1
    assert f"{tmp_path / 'cache' / opened}" in said
    assert "(mode 777)" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_nothing_is_fetched_that_another_user_has_left(tmp_path, probe):
    folder = tmp_path / "cache" / "shoal" / "compiled"
    probe()
    index = next(folder.rglob("*.nbi"))
    index.write_bytes(pickle.dumps(Planted(tmp_path / "executed")))
    os.chown(index, 54321, 54321)
    places, _, said = probe()
    assert places == {None}
    assert f"{index} belongs to user 54321" in said
    assert not (tmp_path / "executed").exists()


def test_loops_are_compiled_without_a_folder_where_none_can_be_made(tmp_path, probe):
    (tmp_path / "cache").write_text("a file")
    places, hits, said = probe()
    assert (places, hits) == ({None}, 0)
    assert "compiled code is not kept" in said


def test_no_module_lets_numba_choose_the_place():
    for path in Path(shoal.__file__).parent.rglob("*.py"):
        assert "cache=True" not in path.read_text(), path
