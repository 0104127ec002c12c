"""What servers have to agree on when a run has ended."""

from types import SimpleNamespace

import pytest

from shoal.keys import KeyRange
from shoal.simulation.checkers.history import Violation
from shoal.simulation.end_state import check_replicas
from shoal.tables.dense.shard import DenseShard
from shoal.tables.spec import TableSpec

SPEC = TableSpec("w", 9, fragment_rows=3)


def server(stop, value, version=0):
    """A server with the rows [0, stop), all of one value."""
    shard = DenseShard(SPEC, KeyRange(0, stop))
    shard.rows.fill_(value)
    replica = SimpleNamespace(
        table=0,
        rows=shard.held,
        version=version,
        shard=shard,
        rank=0,
        placement=SimpleNamespace(in_sync=(0,)),
    )
    return SimpleNamespace(state=SimpleNamespace(replicas={0: replica}))


def test_replicas_of_the_same_rows_and_version_are_equal():
    check_replicas({"a": server(9, 1.0), "b": server(9, 1.0)})
    check_replicas({"a": server(9, 1.0), "b": server(9, 2.0, version=1)})
    with pytest.raises(Violation, match="differs on a and b"):
        check_replicas({"a": server(9, 1.0), "b": server(9, 2.0)})


def test_shards_of_two_views_are_not_compared():
    """The run ended before one server had the view that cuts the rows elsewhere."""
    check_replicas({"a": server(9, 0.0), "b": server(6, 0.0)})
