"""`data.places`: the folders in which data sets are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.data.places import search_path


def test_the_search_path_is_explicit_then_environment_then_cache() -> None:
    env = {"HOME": "/home/me", "SHOAL_DATA": "/data"}
    home = Path("/home/me/.cache/shoal")
    assert search_path(None, {"HOME": "/home/me"}) == [home]
    assert search_path(None, env) == [Path("/data"), home]
    assert search_path(Path("/mine"), env) == [Path("/mine"), Path("/data"), home]
    assert search_path(None, env | {"XDG_CACHE_HOME": "/x"})[-1] == Path("/x/shoal")
    assert search_path(None, env | {"XDG_CACHE_HOME": "relative"})[-1] == home
    assert search_path(None, {"HOME": "/home/me", "SHOAL_DATA": ""}) == [home]


def test_relative_folders_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert search_path(Path("a"), {"SHOAL_DATA": "b", "HOME": "/"})[:2] == [
        tmp_path / "a",
        tmp_path / "b",
    ]


def test_a_cache_is_found_without_a_home_in_the_environment() -> None:
    (folder,) = search_path(None, {})
    assert folder.is_absolute()
    assert folder.name == "shoal"
