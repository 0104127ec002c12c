"""How a worker joins a run."""

from __future__ import annotations

import msgspec

from shoal.errors import InvalidValue
from shoal.protocol.views import valid_group


class ClientOptions(msgspec.Struct, frozen=True):
    """
    token:           of the cluster, where it has one
    init_timeout_s:  how long to wait until the cluster is complete
    sync_timeout_s:  after this an unanswered request is asked for again, after twice this it fails
    rank:            the rank wished for; -1 for any
    debug:           look for writes to borrowed buffers (a checksum a push)
    group:           of workers, that this one is in: it has clocks, barriers, allreduce, leases and
                     ranks of its own. The first group, which the cluster was started for, has no
                     name; others attach to it while it is there
    group_size:      how many workers make another group complete: it begins then
    namespace:       where the names of its tables are: `w` is the group's own; `/w` is the first
                     group's, from any namespace. The group's name where it is not given; "" to have
                     all tables in common with the first group
    """

    token: str = ""
    init_timeout_s: float = 60.0
    sync_timeout_s: float = 10.0
    rank: int = -1
    debug: bool = False
    group: str = ""
    group_size: int = 1
    namespace: str | None = None

    def __post_init__(self) -> None:
        for name in (self.group, self.namespace or ""):
            if not valid_group(name):
                raise InvalidValue(
                    f"a group's name, and a namespace, is of letters, digits, - and _, and at most "
                    f"64 of them: not {name!r}"
                )
        if self.group_size < 1:
            raise InvalidValue(f"a group has at least one worker, not {self.group_size}")

    @property
    def prefix(self) -> str:
        """The namespace that it comes to."""
        return self.group if self.namespace is None else self.namespace
