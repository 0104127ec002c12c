"""`shoal.connect`: a worker that nobody started for it."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.errors import InvalidValue
from shoal.runtime.client import Client
from shoal.runtime.client_options import ClientOptions


def connect(address: str, **options: Any) -> Client:
    """Join the cluster whose scheduler is at `address`, as a worker.

    address:  unix:///PATH or tcp://HOST:PORT
    options:  fields of `ClientOptions`: token, init_timeout_s, sync_timeout_s, rank, debug

    Raises:
        JoinTimeout: the cluster was not complete in time
        JoinRefused: the scheduler said no, with its reason

    >>> with shoal.connect("tcp://127.0.0.1:4000") as client:      # doctest: +SKIP
    ...     client.create_table(shoal.TableSpec("w", 1000))
    ...     client.push("w", torch.ones(1000)).wait()
    """
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
    return Client(address, chosen)
