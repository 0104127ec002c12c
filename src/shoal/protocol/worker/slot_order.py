"""Slot order: keys of a sparse table in the order of their hash slots, to be cut at any of them.

A request to a single server has its keys in any order, and nothing is copied for it. If several
servers have the slots when the request is cut, its keys are put in order here. The answer is then
received row by row, each row where the caller wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from shoal.keys import slot_of
from shoal.protocol.layout import KEY_BYTES
from shoal.protocol.requests import Answer, PullOp, PushOp

Buffer = memoryview | list[memoryview]


def in_slot_order(
    pushes: Sequence[PushOp],
    pulls: Sequence[PullOp],
    unordered: Callable[[PushOp | PullOp], bool],
) -> tuple[list[PushOp], list[PullOp]]:
    """Return the operations, with the keys of the `unordered` ones in order.

    A push and a pull that share their keys share them afterwards.
    """
    orders: dict[int, tuple[list[int], memoryview]] = {}  # by the object that has the keys

    def order_of(keys: memoryview) -> tuple[list[int], memoryview]:
        if id(keys) not in orders:
            order = sorted(range(len(keys)), key=lambda at: slot_of(keys[at]))
            moved = bytearray(KEY_BYTES * len(keys))
            ordered = memoryview(moved).cast("Q")
            for place, at in enumerate(order):
                ordered[place] = keys[at]
            orders[id(keys)] = order, ordered
        return orders[id(keys)]

    def push_in_order(op: PushOp) -> PushOp:
        if op.keys is None or not unordered(op):
            return op
        order, keys = order_of(op.keys)
        values = memoryview(b"".join(_rows(op.values, order)))
        return replace(op, values=values, keys=keys, ordered=True)

    def pull_in_order(op: PullOp) -> PullOp:
        if op.keys is None or isinstance(op.out, Answer) or not unordered(op):
            return op
        order, keys = order_of(op.keys)
        return replace(op, out=_rows(op.out, order), keys=keys, ordered=True)

    return [push_in_order(op) for op in pushes], [pull_in_order(op) for op in pulls]


def _rows(buffer: Buffer, order: list[int]) -> list[memoryview]:
    """Return the views of the rows of a buffer, in this order."""
    if isinstance(buffer, list):
        return [buffer[at] for at in order]
    size = buffer.nbytes // max(len(order), 1)
    return [buffer[at * size : (at + 1) * size] for at in order]
