"""Buffers of a model whose values are averaged over the workers, as they are or encoded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.collective.base import AllReduce
from shoal.errors import InvalidValue, NotFinite
from shoal.keys import digest64
from shoal.strategies.base import WIRE_TAIL, Model, Program, StrategyOptions
from shoal.strategies.layer_codecs import check_patterns, with_codecs
from shoal.tables.spec import NO_CODECS

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.collective.encoded import EncodedMean
    from shoal.tables.encoding import LayerFigures


class ReducedBuffer:
    """One buffer, prepared for all steps.

    Attributes:
        name: the name of the buffer.
        values: (n,), a view of the memory that is reduced.
    """

    def __init__(self, name: str, wire: Tensor) -> None:
        import torch

        self.name = name
        self.values = wire[:-WIRE_TAIL]
        self._tail = wire[-WIRE_TAIL:]
        self._told = torch.empty(WIRE_TAIL, dtype=torch.float64)  # what `_tail` becomes
        self._reduction = AllReduce(wire, mean=True)

    @property
    def figures(self) -> list[float]:
        """The means over the workers of the figures that travel behind the values.

        They are the weight, the share of workers that lack a gradient, the share that raise the
        flag, the share that have a gradient in an idle buffer, and the learning rate times the
        weight.
        """
        found: list[float] = self._tail.tolist()
        return found

    def begin(
        self,
        share: float,
        told: Sequence[float],
        rates: Mapping[str, float],
        absent: Collection[int] = (),
    ) -> Program:
        """Weigh the values, and reduce those that travel as they are, with the figures.

        absent:  the parameters that this worker has no value for
        """
        self._weigh(share, told, rates)
        self._tail.copy_(self._told)
        yield self._reduction

    def _weigh(self, share: float, told: Sequence[float], rates: Mapping[str, float]) -> None:
        if not share:
            self.values.zero_()
        elif share != 1:
            self.values.mul_(share)
        self._told.numpy()[:] = (*told, share * rates.get(self.name, 0.0))

    def end(self, without: Collection[int] = ()) -> Program:
        """Reduce the other parameters, except some, which no worker has a value for."""
        yield from ()

    def undo(self) -> None:
        """Undo `begin`: no worker has a value."""


class CodecsOfBuffer(NamedTuple):
    """The codecs of a buffer's parameters.

    Attributes:
        places: by number of a parameter with a codec, its place in the buffer.
        encoded: what encodes these parameters.
        begins_at: the number of means before the first that is encoded.
        zeroes: whether NaNs and infinities become 0, and are not an error.
        names: the names of the parameters.
        usual: the usual weight, the same on all workers; values are encoded in units of it, so that
            their size is that of the values themselves.
    """

    places: Mapping[int, slice]
    encoded: EncodedMean
    begins_at: int
    zeroes: bool
    names: Sequence[str]
    usual: float = 1.0


class EncodedBuffer(ReducedBuffer):
    """A buffer of which some parameters have a codec; the others and the figures go before them.

    So all workers know before the encoded values travel whether there is a mean, which parameters
    it has, and whether each worker's values could be encoded.
    """

    def __init__(self, name: str, wire: Tensor, codecs: CodecsOfBuffer) -> None:
        import torch

        super().__init__(name, wire)
        self._places, self._encoded, self._begins_at, self._zeroes, self._names = codecs[:5]
        self._usual = codecs.usual
        self._exact = [*_between(self._places, len(self.values))]
        self._sizes = [each.stop - each.start for each in self._exact]
        self._plain = self._reduction, self._tail
        self._rest = torch.zeros(sum(self._sizes) + WIRE_TAIL + 1, dtype=wire.dtype)
        self._fault = self._rest[-1:]  # the share of workers that cannot encode their values
        self._parts = self._rest[: -WIRE_TAIL - 1]
        self._exact_reduction = AllReduce(self._rest, mean=True)
        self._encodes = False

    def begin(
        self,
        share: float,
        told: Sequence[float],
        rates: Mapping[str, float],
        absent: Collection[int] = (),
    ) -> Program:
        import torch

        self._encodes = self._encoded.count >= self._begins_at
        if not self._encodes:
            self._encoded.skip()
            self._reduction, self._tail = self._plain
            yield from super().begin(share, told, rates, absent)
            return
        self._weigh(share, told, rates)
        if self._zeroes:
            self.values[~self.values.isfinite()] = 0
        fault = self._encode(share, absent)
        self._reduction = self._exact_reduction
        self._tail = self._rest[-WIRE_TAIL - 1 : -1]
        self._tail.copy_(self._told)
        self._fault.fill_(fault is not None)
        pieces = torch.split(self._parts, self._sizes)
        for place, piece in zip(self._exact, pieces, strict=True):
            piece.copy_(self.values[place])
        yield self._reduction
        if float(self._fault):
            raise fault or NotFinite("a value of another worker is NaN, infinite or too large")
        for place, piece in zip(self._exact, pieces, strict=True):
            self.values[place].copy_(piece)

    def _encode(self, share: float, absent: Collection[int]) -> NotFinite | None:
        """Encode the parameters with a codec; return the error, with which nothing has changed."""
        values = {number: self.values[place] for number, place in self._places.items()}
        if self._usual != 1:
            for each in values.values():
                each.div_(self._usual)
        weights = {n: 0.0 if n in absent else share / self._usual for n in values}
        try:
            self._encoded.encode(values, weights)
        except NotFinite as error:
            bad = [n for n, each in values.items() if not bool(each.isfinite().all())]
            names = ", ".join(self._names[number] or str(number) for number in bad[:3])
            about = f"gradients of {names}: " * bool(bad)
            return NotFinite(f"{about}{error.message}. Nothing was sent")
        return None

    def end(self, without: Collection[int] = ()) -> Program:
        if self._encodes:
            yield from self._encoded.over_workers(without)
            for place in self._places.values() if self._usual != 1 else ():
                self.values[place].mul_(self._usual)

    def undo(self) -> None:
        if self._encodes:
            self._encoded.undo()

    def figures_of_layers(self) -> list[LayerFigures]:
        """Return what codecs made of one mean, by layer, and measure the next one."""
        return self._encoded.figures(self.name, self._names)

    def state(self) -> dict[str, Any]:
        """Return what codecs keep on this worker."""
        return self._encoded.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` has returned.

        Raises:
            InvalidValue: it is of another model.
        """
        self._encoded.load(state)


def codecs_of(
    model: Model, options: StrategyOptions, usual: float = 1.0
) -> dict[str, CodecsOfBuffer]:
    """Return the codecs of a strategy's parameters, by buffer with any.

    usual:  the usual weight of the values

    Raises:
        UnknownName, InvalidValue: no such codec, or a pattern of names fits no parameter.
    """
    if not options.codec_name:
        return {}
    check_patterns([*model.spans.values()], options.codec)
    if missing := model.values.keys() - model.spans.keys():
        raise InvalidValue(
            f"codecs go by the model's parameters, and it does not say where those of buffer "
            f"{min(missing)!r} are (`spans` and `shapes`)"
        )
    found = {buffer: _codecs_of_buffer(model, options, buffer) for buffer in model.values}
    return {buffer: of._replace(usual=usual) for buffer, of in found.items() if of.places}


def _codecs_of_buffer(model: Model, options: StrategyOptions, buffer: str) -> CodecsOfBuffer:
    from shoal.codecs import summed_codec_of  # compiles loops, and few jobs have codecs
    from shoal.collective.encoded import EncodedMean, encoded_layer

    spans, shapes = model.spans[buffer], model.shapes[buffer]
    chosen = with_codecs(spans, options.codec)["spans"]
    places, layers, begins_at = {}, {}, 0
    for number, (span, shape) in enumerate(zip(chosen, shapes, strict=True)):
        if span.codec in NO_CODECS:
            continue
        codec = summed_codec_of(span.codec)
        key = digest64(pack("<q", number) + f"{options.prefix}/{buffer}".encode())
        layer = encoded_layer(codec, shape, key)
        if layer is not None:
            layers[number] = layer
            places[number] = slice(span.start, span.start + layer.size)
            begins_at = max(begins_at, codec.begins_at)
    encoded = EncodedMean(layers, options.seed, options.rank)
    names = [span.name.split(" ")[0] for span in spans]
    return CodecsOfBuffer(places, encoded, begins_at, options.nonfinite == "zero", names)


def _between(places: Mapping[int, slice], stop: int) -> list[slice]:
    """Return the places of a buffer between those with a codec."""
    ends = [(0, 0), *sorted((each.start, each.stop) for each in places.values()), (stop, stop)]
    found = [slice(one[1], other[0]) for one, other in pairwise(ends)]
    return [each for each in found if each.stop > each.start]
