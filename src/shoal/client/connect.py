"""`shoal.connect`: join a running cluster as a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.errors import DataCorrupt, DataMissing, InvalidValue, ShoalError
from shoal.factories import refuse_while_importing
from shoal.storage.files import damaged, read_text
from shoal.storage.held_file import is_abandoned
from shoal.storage.run_folder import RunFolder
from shoal.transport import transport_for


def connect(address: str, **options: Any) -> Client:
    """Join a cluster as a worker, or attach to it as a group of its own.

    Args:
        address: the scheduler's address, unix:///PATH or tcp://HOST:PORT; or the folder of a run
            on this machine.
        options: fields of `ClientOptions`: token, init_timeout_s, sync_timeout_s, rank, debug;
            group, group_size and namespace to attach to another group's run.

    Returns:
        The connected client. Use it in a `with` block, or close it.

    Raises:
        InvalidValue: an unknown option, or a value out of its range.
        DataMissing: no run is under way in that folder.
        AddressInvalid: the address is malformed.
        JoinTimeout: the cluster was not complete within `init_timeout_s`.
        JoinRefused: the scheduler refused this worker, with its reason.

    Example:
        >>> with shoal.connect("tcp://127.0.0.1:4000") as client:  # doctest: +SKIP
        ...     client.create_table(shoal.TableSpec("w", 1000))
        ...     client.push("w", torch.ones(1000)).wait()

        A group that reads a model while the first group trains it; no worker waits for its reads:

        >>> with shoal.connect("shoal-runs/mine", group="eval") as client:  # doctest: +SKIP
        ...     while "" in client.groups:
        ...         print(client.blocking.pull("/w").norm())

    References:
        Li et al. 2014, section 3.1 (worker groups and parameter namespaces).
    """
    refuse_while_importing("shoal.connect()")
    try:
        chosen = msgspec.convert(options, ClientOptions)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"connect: {error}") from None
    unknown_options = sorted(set(options) - set(ClientOptions.__struct_fields__))
    if unknown_options:
        raise InvalidValue(
            f"connect has no option {', '.join(unknown_options)} "
            f"(known: {', '.join(ClientOptions.__struct_fields__)})"
        )
    token = chosen.token or token_at(address)
    chosen = msgspec.structs.replace(chosen, token=token)
    return Client(scheduler_at(address), chosen, lambda: scheduler_at(address))


def token_at(where: str) -> str:
    """The token of a run of this user's on this machine, from its folder; else empty.

    Raises:
        DataCorrupt: it is damaged.
    """
    path = RunFolder(Path(where)).token
    try:
        data = path.read_bytes() if where else b""
    except OSError:  # it has none, it is another user's, or where is an address
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
