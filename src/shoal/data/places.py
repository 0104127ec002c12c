"""The folders in which data sets are looked for; importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shoal.ownership import cache_folder


def search_path(explicit: Path | None, env: Mapping[str, str]) -> list[Path]:
    """Return the folders to look for data in, first to last; the last is the cache.

    `explicit` (--data-dir), then SHOAL_DATA, then $XDG_CACHE_HOME/shoal or ~/.cache/shoal. In each,
    a data set's files may lie in the folder itself or in its sub-folder of the data set's name.
    Only the cache is ever written to; what is kept decoded there is used only where no other user
    can write.

    >>> search_path(Path("/data"), {"HOME": "/home/me"})
    [PosixPath('/data'), PosixPath('/home/me/.cache/shoal')]
    """
    folders = [explicit] if explicit is not None else []
    if env.get("SHOAL_DATA"):
        folders.append(Path(env["SHOAL_DATA"]))
    return [folder.absolute() for folder in (*folders, cache_folder(env))]
