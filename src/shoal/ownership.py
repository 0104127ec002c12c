"""Files that other users of the machine may have written: whose they are, and private folders.

Code that a run's file names, and code that was compiled before, is executed. So such a file is used
unasked only if it is this user's (the effective user's) and nobody else could have written it.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from shoal.errors import NotTrusted

PRIVATE = 0o700  # mode of folders that nobody else may enter
ROOT = 0


def others_owner(path: Path) -> str:
    """Return the owner of a file or folder, in words, if it is not this user; else "".

    Root is another user, too: this user has not written a file of root. A symbolic link and its
    target are both checked.
    """
    for owner in (path.lstat().st_uid, path.stat().st_uid):
        if owner != os.geteuid():
            return f"belongs to {_name_of(owner)}"
    return ""


def others_may_write(path: Path) -> str:
    """Return which other users may write to a file or folder, in words; empty if there are none."""
    status = path.stat()
    shown = f"(mode {stat.S_IMODE(status.st_mode):o})"
    if status.st_mode & stat.S_IWOTH:
        return f"can be written to by all users {shown}"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"can be written to by its group {shown}"
    return ""


def cache_folder(env: Mapping[str, str]) -> Path:
    """Return the user's folder for cached files: $XDG_CACHE_HOME/shoal, or ~/.cache/shoal."""
    # The XDG specification says that a relative path is ignored.
    if Path(env.get("XDG_CACHE_HOME", "")).is_absolute():
        return Path(env["XDG_CACHE_HOME"]) / "shoal"
    return Path(env.get("HOME") or _home()).absolute() / ".cache" / "shoal"


def private_folder(path: Path) -> None:
    """Make a folder of mode 0700 if it is missing, and check that nobody else can change its files.

    The folder and all files in it have to be this user's, and no other user may write to the folder
    or rename it.

    Raises:
        NotTrusted: another user has written there, or can
        OSError: the folder cannot be made or read
    """
    make_folders(path)
    for folder in {*path.absolute().parents, *path.resolve().parents}:
        wrong = others_owner(folder) if folder.stat().st_uid != ROOT else ""
        if not folder.stat().st_mode & stat.S_ISVTX:  # only a file's owner renames it
            wrong = wrong or others_may_write(folder)
        if wrong:
            raise NotTrusted(f"{folder}, in which {path} is, {wrong}")
    if wrong := others_may_write(path):
        raise NotTrusted(f"{path} {wrong}")
    for each in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):  # another process may be replacing it
            if wrong := others_owner(each):
                raise NotTrusted(f"{each} {wrong}")


def make_folders(path: Path, mode: int = PRIVATE) -> None:
    """Make a folder and its parents, where they are missing."""
    if not path.is_dir():
        make_folders(path.parent, mode)
        path.mkdir(mode, exist_ok=True)  # another process may make it at the same time


def _is_own_group(group: int) -> bool:
    """Return whether a group is this user's alone; many systems make such a group for each user."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return (user.pw_gid, user.pw_name) == (group, found.gr_name) and set(found.gr_mem) <= {
        user.pw_name
    }


def _name_of(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (user {user})"
    except KeyError:
        return f"user {user}"


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container's user without an entry: there the home is the root folder
        return "/"
