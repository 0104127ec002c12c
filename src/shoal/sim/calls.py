"""Calls of a handled table in a simulated run: each adds 1 to a key of its own, once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from shoal.keys import slot_of
from shoal.protocol.requests import Answer, Exchange, PullOp
from shoal.protocol.worker import WorkerMachine
from shoal.sim.checkers import violated
from shoal.sim.world import Program
from shoal.tables.calls import Call, What, read_answer
from shoal.tables.handled import HandledShard
from shoal.tables.spec import Access, TableSpec

SPEC = TableSpec("calls", kind="handled", access=Access("lists"), saves=True)


class Calls:
    """What was called, and what each key may read."""

    def __init__(self) -> None:
        self.intended: set[int] = set()
        self.acknowledged: set[int] = set()
        self._numbers: dict[int, int] = {}  # of the last call, by incarnation

    def push(self, machine: WorkerMachine, key: int, timeout_s: float | None) -> Program:
        """Add 1 to a key; where that is acknowledged, it reads 1."""
        self.intended.add(key)
        one: dict[str, Any] = {
            "lens": np.ones(1, np.int64),
            "values": np.ones(1, np.float32).view(np.uint8).data,
        }
        op, _ = self._op(machine, "push", key, **one)
        outcome = yield Exchange(pulls=(op,), timeout_s=timeout_s)
        if outcome.error is not None:
            return
        self.acknowledged.add(key)
        op, answer = self._op(machine, "pull", key)
        outcome = yield Exchange(pulls=(op,))
        if outcome.error is None:
            read = np.frombuffer(read_answer(answer.data)[1], np.float32).tolist()
            if read != [1.0]:
                raise violated("called once", f"key {key} reads {read} after its call")

    def check_end(self, shards: Iterable[HandledShard]) -> None:
        """`called once`: acknowledged keys read 1, intended ones 1 or nothing, others nothing.

        shards:  of all servers at one place of their chains
        """
        found = {key: row.tolist() for each in shards for key, row in each.handler.rows.items()}
        for key in sorted(self.acknowledged - found.keys()):
            raise violated("called once", f"the acknowledged call of key {key} is lost")
        for key, row in found.items():
            if row != [1.0] or key not in self.intended:
                raise violated("called once", f"key {key} reads {row}")

    def _op(
        self, machine: WorkerMachine, what: What, key: int, **parts: Any
    ) -> tuple[PullOp, Answer]:
        incarnation, view = machine.session.incarnation, machine.session.view
        assert view is not None
        number = self._numbers[incarnation] = self._numbers.get(incarnation, 0) + 1
        call = Call(incarnation, number, number, what, 0, np.array([key], np.uint64), **parts)
        table = machine.number_of(SPEC.name)
        assert table is not None
        held = next(arc.rows for arc in view.arcs[table] if slot_of(key) in arc.rows)
        answer = Answer()
        return PullOp(SPEC.name, held, answer, call.words().data), answer
