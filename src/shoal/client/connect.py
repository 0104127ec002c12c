"""`shoal.connect`: join a running cluster as a worker."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.client.places import scheduler_at, token_at
from shoal.errors import InvalidValue
from shoal.factories import refuse_while_importing


def connect(address: str, **options: Any) -> Client:
    """Join a cluster as a worker, or attach to it as a group of its own.

    Args:
        address: the scheduler's address, unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT;
            or the folder of a run on this machine.
        options: the fields of `ClientOptions`: token, tls, init_timeout_s, sync_timeout_s,
            on_timeout, collective, rank, listen, probe_s, drop_messages, debug, abort_on_error;
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
