"""Where data sets are looked for. Importable without torch: the command line asks it first."""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from os import getuid
from pathlib import Path


def search_path(explicit: Path | None, env: Mapping[str, str]) -> list[Path]:
    """The folders to look for data in, first to last; the last is the cache.

    `explicit` (--data-dir), then SHOAL_DATA, then $XDG_CACHE_HOME/shoal or ~/.cache/shoal. In each,
    a data set's files may lie in the folder itself or in its sub-folder of the data set's name.
    Only the cache is ever written to.

    >>> search_path(Path("/data"), {"HOME": "/home/me"})
    [PosixPath('/data'), PosixPath('/home/me/.cache/shoal')]
    """
    folders = [explicit] if explicit is not None else []
    if env.get("SHOAL_DATA"):
        folders.append(Path(env["SHOAL_DATA"]))
    # The XDG specification has a relative path ignored.
    if Path(env.get("XDG_CACHE_HOME", "")).is_absolute():
        cache = Path(env["XDG_CACHE_HOME"])
    else:
        cache = Path(env.get("HOME") or _home()) / ".cache"
    return [folder.absolute() for folder in (*folders, cache / "shoal")]


def _home() -> str:
    try:
        return pwd.getpwuid(getuid()).pw_dir
    except KeyError:  # a container's user without an entry: there the home is the root folder
        return "/"
