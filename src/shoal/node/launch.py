"""The launch of this process: the id that a host gave to this start of it, and what it tells back.

The process says it where it joins, and its host where it reports how the process has ended. Process
ids would not do: they are used again, and are not unique among containers.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress

_launch = _label = ""
_host = -1


def launched_as(launch: str, host: int, label: str) -> None:
    """Set the launch of this process; its forks have it too.

    host:   the descriptor of a pipe to its host
    label:  the name of its host, as `Host.label`
    """
    global _launch, _host, _label
    _launch, _host, _label = launch, host, label


def launch_id() -> str:
    """Return the launch of this process; "" if no host has started it."""
    return _launch


def host_label() -> str:
    """Return the name of this process's host: what fails as a whole."""
    return _label or socket.gethostname()


def listens_at(address: str) -> None:
    """Tell the host at which address this process listens."""
    _tell({"address": address})


def wants(file: str) -> None:
    """Tell the host that this process waits for a file, of those that it may ask for."""
    _tell({"wants": file})


def _tell(said: dict[str, str]) -> None:
    if _host >= 0:
        with suppress(OSError):  # the host is gone
            os.write(_host, json.dumps(said).encode() + b"\n")
