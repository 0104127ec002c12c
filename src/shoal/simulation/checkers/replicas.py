"""What the servers of a simulated run hold at its end: every push once, on every replica."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.protocol.namespaces import local
from shoal.protocol.scheduler.leases import LedgerRecord
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.request_log import Replica
from shoal.protocol.server.shard_store import ShardStore
from shoal.protocol.views import NodeId
from shoal.simulation.checkers.history import check_one_round, check_untorn, violated
from shoal.simulation.workloads.leases import BATCHES, EPOCHS
from shoal.simulation.workloads.programs import INCARNATIONS, STAMP_FRAGMENT, Workload
from shoal.tables.custom.shard import CustomShard
from shoal.tables.dense.shard import DenseShard
from shoal.tables.sparse.bounded_shard import BoundedShard
from shoal.tables.sparse.shard import SparseShard


def check_holdings(
    servers: Mapping[NodeId, ServerMachine],
    work: Workload,
    group: str,
    leases: LedgerRecord,
    one_round: bool,
    whole: bool,
) -> None:
    """`lost`, `exactly once`, `torn`, `called once`, `split round`, `leased`, and `replicas`.

    group:  of workers, whose work it is
    """
    keys = INCARNATIONS * work.clocks
    stamps = []
    leased = np.zeros(EPOCHS * BATCHES, np.float32)
    longest = max(
        len(c.placement.in_sync) for m in servers.values() for c in m.replication.replicas.values()
    )
    ledgers = [np.zeros(keys, np.float32) for _ in range(longest)]  # by the place in the chain
    custom: list[list[CustomShard]] = [[] for _ in range(longest)]  # likewise
    for machine in servers.values():
        for replica, shard in _held(machine):
            if replica.group != group:
                continue
            name = local(shard.spec.name, group)
            at = replica.placement.in_sync.index(machine.session.rank)
            last = at == len(replica.placement.in_sync) - 1
            if isinstance(shard, CustomShard):
                for each in custom[at : None if last else at + 1]:
                    each.append(shard)
                continue
            if name == "stamp":
                assert isinstance(shard, DenseShard)
                rows = shard.rows.numpy()
                check_untorn(rows.ravel(), STAMP_FRAGMENT)
                if last:
                    stamps.append(rows)
                continue
            if name == "visits":
                continue
            if name == "harvest":
                assert isinstance(shard, DenseShard)
                if replica.placement.tail == machine.session.rank:
                    leased[shard.held.start : shard.held.stop] = shard.rows.numpy().ravel()
                continue
            for ledger in ledgers[at : None if last else at + 1]:
                _add(ledger, shard)
    for ledger in ledgers:
        work.ledger.check_end(ledger)
    check_replicas(servers)
    if work.calls is not None:
        for shards in custom:
            work.calls.check_end(shards)
    if work.leased is not None:
        work.leased.check_end(leased, leases, whole)
    if one_round:
        check_one_round(stamps)


def made_room(servers: Mapping[NodeId, ServerMachine]) -> int:
    """How many replicas have had to forget keys."""
    held = [each for machine in servers.values() for each in _held(machine)]
    return sum(shard.evicted > 0 for replica, shard in held if len(replica.placement.in_sync) > 1)


def check_replicas(servers: Mapping[NodeId, ServerMachine]) -> None:
    """`replicas`: copies of an arc that have been changed as often are the same, bit for bit."""
    seen: dict[tuple[int, int, int], tuple[NodeId, bytes]] = {}
    for node, machine in servers.items():
        for replica, shard in _held(machine):
            key, data = (replica.table, replica.rows.start, replica.version), _content(shard)
            other, expected = seen.setdefault(key, (node, data))
            if data != expected:
                text = f"version {replica.version} of {shard.spec.name}{replica.rows}"
                raise violated("replicas", f"{text} differs on {other} and {node}")


def _held(machine: ServerMachine) -> list[tuple[Replica, ShardStore]]:
    """What a server has all of."""
    copies, rank = machine.replication.replicas, machine.session.rank
    return [
        (copies[n], shard)
        for n, shard in machine.shards.items()
        if rank in copies[n].placement.in_sync
    ]


def _content(shard: ShardStore) -> bytes:
    if isinstance(shard, CustomShard):
        return b"".join(each.numpy().tobytes() for each in shard.state().values())
    if isinstance(shard, BoundedShard):  # the same keys at the same places, used last as long ago
        state = shard.state()
        parts = state["keys"], state["records"], state["uses"][:, 1]
        return b"".join(part.numpy().tobytes() for part in parts)
    if isinstance(shard, SparseShard):
        records = shard.records[: len(shard) * shard.stride].reshape(len(shard), shard.stride)
        changed = np.flatnonzero(records.any(axis=1))  # some were only read here
        order = changed[np.argsort(shard.keys[: len(shard)][changed])]
        return shard.keys[order].tobytes() + records[order].tobytes()
    assert isinstance(shard, DenseShard)
    return shard.rows.numpy().tobytes()


def _add(ledger: np.ndarray, shard: ShardStore) -> None:
    """The pushes that a shard of the ledger has."""
    if isinstance(shard, SparseShard):
        rows = shard.records[: len(shard) * shard.stride]
        check_untorn(rows, shard.stride)
        ledger[shard.keys] += rows[:: shard.stride]
    else:
        assert isinstance(shard, DenseShard)
        ledger[shard.held.start : shard.held.stop] = shard.rows.numpy().ravel()
