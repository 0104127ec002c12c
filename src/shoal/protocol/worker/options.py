"""Options of a worker's machine."""

from __future__ import annotations

from typing import Literal

import msgspec

OnTimeout = Literal["wait", "ask", "drop"]


class WorkerOptions(msgspec.Struct, frozen=True):
    """
    Attributes:
        sync_timeout_s: the seconds until an urgent probe; a request fails after twice this time.
        on_timeout: the reaction to the time-out: with "ask" the request fails as described; with
            "wait" and "drop" it is probed, and does not fail. With "drop" the scheduler drops
            workers for which others wait so long, and an exchange with neighbours goes on without
            late ones.
        probe_s: the seconds until the first probe of an unanswered request; doubles with each.
        probe_max_s: the largest time between probes.
        behind_s: the seconds until a server with an older view is asked again.
        credit_bytes: the most payload under way to a server (one request may exceed it alone).
    """

    sync_timeout_s: float = 10.0
    on_timeout: OnTimeout = "ask"
    probe_s: float = 0.5
    probe_max_s: float = 4.0
    behind_s: float = 0.01
    credit_bytes: int = 256 << 20
