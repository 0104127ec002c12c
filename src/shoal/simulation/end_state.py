"""Checkers of the servers' rows at the end of a run: every push once, on every replica."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.keys import KeyRange, slot_of
from shoal.protocol.namespaces import local
from shoal.protocol.scheduler.leases.ledger import LedgerRecord
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.state.replica import Replica
from shoal.protocol.server.state.shard_store import ShardStore
from shoal.protocol.views import NodeId
from shoal.simulation.checkers.history import check_one_round, check_untorn, violated
from shoal.simulation.checkers.rounds import ClosedRounds
from shoal.simulation.plan import BATCHES, EPOCHS, STAMP_FRAGMENT
from shoal.simulation.workloads.programs import Workload
from shoal.tables.custom.shard import CustomShard
from shoal.tables.dense.shard import DenseShard
from shoal.tables.sparse.bounded_shard import BoundedShard
from shoal.tables.sparse.shard import SparseShard


def check_holdings(
    servers: Mapping[NodeId, ServerMachine],
    work: Workload,
    group: str,
    leases: LedgerRecord,
    departed: Mapping[int, int],
    whole: bool,
    closed: ClosedRounds | None = None,
) -> None:
    """Check the rows at the end of a complete run.

    The checkers are `lost`, `exactly once`, `vanished`, `torn`, `called once`, `split round`,
    `leased`, `departed`, `order`, `weights`, `residual`, `encoded`, `listed` and
    `replicas`.

    group:     the worker group that ran the workload
    departed:  the last clocks of workers that have left, by incarnation
    whole:     whether all accepted pushes are in the rows
    closed:    the rounds that are in the rows, if rounds close without some workers
    """
    rule = work.ledger.consistency
    stamps: list[np.ndarray] = []
    leased = np.zeros(EPOCHS * BATCHES, np.float32)
    longest = max(
        len(c.placement.in_sync) for m in servers.values() for c in m.state.replicas.values()
    )
    # by position in the chain; a shorter chain counts its tail for the positions after it
    ledgers = [np.zeros(work.keys, np.float32) for _ in range(longest)]
    custom: list[list[CustomShard]] = [[] for _ in range(longest)]
    model: dict[int, tuple[np.ndarray, int]] = {}
    encoded: dict[int, np.ndarray] = {}
    listed: dict[int, float] = {}
    for machine in servers.values():
        for replica, shard in _held(machine):
            if replica.group != group:
                continue
            at = replica.placement.in_sync.index(machine.session.rank)
            last = at == len(replica.placement.in_sync) - 1
            places = slice(at, None if last else at + 1)
            match local(shard.spec.name, group), shard:
                case _, CustomShard():
                    for each in custom[places]:
                        each.append(shard)
                case "ledger", _:
                    for ledger in ledgers[places]:
                        _add(ledger, shard)
                case "stamp", DenseShard():
                    rows = shard.rows.numpy()
                    check_untorn(rows.ravel(), STAMP_FRAGMENT)
                    stamps += [rows] if last else []
                case "harvest", DenseShard() if last:
                    leased[shard.held.start : shard.held.stop] = shard.rows.numpy().ravel()
                case "encoded", DenseShard() if last:
                    encoded |= {at: rows for at, (rows, _) in _by_fragment(shard).items()}
                case "listed", SparseShard() if last:
                    listed |= _by_key(shard)
                case "model", DenseShard() if last:
                    model |= _by_fragment(shard)
    for ledger in ledgers:
        work.ledger.check_end(ledger)
    check_replicas(servers)
    if work.calls is not None:
        for shards in custom:
            work.calls.check_end(shards)
    if work.leased is not None:
        work.leased.check_end(leased, leases, whole)
    if work.encoded is not None:
        work.encoded.check_end(encoded, whole)
    if work.listed is not None:
        work.listed.check_end(listed, whole)
    if rule.apply_at == "round_end":
        work.ledger.check_departed(ledgers[0], departed)
    if rule.apply_at == "round_end" and rule.closes is None and whole:
        check_one_round(stamps)
    if work.optimizer is not None and closed is not None:
        work.optimizer.check_merged(model, closed, work.ledger)
    elif work.optimizer is not None:
        work.optimizer.check_end(model, np.flatnonzero(ledgers[0]).tolist(), whole)


def check_remaining(servers: Mapping[NodeId, ServerMachine], work: Workload, group: str) -> None:
    """Check `lost`, `exactly once` and `replicas` after a run that ended early.

    The run ended during a view change, or because rows were lost. Each remaining row is read from
    its newest replica: an acknowledged push is on every replica of its chain.
    """
    check_replicas(servers)
    rows = np.full(work.keys, np.nan, np.float32)
    held = [
        (machine.session.view_id, replica.version, shard)
        for machine in servers.values()
        for replica, shard in _held(machine)
        if replica.group == group and local(shard.spec.name, group) == "ledger"
    ]
    for _, _, shard in sorted(held, key=lambda each: each[:2]):
        keys = np.arange(len(rows))
        if isinstance(shard, SparseShard):
            keys = np.array([key for key in keys.tolist() if slot_of(key) in shard.held])
        else:
            keys = keys[shard.held.start : shard.held.stop]
        if len(keys):
            rows[keys] = 0
            _add(rows, shard)
    work.ledger.check_end(rows)


def _by_fragment(shard: DenseShard) -> dict[int, tuple[np.ndarray, int]]:
    """Return the rows and the number of updates of each fragment, by its first row."""
    return {
        part.start: (np.frombuffer(shard.read(part), shard.spec.dtype), updates)
        for part, updates in zip(shard.fragments, shard.updates, strict=True)
    }


def evicting(servers: Mapping[NodeId, ServerMachine]) -> int:
    """Return how many replicas have evicted keys."""
    held = [each for machine in servers.values() for each in _held(machine)]
    return sum(shard.evicted > 0 for replica, shard in held if len(replica.placement.in_sync) > 1)


def check_replicas(servers: Mapping[NodeId, ServerMachine]) -> None:
    """Check `replicas`: replicas of the same rows with the same version are equal bit for bit.

    A run may end before all servers have the last view, which cuts shards elsewhere.
    """
    seen: dict[tuple[int, KeyRange, int], tuple[NodeId, bytes]] = {}
    for node, machine in servers.items():
        for replica, shard in _held(machine):
            key, data = (replica.table, replica.rows, replica.version), _content(shard)
            other, expected = seen.setdefault(key, (node, data))
            if data != expected:
                text = f"version {replica.version} of {shard.spec.name}{replica.rows}"
                raise violated("replicas", f"{text} differs on {other} and {node}")


def _held(machine: ServerMachine) -> list[tuple[Replica, ShardStore]]:
    """Return a server's in-sync replicas, each with its rows."""
    return [
        (replica, replica.shard)
        for replica in machine.state.replicas.values()
        if replica.rank in replica.placement.in_sync
    ]


def _content(shard: ShardStore) -> bytes:
    if isinstance(shard, CustomShard):
        return b"".join(each.numpy().tobytes() for each in shard.state().values())
    if isinstance(shard, BoundedShard):  # same keys, same places, same order of use
        state = shard.state()
        parts = state["keys"], state["records"], state["uses"][:, 1]
        return b"".join(part.numpy().tobytes() for part in parts)
    if isinstance(shard, SparseShard):
        records = shard.records[: len(shard) * shard.stride].reshape(len(shard), shard.stride)
        changed = np.flatnonzero(records.any(axis=1))  # some were only read here
        order = changed[np.argsort(shard.keys[: len(shard)][changed])]
        return shard.keys[order].tobytes() + records[order].tobytes()
    assert isinstance(shard, DenseShard)
    tensors = shard.carried(shard.held)
    counts = f"{shard.updates} {shard.versions}".encode()
    return counts + b"".join(tensor.numpy().tobytes() for tensor in tensors)


def _by_key(shard: SparseShard) -> dict[int, float]:
    """Return the rows of one element by key."""
    keys, rows = shard.keys[: len(shard)], shard.records[: len(shard) * shard.stride : shard.stride]
    return dict(zip(keys.tolist(), rows.tolist(), strict=True))


def _add(ledger: np.ndarray, shard: ShardStore) -> None:
    """Add the pushes in a shard of the ledger."""
    if isinstance(shard, SparseShard):
        rows = shard.records[: len(shard) * shard.stride]
        check_untorn(rows, shard.stride)
        ledger[shard.keys] += rows[:: shard.stride]
    else:
        assert isinstance(shard, DenseShard)
        ledger[shard.held.start : shard.held.stop] = shard.rows.numpy().ravel()
