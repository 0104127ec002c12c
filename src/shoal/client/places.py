"""The address and the token of a run on this machine, read from the run's folder."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import DataCorrupt, DataMissing, ShoalError
from shoal.storage.files import damaged, read_text, read_whole
from shoal.storage.held_file import is_abandoned
from shoal.storage.run_folder import RunFolder
from shoal.transport import transport_for


def token_at(where: str) -> str:
    """Return the token in a run's folder on this machine; empty if this user can read none.

    Raises:
        DataCorrupt: the token is damaged.
    """
    path = RunFolder(Path(where)).token
    try:
        data = read_whole(path) if where else b""
    except (DataMissing, DataCorrupt):  # no token, another user's token, or an address
        return ""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DataCorrupt(f"{path} is damaged: it is no token; give one with --token") from None


def scheduler_at(where: str) -> str:
    """Return the scheduler's address, from an address or a run's folder on this machine.

    Raises:
        DataMissing: no run is under way in that folder.
        DataCorrupt: the address in the folder is damaged.
        AddressInvalid: the text is no path and has a colon, but no "://".
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
    """Return the address in a run's folder, whether or not the run is under way.

    Raises:
        DataMissing, DataCorrupt: there is no address, or it is damaged
    """
    address = read_text(folder.scheduler)
    try:
        transport_for(address)
    except ShoalError as error:
        raise damaged(folder.scheduler, error.message) from None
    return address
