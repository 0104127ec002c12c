"""Tables of a model's parameters, and the operations on them that strategies exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from shoal.keys import KeyRange
from shoal.protocol.requests import EnterBarrier, Exchange, Forget, PullOp, PushOp
from shoal.strategies.base import NONE, Model, Numbers, Program, StrategyOptions
from shoal.strategies.layer_codecs import check_patterns, with_codecs
from shoal.tables.consistency import Consistency
from shoal.tables.spec import Access, Span, TableSpec

if TYPE_CHECKING:
    from torch import Tensor

Op = TypeVar("Op")


def table_specs(
    model: Model,
    options: StrategyOptions,
    consistency: Consistency,
    access: Access | None = None,
    **more: Any,
) -> list[TableSpec]:
    """Return the specifications of the tables, one for each buffer of the model.

    access: the access method of all tables, in place of those of the options
    more: the further fields of the specifications
    """
    check_patterns([*model.spans.values()], options.codec)
    return [
        TableSpec(
            f"{options.prefix}.{buffer}",
            len(values),
            (),
            str(values.dtype).removeprefix("torch."),
            access=access or options.access_of(buffer),
            consistency=consistency,
            nonfinite=options.nonfinite,
            **with_codecs(model.spans.get(buffer, ()), options.codec, options.server_codec),
            **more,
        )
        for buffer, values in sorted(model.values.items())
    ]


def byte_view(tensor: Tensor) -> memoryview:
    """Return the memory of a flat tensor as bytes."""
    import torch

    view: memoryview = tensor.detach().view(torch.uint8).numpy().data
    return view


def rows_without(spans: Sequence[Span], absent: Sequence[int], stop: int) -> Iterator[KeyRange]:
    """Yield the rows of all spans but the absent ones; join adjacent spans.

    >>> [str(rows) for rows in rows_without([Span(0), Span(16), Span(48)], [1], 64)]
    ['[0:16)', '[48:64)']
    """
    left_out, start = {*absent}, -1
    for number, span in enumerate(spans):
        if number in left_out:
            if start >= 0:
                yield KeyRange(start, span.start)
            start = -1
        elif start < 0:
            start = span.start
    if start >= 0:
        yield KeyRange(start, stop)


class TableOps:
    """Push and pull operations of a model's tables, built once, because the buffers do not move.

    Args:
        model: the model.
        prefix: the prefix of the tables' names.
        pushed: by buffer, the values to push; the gradients if not given.
        pulled: by buffer, the memory to pull the parameters to; the model's own if not given.

    Attributes:
        all_pulls: the pulls of all tables.
    """

    def __init__(
        self,
        model: Model,
        prefix: str,
        pushed: dict[str, Tensor] | None = None,
        pulled: dict[str, Tensor] | None = None,
    ) -> None:
        self._prefix = prefix
        self._model = model
        self._pushes = _whole_tables(PushOp, prefix, model.grads if pushed is None else pushed)
        self._pulls = _whole_tables(PullOp, prefix, model.values if pulled is None else pulled)
        self._assigns = _whole_tables(PushOp, prefix, model.values)
        self.all_pulls = tuple(self._pulls.values())
        self._exact_pulls = tuple(msgspec.structs.replace(op, exact=True) for op in self.all_pulls)

    @property
    def pulls(self) -> tuple[PullOp, ...]:
        """The pulls of the tables whose parameters are not all frozen."""
        if not self._model.idle:
            return self.all_pulls
        return tuple(op for buffer, op in self._pulls.items() if buffer not in self._model.idle)

    def begin(self, writes: bool) -> Program:
        """Pull the parameters, after the worker that `writes` has assigned them."""
        if writes:
            yield Exchange(tuple(self._assigns.values()), assign=True)
        yield EnterBarrier(f"{self._prefix} written")
        yield Exchange(pulls=self.all_pulls)

    def spread(self, writes: bool) -> Program:
        """Replace the tables' parameters by those of the worker that `writes`, and pull them."""
        yield EnterBarrier(f"{self._prefix} loading")  # no push is under way any more
        yield from self.forget()
        if writes:
            yield Exchange(tuple(self._assigns.values()), assign=True)
        yield EnterBarrier(f"{self._prefix} loaded")
        yield Exchange(pulls=self.all_pulls)

    def forget(self, written: Numbers | None = None) -> Program:
        """Forget what codecs have left out of some parameters, or of all, which are assigned."""
        ops = self._assigns.values() if written is None else self.assigns(written)
        yield Forget(tuple((op.table, op.rows) for op in ops))

    def end(self) -> Program:
        """Pull the parameters after all workers have finished, so that all have the same."""
        yield Exchange(advance=True, last=True)  # no other worker waits for this one any more
        yield EnterBarrier(f"{self._prefix} done")
        yield from self.exact()

    def exact(self) -> Program:
        """Pull the parameters as they are, whatever codec the tables have for pulls."""
        yield Exchange(pulls=self._exact_pulls)

    def pushes(self, rates: Mapping[str, float], absent: Numbers = NONE) -> tuple[PushOp, ...]:
        """Return the pushes of all but the `absent` parameters, with learning rates by buffer."""
        ops: list[PushOp] = []
        for buffer, op in self._pushes.items():
            if buffer in self._model.idle:
                continue
            parts = self._parts(op, buffer, absent[buffer]) if buffer in absent else (op,)
            rate = rates.get(buffer)
            ops += [msgspec.structs.replace(part, lr=rate) for part in parts]
        return tuple(ops)

    def assigns(self, written: Numbers) -> tuple[PushOp, ...]:
        """Return the pushes of the values of some parameters."""
        ops: list[PushOp] = []
        for buffer, numbers in written.items():
            others = {*range(len(self._model.spans[buffer]))} - {*numbers}
            ops += self._parts(self._assigns[buffer], buffer, sorted(others))
        return tuple(ops)

    def _parts(self, op: PushOp, buffer: str, absent: Sequence[int]) -> Iterator[PushOp]:
        size = op.values.nbytes // len(op.rows)
        for rows in rows_without(self._model.spans[buffer], absent, op.rows.stop):
            values = op.values[rows.start * size : rows.stop * size]
            yield msgspec.structs.replace(op, rows=rows, values=values)


def _whole_tables(
    op: Callable[[str, KeyRange, memoryview], Op], prefix: str, buffers: dict[str, Tensor]
) -> dict[str, Op]:
    return {
        buffer: op(f"{prefix}.{buffer}", KeyRange(0, len(each)), byte_view(each))
        for buffer, each in sorted(buffers.items())
    }
