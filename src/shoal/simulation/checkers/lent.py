"""`lent`: the rows of a shard are left alone while another thread works on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.protocol.server.state.shard_store import ShardStore
from shoal.simulation.checkers.history import violated

USES = (
    *("read", "read_keys", "new_keys", "apply", "apply_piece", "write", "split"),
    *("snapshot", "sample", "digest", "install", "restore"),
)


def watch(shard: ShardStore, at_work: Callable[[], bool]) -> ShardStore:
    """Return the shard with a check that only long work uses it while it is lent.

    at_work:  whether long work is being done
    """
    for name in USES:
        if hasattr(shard, name):
            setattr(shard, name, _watched(shard, name, at_work))
    return shard


def _watched(shard: ShardStore, name: str, at_work: Callable[[], bool]) -> Callable[..., Any]:
    use = getattr(shard, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        if shard.lent and not at_work():
            raise violated("lent", f"{name} of {shard.spec.name}{shard.held}, which is lent")
        found = use(*arguments, **named)
        return [watch(each, at_work) for each in found] if name == "split" else found

    return watched
