"""The common part of strategies without servers: a weighted mean over the workers, by allreduce."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from shoal.collective.base import AllReduce
from shoal.protocol.requests import EnterBarrier
from shoal.strategies.base import NONE, WIRE_TAIL, Model, Numbers, Program
from shoal.tables.spec import Span

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Group:
    """The values of one buffer, prepared for all steps.

    Attributes:
        buffer: the name of the buffer.
        values: the values of the buffer, a view of the memory that is reduced.
        tail: the elements behind the values. Their means over the workers are the weight, the share
            of workers that lack a gradient, the share that raise the flag, the share that have a
            gradient in an idle buffer, and the learning rate times the weight.
        told: the memory in which this worker prepares its `tail`.
        reduction: the allreduce of the values and the tail.
    """

    buffer: str
    values: Tensor
    tail: Tensor
    told: Tensor
    reduction: AllReduce


@dataclass(frozen=True)
class Mean:
    """The result of a mean over the workers.

    Attributes:
        weight: the workers' mean weight; if it is 0, the values have no meaning.
        absent: the parameters that no worker has a value for.
        flagged: the share of the workers that have raised the flag.
        rates: by buffer, the workers' mean learning rate.
    """

    weight: float
    absent: Numbers
    flagged: float
    rates: Mapping[str, float]


@runtime_checkable
class AveragesGradients(Protocol):
    """A strategy that averages gradients over the workers apart from a step.

    `shoal.Optimizer` needs it for torch's optimizers that evaluate the loss in each step.
    """

    def average(self, model: Model, weight: float) -> Generator[Any, Any, Mean]:
        """Replace the gradients by their weighted mean over the workers."""
        ...


class WeightedMean:
    """The mean of values over the workers: sum_i w_i v_i / sum_i w_i.

    A parameter that only some workers have a value for gets the mean over those workers. This takes
    a second, small allreduce of the weights by parameter, in steps where a worker lacks some
    values. Idle buffers are left out of each step in which no worker has a value in one.

    Args:
        wires: by buffer, (n + WIRE_TAIL,): the values, with room behind them.
        spans: by buffer, the beginning of each parameter.
        idle: the buffers whose parameters are all frozen.
    """

    def __init__(
        self,
        wires: Mapping[str, Tensor],
        spans: Mapping[str, Sequence[Span]] = {},
        idle: Sequence[str] = (),
    ) -> None:
        import torch

        self._spans = spans
        groups = [
            _Group(
                buffer,
                wire[:-WIRE_TAIL],
                wire[-WIRE_TAIL:],
                torch.empty(WIRE_TAIL, dtype=torch.float64),
                AllReduce(wire, mean=True),
            )
            for buffer, wire in sorted(wires.items())
        ]
        self._used = [group for group in groups if group.buffer not in idle]
        self._idle = [group for group in groups if group.buffer in idle]
        self._left_out = {group.buffer: self._numbers(group) for group in self._idle}

    def over_workers(
        self,
        share: float,
        absent: Numbers = NONE,
        flag: bool = False,
        rates: Mapping[str, float] = {},
    ) -> Generator[Any, Any, Mean]:
        """Replace the values by their mean, in which this worker has the weight `share`."""
        lacks = any(group.buffer in absent for group in self._used)
        woken = any(self._has_some(group, absent) for group in self._idle) and share > 0
        told = share, float(lacks), float(flag), float(woken)
        found = {}
        for group in self._used:
            self._clear(group, absent)
            yield from _reduce(group, share, told, rates)
            weight, lacking, flagged, waking, rate = group.tail.tolist()
            if weight:
                found[group.buffer] = rate / weight
        groups = self._used
        if waking:
            for group in self._idle:
                self._clear(group, absent)
                yield from _reduce(group, share, told, rates)
            groups = [*self._used, *self._idle]
        if weight and (lacking or waking):
            absent = yield from self._by_parameter(groups, share, absent)
            return Mean(weight, absent, flagged, found)
        for group in groups:
            if weight and weight != 1:
                group.values.div_(weight)
        return Mean(weight, self._left_out, flagged, found)

    def _by_parameter(
        self, groups: Sequence[_Group], share: float, absent: Numbers
    ) -> Generator[Any, Any, Numbers]:
        """Divide each parameter's sum by the weight of the workers that have a value for it.

        Returns the parameters that no worker has a value for.
        """
        import torch

        weights: list[float] = []
        for group in groups:
            lacks = {*absent.get(group.buffer, ())}
            weights += [0.0 if n in lacks else share for n in self._numbers(group)]
        total = torch.tensor(weights, dtype=torch.float64)
        yield AllReduce(total, mean=True)
        left, found = iter(total.tolist()), {}
        for group in groups:
            starts = [span.start for span in self._spans[group.buffer]]
            nobody = []
            for number, (start, stop) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
                if weight := next(left):
                    group.values[start:stop].div_(weight)
                else:
                    nobody.append(number)
            if nobody:
                found[group.buffer] = tuple(nobody)
        return found if len(groups) > len(self._used) else {**found, **self._left_out}

    def _clear(self, group: _Group, absent: Numbers) -> None:
        """Zero the places of absent parameters, which may have the mean of an earlier step."""
        spans = self._spans[group.buffer] if group.buffer in absent else ()
        for number in absent[group.buffer] if spans else ():
            stop = spans[number + 1].start if number + 1 < len(spans) else None
            group.values[spans[number].start : stop].zero_()

    def _numbers(self, group: _Group) -> tuple[int, ...]:
        return tuple(range(len(self._spans[group.buffer])))

    def _has_some(self, group: _Group, absent: Numbers) -> bool:
        return len(absent.get(group.buffer, ())) < len(self._spans[group.buffer])


def _reduce(
    group: _Group, share: float, told: Sequence[float], rates: Mapping[str, float]
) -> Program:
    if not share:
        group.values.zero_()
    elif share != 1:
        group.values.mul_(share)
    rate = share * rates.get(group.buffer, 0.0)
    group.told.numpy()[:] = (*told, rate)
    group.tail.copy_(group.told)
    yield group.reduction


def leave_together(prefix: str) -> Program:
    """Wait until all workers have their last sum, so that none leaves while another lacks data."""
    yield EnterBarrier(f"{prefix} done")


def spread_values(model: Model, writes: bool) -> Program:
    """Replace the parameters by those of the worker that `writes`."""
    for _, values in sorted(model.values.items()):
        if not writes:
            values.zero_()  # the sum then equals the writer's values
        yield AllReduce(values)
