"""Calls of custom tables: keys with values of any lengths, and requests to handlers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from shoal.client.sparse.exchanges import keys_of
from shoal.errors import BadLength, InvalidValue, NotFinite
from shoal.keys import KeyRange
from shoal.protocol.requests import Answer, Exchange, PullOp
from shoal.protocol.views import View
from shoal.tables.custom.calls import Call, Pairs, What, add_up, elements, read_answer
from shoal.tables.sparse.distinct import within
from shoal.tables.spec import TableSpec
from shoal.tables.values import Lens, check_values


class Calls:
    """Builds exchanges of calls.

    Calls are numbered, so that a server executes each once. A call also carries the number below
    which every answer has been received: the server forgets those answers.
    """

    def __init__(self, view: Callable[[], View], incarnation: Callable[[], int]) -> None:
        self._view = view
        self._incarnation = incarnation
        self._lock = Lock()
        self._number = 0
        self._open: WeakValueDictionary[int, Answer] = WeakValueDictionary()

    def push(self, spec: TableSpec, values: Tensor, keys: object, lens: Lens, cmd: int) -> Exchange:
        """Return an exchange that pushes values for sorted keys: `lens` each, or equally many."""
        check_values(spec, values)
        chosen = _sorted(spec, keys)
        counts = _lens(spec, lens, len(chosen), values.numel())
        flat = _finite(spec, values.detach().cpu().reshape(-1), chosen)
        pairs = Pairs(chosen, flat.numpy(), counts)
        ops = []
        for held, which in self._places(spec, chosen):
            mine = pairs.chosen(which)
            view = mine.values.view(np.uint8).data
            op, _ = self._op(spec, held, "push", cmd, keys=mine.keys, lens=mine.lens, values=view)
            ops.append(op)
        return Exchange(pulls=tuple(ops))

    def pull(
        self, spec: TableSpec, keys: object, cmd: int
    ) -> tuple[Exchange, Callable[[], tuple[Tensor, Tensor]]]:
        """Return an exchange that pulls sorted keys, and a function that returns (values, lens)."""
        chosen = _sorted(spec, keys)
        ops, parts = [], []
        for held, which in self._places(spec, chosen):
            op, answer = self._op(spec, held, "pull", cmd, keys=chosen[which])
            ops.append(op)
            parts.append((which, answer))

        def finish() -> tuple[Tensor, Tensor]:
            lens, found = np.zeros(len(chosen), np.int64), []
            for which, answer in parts:
                counts, rows_of = read_answer(answer.data)
                values = np.frombuffer(rows_of, spec.dtype)
                if len(counts) != len(which) or not add_up(counts, len(values)):
                    raise BadLength(
                        f"table {spec.name!r}: an answer of {len(values)} values, to which its "
                        f"lengths for {len(which)} keys do not add up"
                    )
                lens[which] = counts
                found.append(values)
            rows = np.empty(int(lens.sum()), spec.dtype)
            for (which, _), values in zip(parts, found, strict=True):
                rows[elements(lens, which)] = values
            return torch.from_numpy(rows), torch.from_numpy(lens)

        return Exchange(pulls=tuple(ops)), finish

    def request(
        self, spec: TableSpec, group: str, head: int, body: bytes
    ) -> tuple[Exchange, Callable[[], list[bytes]]]:
        """Return an exchange that asks handlers, and a function that returns their answers.

        There is one answer for each shard whose head is in the group, by the rank of the head.
        """
        if not isinstance(body, bytes | bytearray | memoryview):
            raise InvalidValue(f"a request's body is bytes, not a {type(body).__name__}")
        view = self._view()
        names = [member.name for member in view.servers]
        if group not in ("servers", *names):
            raise InvalidValue(
                f"a request goes to 'servers' or to one server (known: {', '.join(names)}), not "
                f"to {group!r}"
            )
        ops, answers = [], []
        asked = {m.rank for m in view.servers if group in ("servers", m.name)}
        for placement in sorted(
            view.placements_of(spec.name), key=lambda placement: placement.chain[0]
        ):
            if placement.chain[0] in asked:
                content = memoryview(bytes(body))
                op, answer = self._op(spec, placement.rows, "request", head, values=content)
                ops.append(op)
                answers.append(answer)
        if not ops:
            raise InvalidValue(
                f"{group} is the head of no shard of table {spec.name!r} at present; ask another "
                "server"
            )
        return Exchange(pulls=tuple(ops)), lambda: [
            bytes(read_answer(answer.data)[1]) for answer in answers
        ]

    def _op(
        self, spec: TableSpec, held: KeyRange, what: What, cmd: int, **parts: Any
    ) -> tuple[PullOp, Answer]:
        """Return the operation of one call, and its answer; `parts` are the remaining fields."""
        if not isinstance(cmd, int) or not -(1 << 63) <= cmd < 1 << 63:
            raise InvalidValue(f"cmd and head are integers of 64 bits, not {cmd!r}")
        answer = Answer()
        with self._lock:
            number = self._number = self._number + 1
            self._open[number] = answer
            forget_below = min(self._open.keys())
        call = Call(self._incarnation(), number, forget_below, what, cmd, **parts)
        return PullOp(spec.name, held, answer, call.words().data), answer

    def _places(self, spec: TableSpec, keys: np.ndarray) -> list[tuple[KeyRange, np.ndarray]]:
        """Return the hash slots of each shard with some of the keys, and the keys' indices."""
        found = []
        for held in (placement.rows for placement in self._view().placements_of(spec.name)):
            which = np.flatnonzero(within(keys, held.start, held.stop))
            if len(which):
                found.append((held, which))
        return found


def _sorted(spec: TableSpec, keys: object) -> np.ndarray:
    """Return the keys as (n,) uint64; refuse them unless they are strictly increasing."""
    chosen = keys_of(spec, keys)
    wrong = np.flatnonzero(chosen[1:] <= chosen[:-1])
    if len(wrong):
        at = int(wrong[0])
        raise InvalidValue(
            f"table {spec.name!r}: keys have to be sorted and distinct, and {chosen[at + 1]} comes "
            f"after {chosen[at]}"
        )
    return chosen


def _lens(spec: TableSpec, lens: Lens, keys: int, values: int) -> np.ndarray:
    if lens is None:
        if keys == 0 or values % keys:
            raise InvalidValue(
                f"table {spec.name!r}: {values} values are not a multiple of {keys} keys; give "
                "their lens"
            )
        return np.full(keys, values // keys, np.int64)
    try:
        given = np.asarray(lens)
    except (ValueError, RuntimeError, TypeError):
        given = np.empty((0, 0))
    plain = given.shape == (keys,) and (given.dtype.kind in "iu" or not keys)
    if not plain or (given < 0).any() or (given > values).any():
        raise InvalidValue(
            f"table {spec.name!r}: lens has one integer per key ({keys}), each from 0 to the "
            f"number of values ({values})"
        )
    if given.sum() != values:
        raise InvalidValue(
            f"table {spec.name!r}: lens add up to {given.sum()}, but there are {values} values"
        )
    return given.astype(np.int64)


def _finite(spec: TableSpec, values: Tensor, keys: np.ndarray) -> Tensor:
    """Return the values after the table's policy for NaN and infinity (`TableSpec.nonfinite`)."""
    if spec.nonfinite == "allow" or not values.is_floating_point():
        return values.contiguous()
    bad = ~torch.isfinite(values)
    if not bool(bad.any()):
        return values.contiguous()
    if spec.nonfinite == "reject":
        at = int(bad.nonzero()[0])
        raise NotFinite(
            f"table {spec.name!r}: value {at} of the push (of keys {keys[0]} ...) is "
            f"{values[at].item()}. Nothing was sent."
        )
    return torch.where(bad, torch.zeros_like(values), values)
