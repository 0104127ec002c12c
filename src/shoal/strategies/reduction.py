"""The common part of strategies without servers: a weighted mean over the workers, by allreduce."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from shoal.collective.base import AllReduce
from shoal.errors import NotFinite
from shoal.protocol.requests import EnterBarrier
from shoal.strategies.base import NONE, Model, Numbers, Program
from shoal.strategies.reduced_buffers import CodecsOfBuffer, EncodedBuffer, ReducedBuffer
from shoal.tables.spec import Span

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.tables.encoding import LayerFigures

CODECS = "codecs"  # in the state of a strategy: what its codecs keep


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
        codecs: by buffer, the codecs of its parameters (`reduced_buffers.codecs_of`); others travel
            as they are.
    """

    def __init__(
        self,
        wires: Mapping[str, Tensor],
        spans: Mapping[str, Sequence[Span]] = {},
        idle: Sequence[str] = (),
        codecs: Mapping[str, CodecsOfBuffer] = {},
    ) -> None:
        self._spans = spans
        self._encoded = {
            buffer: EncodedBuffer(buffer, wires[buffer], of) for buffer, of in codecs.items()
        }
        buffers = [
            self._encoded.get(buffer) or ReducedBuffer(buffer, wire)
            for buffer, wire in sorted(wires.items())
        ]
        self._used = [each for each in buffers if each.name not in idle]
        self._idle = [each for each in buffers if each.name in idle]
        self._left_out = {each.name: self._numbers(each) for each in self._idle}

    def over_workers(
        self,
        share: float,
        absent: Numbers = NONE,
        flag: bool = False,
        rates: Mapping[str, float] = {},
    ) -> Generator[Any, Any, Mean]:
        """Replace the values by their mean, in which this worker has the weight `share`.

        Raises:
            NotFinite: a worker's value is NaN or infinite, or too large for its codec; raised on
                all workers, and what codecs have left out is as it was.
        """
        try:
            return (yield from self._over_workers(share, absent, flag, rates))
        except NotFinite:
            for buffer in (*self._used, *self._idle):
                buffer.undo()
            raise

    def _over_workers(
        self, share: float, absent: Numbers, flag: bool, rates: Mapping[str, float]
    ) -> Generator[Any, Any, Mean]:
        lacks = any(each.name in absent for each in self._used)
        woken = any(self._has_some(each, absent) for each in self._idle) and share > 0
        told = share, float(lacks), float(flag), float(woken)
        found = {}
        for buffer in self._used:
            self._clear(buffer, absent)
            yield from buffer.begin(share, told, rates, absent.get(buffer.name, ()))
            weight, lacking, flagged, waking, rate = buffer.figures
            if weight:
                found[buffer.name] = rate / weight
        buffers = self._used
        if waking:
            for buffer in self._idle:
                self._clear(buffer, absent)
                yield from buffer.begin(share, told, rates, absent.get(buffer.name, ()))
            buffers = [*self._used, *self._idle]
        if not weight:
            for buffer in buffers:
                buffer.undo()
        elif lacking or waking:
            weights = yield from self._by_parameter(buffers, share, absent)
            absent = yield from self._divide(buffers, weights)
            return Mean(weight, absent, flagged, found)
        else:
            for buffer in buffers:
                yield from buffer.end()
                if weight != 1:
                    buffer.values.div_(weight)
        return Mean(weight, self._left_out, flagged, found)

    def _by_parameter(
        self, buffers: Sequence[ReducedBuffer], share: float, absent: Numbers
    ) -> Generator[Any, Any, list[list[float]]]:
        """Return, by buffer and parameter, the weight of the workers that have a value for it."""
        import torch

        weights: list[float] = []
        for buffer in buffers:
            lacks = {*absent.get(buffer.name, ())}
            weights += [0.0 if n in lacks else share for n in self._numbers(buffer)]
        total = torch.tensor(weights, dtype=torch.float64)
        yield AllReduce(total, mean=True)
        counts = [len(self._numbers(buffer)) for buffer in buffers]
        return [of.tolist() for of in torch.split(total, counts)]

    def _divide(
        self, buffers: Sequence[ReducedBuffer], weights: Sequence[Sequence[float]]
    ) -> Generator[Any, Any, Numbers]:
        """Divide each parameter's sum by the weight of the workers that have a value for it.

        Returns the parameters that no worker has a value for.
        """
        found = {}
        for buffer, of_buffer in zip(buffers, weights, strict=True):
            nobody = tuple(number for number, weight in enumerate(of_buffer) if not weight)
            yield from buffer.end(nobody)
            starts = [span.start for span in self._spans[buffer.name]]
            ends = [*starts[1:], None]
            for start, stop, weight in zip(starts, ends, of_buffer, strict=True):
                if weight:
                    buffer.values[start:stop].div_(weight)
            if nobody:
                found[buffer.name] = nobody
        return found if len(buffers) > len(self._used) else {**found, **self._left_out}

    def _clear(self, buffer: ReducedBuffer, absent: Numbers) -> None:
        """Zero the places of absent parameters, which may have the mean of an earlier step."""
        spans = self._spans[buffer.name] if buffer.name in absent else ()
        for number in absent[buffer.name] if spans else ():
            stop = spans[number + 1].start if number + 1 < len(spans) else None
            buffer.values[spans[number].start : stop].zero_()

    def _numbers(self, buffer: ReducedBuffer) -> tuple[int, ...]:
        return tuple(range(len(self._spans[buffer.name])))

    def _has_some(self, buffer: ReducedBuffer, absent: Numbers) -> bool:
        return len(absent.get(buffer.name, ())) < len(self._spans[buffer.name])

    # ------------------------------------------------------------------ codecs

    def codec_figures(self) -> list[LayerFigures]:
        """Return what codecs made of one mean, by layer, and measure the next one."""
        return [of for each in self._encoded.values() for of in each.figures_of_layers()]

    def state_dict(self) -> dict[str, Any]:
        """Return, by buffer, what codecs keep on this worker."""
        return {name: each.state() for name, each in self._encoded.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` has returned; other buffers begin anew.

        Raises:
            InvalidValue: it is of another model.
        """
        for name, each in self._encoded.items():
            if name in state:
                each.load(state[name])


def codec_state(mean: WeightedMean | None, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the codecs of a mean keep as part of a strategy's state; nothing without codecs.

    kept:  what was loaded, if there is no mean yet
    """
    state = kept if mean is None else mean.state_dict()
    return {CODECS: state} if state else {}


def leave_together(prefix: str) -> Program:
    """Wait until all workers have their last sum, so that none leaves while another lacks data."""
    yield EnterBarrier(f"{prefix} done")


def spread_values(model: Model, writes: bool) -> Program:
    """Replace the parameters by those of the worker that `writes`."""
    for _, values in sorted(model.values.items()):
        if not writes:
            values.zero_()  # the sum then equals the writer's values
        yield AllReduce(values)
