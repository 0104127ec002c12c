"""`shoal.connect`: a worker that nobody started for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.errors import DataMissing, InvalidValue
from shoal.factories import refuse_while_importing
from shoal.storage.run_folder import RunFolder
from shoal.transport import transport_for


def connect(address: str, **options: Any) -> Client:
    """Join the cluster whose scheduler is at `address`, as a worker.

    address:  unix:///PATH or tcp://HOST:PORT; or the folder of a run on this machine
    options:  fields of `ClientOptions`: token, init_timeout_s, sync_timeout_s, rank, debug; and
              group, group_size, namespace, to attach to a run of others

    Raises:
        DataMissing: no run is under way in that folder
        JoinTimeout: the cluster was not complete in time
        JoinRefused: the scheduler said no, with its reason

    >>> with shoal.connect("tcp://127.0.0.1:4000") as client:      # doctest: +SKIP
    ...     client.create_table(shoal.TableSpec("w", 1000))
    ...     client.push("w", torch.ones(1000)).wait()

    Somebody else reads it while it is trained, and nobody waits for that:

    >>> with shoal.connect("shoal-runs/mine", group="eval") as client:      # doctest: +SKIP
    ...     while "" in client.groups:
    ...         print(client.blocking.pull("/w").norm())

    Li et al. 2014, section 3.1: worker groups and namespaces.
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
    return Client(scheduler_at(address), chosen)


def scheduler_at(where: str) -> str:
    """The address of a scheduler, given that or the folder of a run on this machine.

    Raises:
        DataMissing: no run is under way in that folder
        AddressInvalid: it looks like an address, and is none
    """
    if "://" in where:
        return where
    if ":" in where and not Path(where).exists():
        transport_for(where)
    folder = RunFolder(Path(where))
    if not folder.path.is_dir():
        raise DataMissing(f"there is no run folder {folder.path}")
    if not folder.scheduler.exists():
        raise DataMissing(f"no run is under way in {folder.path}")
    return folder.scheduler.read_text()
