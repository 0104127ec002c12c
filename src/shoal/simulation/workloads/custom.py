"""The workload of a custom table: each call adds 1 to keys of its own, once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import numpy as np

from shoal.keys import KeyRange, slot_of
from shoal.protocol.requests import Answer, Exchange, PullOp
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import violated
from shoal.simulation.node import Program
from shoal.tables.custom.calls import Call, What, read_answer
from shoal.tables.custom.shard import CustomShard
from shoal.tables.spec import Access, TableSpec


class Calls:
    """Calls the handler, and checks its rows."""

    spec = TableSpec("calls", kind="custom", access=Access("lists"), saves=True)

    def __init__(self) -> None:
        self.intended: set[int] = set()
        self.acknowledged: set[int] = set()
        self._numbers: dict[int, int] = {}  # of the last call, by incarnation

    def push(self, machine: WorkerMachine, key: int, timeout_s: float | None) -> Program:
        """Add 1 to a key of every shard at once; if that is acknowledged, check that each is 1."""
        keys = self._keys(machine, key)
        self.intended.update(keys.values())
        one = np.ones(1, np.float32).view(np.uint8).data
        ops = self._ops(machine, "push", keys, lens=np.ones(1, np.int64), values=one)
        outcome = yield Exchange(pulls=tuple(ops), timeout_s=timeout_s)
        if outcome.error is not None:
            return
        self.acknowledged.update(keys.values())
        ops = self._ops(machine, "pull", keys)
        outcome = yield Exchange(pulls=tuple(ops))
        for called, op in zip(keys.values(), ops, strict=True):
            assert isinstance(op.out, Answer)
            if outcome.error is None:
                read = np.frombuffer(read_answer(op.out.data)[1], np.float32).tolist()
                if read != [1.0]:
                    raise violated("called once", f"key {called} reads {read} after its call")

    def check_end(self, shards: Iterable[CustomShard]) -> None:
        """Check `called once`: acknowledged keys read 1, intended ones 1 or nothing, others none.

        shards:  all shards at one position of their chains
        """
        found = {key: row.tolist() for each in shards for key, row in each.handler.rows.items()}
        for key in sorted(self.acknowledged - found.keys()):
            raise violated("called once", f"the acknowledged call of key {key} is lost")
        for key, row in found.items():
            if row != [1.0] or key not in self.intended:
                raise violated("called once", f"key {key} reads {row}")

    def _keys(self, machine: WorkerMachine, key: int) -> dict[KeyRange, int]:
        """Return for each shard a key that no other call uses."""
        view, table = machine.session.view, machine.number_of(self.spec.name)
        assert view is not None
        assert table is not None
        return {
            placement.rows: next(k for k in count(key << 20) if slot_of(k) in placement.rows)
            for placement in view.placements[table]
        }

    def _ops(
        self, machine: WorkerMachine, what: What, keys: dict[KeyRange, int], **parts: Any
    ) -> list[PullOp]:
        incarnation = machine.session.incarnation
        first = self._numbers.get(incarnation, 0) + 1
        self._numbers[incarnation] = first + len(keys) - 1
        found = []
        for number, (rows, key) in enumerate(keys.items(), start=first):
            named = np.array([key], np.uint64)
            call = Call(incarnation, number, first, what, 0, named, **parts)
            found.append(PullOp(self.spec.name, rows, Answer(), call.words().data))
        return found
