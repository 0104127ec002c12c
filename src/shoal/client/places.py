"""Where a run on this machine is, by its folder: its scheduler's address, and its token."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import DataCorrupt, DataMissing, ShoalError
from shoal.storage.files import damaged, read_text, read_whole
from shoal.storage.held_file import is_abandoned
from shoal.storage.run_folder import RunFolder
from shoal.transport import transport_for


def token_at(where: str) -> str:
    """The token of a run of this user's on this machine, from its folder; else empty.

    Raises:
        DataCorrupt: it is damaged.
    """
    path = RunFolder(Path(where)).token
    try:
        data = read_whole(path) if where else b""
    except (DataMissing, DataCorrupt):  # it has none, it is another user's, or where is an address
        return ""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DataCorrupt(f"{path} is damaged: it is no token; give one with --token") from None


def scheduler_at(where: str) -> str:
    """The address of a scheduler, from an address or the folder of a run on this machine.

    Raises:
        DataMissing: no run is under way in that folder.
        DataCorrupt: the folder has no address of one.
        AddressInvalid: the text looks like an address and is malformed.
    """
    if "://" in where:
        return where
    if ":" in where and not Path(where).exists():
        transport_for(where)
    folder = RunFolder(Path(where))
    if not folder.path.is_dir():
        raise DataMissing(f"there is no folder {folder.path}; give a run's folder or an address")
    if not folder.scheduler.exists():
        raise DataMissing(
            f"no run is under way in {folder.path}: it has ended ({folder.scheduler} is not there)"
        )
    address = read_address(folder)
    if is_abandoned(folder.scheduler):
        raise DataMissing(f"no run is under way in {folder.path}: it was killed before its end")
    return address


def read_address(folder: RunFolder) -> str:
    """The address in a run's folder, whether or not the run is under way.

    Raises:
        DataMissing, DataCorrupt: there is none
    """
    address = read_text(folder.scheduler)
    try:
        transport_for(address)
    except ShoalError as error:
        raise damaged(folder.scheduler, error.message) from None
    return address
