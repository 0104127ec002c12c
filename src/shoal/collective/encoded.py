"""Means over the workers of layers that are encoded, by allreduce and allgather.

Encoded values cannot be added up, so that workers take those of all others and decode them; with n
workers each sends n - 1 times its own. Casts, and values that all workers choose alike, are summed
as they are, on the ring; so are the factors of `powersgd`. What a worker's encoding leaves out is
in its own residual.

Each layer has a small program of its own, which asks for means and for the bytes of all workers.
The programs run in step, and what they ask for at one time travels together (`EncodedMean`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import suppress
from math import prod, sqrt
from struct import pack
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.codecs import Codec, NamedCodec, residual_of
from shoal.codecs.base import NOTHING, subtract
from shoal.codecs.power import PowerSGD, orthonormal
from shoal.collective.base import AllGather, AllReduce
from shoal.errors import BadEncoding, InvalidValue, NotFinite
from shoal.keys import digest64
from shoal.tables.encoding import LayerFigures

State = dict[str, Any]


class MeanOf(NamedTuple):
    """What a layer asks for: the mean of values over the workers, (n,)."""

    values: Tensor


class AllOf(NamedTuple):
    """What a layer asks for: the bytes of all workers, by rank, (n,) each."""

    data: np.ndarray


NO_WEIGHTS: Mapping[int, float] = MappingProxyType({})
LayerProgram = Generator[MeanOf | AllOf, Any, None]


class EncodedLayer(ABC):
    """A layer of a model with a codec, and what the codec keeps from one mean to the next.

    Attributes:
        codec: the codec.
        encoded_bytes: the bytes that the last values became.
        residual: what encodings have left out, (n,) float32; None if nothing was. It is in units of
            the values, which have been multiplied by the worker's weight.
        unit: the weight of what has left it.
        measures: whether to measure the next mean.
        norm: the sum of the squared values of the last mean that was measured, with the residual.
        error: the sum of the squares of what its encoding has left out.
    """

    def __init__(self, codec: NamedCodec, shape: tuple[int, ...]) -> None:
        self.codec = codec
        self.size = prod(shape)
        self.encoded_bytes = codec.bytes_of(shape)
        self.residual: np.ndarray | None = None
        self.unit = 0.0
        self.measures = False
        self.norm = self.error = 0.0
        self._before = 0.0, NOTHING  # the unit, and the residual if not all of it was added

    def encode(self, values: np.ndarray, weight: float, key: int) -> None:
        """Encode values of a weight, (n,) float32, and the residual, or a part of it.

        A residual that values of weight 32 have left would be 32 times as large beside values of
        weight 1, if those of all workers are as small, as in the last batch of an epoch. So it goes
        out with the weight of the values at most, and the rest of it later.

        Raises:
            NotFinite: a value cannot be encoded; nothing has changed, up to rounding.
        """
        if self.residual is None and self.codec.biased:
            self.residual = residual_of(self.size)
        share = 1.0 if weight >= self.unit else weight / self.unit
        whole = self.residual is None or share == 1
        self._before = (
            self.unit,
            NOTHING if self.residual is None or whole else self.residual.copy(),
        )
        try:
            self._encode(values, share, key)
        except NotFinite:
            self._restore()
            raise
        self.unit = weight if whole else self.unit * (1 - share) + weight * share
        self._rest = 1 - share

    @abstractmethod
    def _encode(self, values: np.ndarray, share: float, key: int) -> None:
        """Encode values + share * residual; the residual becomes what this leaves out, soon."""

    @abstractmethod
    def _undo(self) -> None:
        """Make the residual what it was before `_encode` with share 1, up to rounding."""

    def undo(self) -> None:
        """Make the residual what it was before `encode`, up to rounding."""
        if not self._restore():
            self._undo()
        self.unit = self._before[0]

    def _restore(self) -> bool:
        """Restore a residual of which only a part was added; return whether it was so."""
        kept = self._before[1]
        if self.residual is not None and len(kept):
            self.residual[:] = kept
        return bool(len(kept))

    def _keep_rest(self) -> None:
        """Add the part of the residual that was not encoded to what the encoding has left out."""
        kept = self._before[1]
        if self.residual is not None and len(kept):
            self.residual += np.float32(self._rest) * kept

    @abstractmethod
    def mean(self, into: np.ndarray) -> LayerProgram:
        """Replace the values by the mean of what all workers have encoded."""

    def state(self) -> State:
        """Return a copy of what the codec keeps, by name."""
        if self.residual is None:
            return {}
        return {"residual": torch.from_numpy(self.residual.copy()), "unit": self.unit}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` has returned; nothing is kept of what was there.

        Raises:
            InvalidValue: it is of another layer or codec.
        """
        self.residual, self.unit = None, 0.0
        if "residual" in state:
            self.residual = residual_of(self.size)
            self._copy(state, "residual", torch.from_numpy(self.residual))
            self.unit = float(state["unit"])

    def _copy(self, state: Mapping[str, Any], name: str, into: Tensor) -> None:
        given = torch.as_tensor(state.get(name, ()))
        if given.shape != into.shape or not given.is_floating_point():
            raise InvalidValue(
                f"codec {self.codec} keeps the {name} of a layer of {self.size} values as "
                f"{tuple(into.shape)}, and the state has {tuple(given.shape)} of {given.dtype}: it "
                "is of another model or codec"
            )
        into.copy_(given)


class BytesLayer(EncodedLayer):
    """A layer whose values become bytes."""

    codec: Codec

    def __init__(self, codec: Codec, shape: tuple[int, ...]) -> None:
        super().__init__(codec, shape)
        self._data = np.empty(self.encoded_bytes, np.uint8)
        self._values = np.empty(0, np.float32)

    def _encode(self, values: np.ndarray, share: float, key: int) -> None:
        self.codec.encode(values, self._data, residual=self.residual, gain=share, key=key)
        self._values = values
        if self.measures:
            self.measures = False
            self._measure()

    def _measure(self) -> None:
        decoded = np.empty_like(self._values)
        self.codec.decode(self._data, decoded)
        left = self._values - decoded if self.residual is None else self.residual
        whole = self._values if self.residual is None else decoded + left
        self.norm, self.error = float(np.vdot(whole, whole)), float(np.vdot(left, left))

    def _undo(self) -> None:
        if self.residual is not None:
            self.codec.take_back(self._data, self._values, self.residual)

    def mean(self, into: np.ndarray) -> LayerProgram:
        if self.codec.summed:
            data = self._data.copy()
            wire = torch.from_numpy(data[self.codec.head(self.size) :])
            yield MeanOf(wire.view(getattr(torch, self.codec.summed)))
            try:
                self.codec.decode(data, into)
            except BadEncoding:  # each worker's own values were finite
                raise NotFinite(f"the workers' sum is too large for codec {self.codec}") from None
        else:
            every = yield AllOf(self._data)
            self.codec.decode(every[0], into)
            other = np.empty_like(into)
            for data in every[1:]:
                self.codec.decode(data, other)
                into += other
            into /= np.float32(len(every))
        self._keep_rest()


class PowerLayer(EncodedLayer):
    """A matrix that becomes two factors of low rank (`codecs.power.PowerSGD`).

    Attributes:
        second: the second factor of the last mean, (columns, rank): the next one begins with it.
    """

    codec: PowerSGD

    def __init__(self, codec: PowerSGD, shape: tuple[int, ...], key: int) -> None:
        rows, columns, rank = codec.matrix_of(shape)
        super().__init__(codec, shape)
        self._key = key >> 1
        self.second = torch.empty(columns, rank)
        self._begin()
        self._shape = rows, columns
        self._first = torch.empty(rows, rank)
        self._values = np.empty(0, np.float32)

    def _begin(self) -> None:
        self.second.normal_(generator=torch.Generator().manual_seed(self._key))

    def _encode(self, values: np.ndarray, share: float, key: int) -> None:
        assert self.residual is not None
        self._values = values
        if np.isfinite(values).all():
            if share != 1:
                self.residual *= np.float32(share)
            self.residual += values  # the matrix, until its mean is known
            torch.mm(self._matrix(), self.second, out=self._first)
            if np.isfinite(self._first.numpy()).all():
                return
            self._undo()
        raise NotFinite(f"a value is NaN, infinite or too large for codec {self.codec}")

    def _undo(self) -> None:
        assert self.residual is not None
        subtract(self._values, self.residual, 1.0)

    def mean(self, into: np.ndarray) -> LayerProgram:
        yield MeanOf(self._first.view(-1))
        first = orthonormal(self._first)
        own = self._matrix().T @ first
        second = own.clone()
        yield MeanOf(second.view(-1))
        torch.mm(first, second.T, out=torch.from_numpy(into).view(self._shape))
        if not (np.isfinite(into).all() and bool(own.isfinite().all())):
            raise NotFinite(f"the mean is too large for codec {self.codec}")
        self.second = second
        left = self._matrix().addmm_(first, own.T, alpha=-1)
        if self.measures:
            self.measures = False
            self.error = float(left.square().sum())
            self.norm = float(own.square().sum()) + self.error
        self._keep_rest()

    def _matrix(self) -> Tensor:
        assert self.residual is not None
        return torch.from_numpy(self.residual).view(self._shape)

    def state(self) -> State:
        return {**super().state(), "second": self.second.clone()}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        if state:
            self._copy(state, "second", self.second)
        else:
            self._begin()


def encoded_layer(codec: NamedCodec, shape: tuple[int, ...], key: int = 0) -> EncodedLayer | None:
    """Return a layer of a codec; None if the codec would not make it smaller.

    Args:
        codec: the codec.
        shape: the layer's shape.
        key: the key of what is drawn once, the same on all workers.
    """
    if codec.bytes_of(shape) >= 4 * prod(shape):
        return None
    if isinstance(codec, PowerSGD):
        return PowerLayer(codec, shape, key)
    assert isinstance(codec, Codec)
    return BytesLayer(codec, shape)


class EncodedMean:
    """The means of some layers over the workers, each encoded with its codec.

    Args:
        layers: the layers by number, the same on all workers.
        seed: the seed of random bits.
        rank: the rank of this worker.

    Attributes:
        layers: the layers.
        count: the number of means so far, with those that were not encoded.
    """

    def __init__(self, layers: Mapping[int, EncodedLayer], seed: int, rank: int) -> None:
        self.layers = layers
        self.count = 0
        self._seed = seed
        self._rank = rank
        self._floats: dict[int, np.ndarray] = {}  # of the values that are being encoded
        self._values: Mapping[int, Tensor] = {}

    def skip(self) -> None:
        """Count a mean that is not encoded."""
        self.count += 1

    def encode(
        self,
        values: Mapping[int, Tensor],
        weights: Mapping[int, float] = NO_WEIGHTS,
        number: int | None = None,
    ) -> None:
        """Encode the values of some layers.

        Args:
            values: by number, (n,) of a floating-point dtype; `over_workers` replaces them.
            weights: by number, the weight that the values have been multiplied by, if not 1.
            number: the number of this mean; by default it is the next one.

        Raises:
            NotFinite: a value cannot be encoded; nothing has changed, up to rounding.
        """
        self.count = 1 + (self.count if number is None else number)
        self._floats, self._values = {}, values
        for name, given in values.items():
            layer = self.layers[name]
            floats = given.detach().to("cpu", torch.float32).numpy()
            try:
                layer.encode(floats, weights.get(name, 1.0), self._key(name, layer.codec))
            except NotFinite as error:
                self.undo()
                raise NotFinite(f"layer {name}: {error}") from None
            self._floats[name] = floats

    def _key(self, number: int, codec: NamedCodec) -> int:
        """Return the key of a layer's random bits, which no other worker has unless it has to."""
        alike = isinstance(codec, Codec) and codec.summed
        told = self._seed, self.count, number, -1 if alike else self._rank
        return digest64(pack("<4q", *told))

    def undo(self, numbers: Collection[int] | None = None) -> None:
        """Undo the encoding of layers, or of some, up to rounding."""
        for number in {*self._floats} if numbers is None else {*numbers} & {*self._floats}:
            del self._floats[number]
            self.layers[number].undo()

    def over_workers(
        self, without: Collection[int] = ()
    ) -> Generator[AllReduce | AllGather, Any, None]:
        """Replace the values that were encoded by their means; undo the encoding of some.

        Raises:
            BadEncoding: another worker has sent something else.
            NotFinite: the sum is too large for a codec that is summed as it is.
        """
        self.undo(without)
        programs, into = {}, {}
        for number in sorted(self._floats):
            into[number] = np.empty_like(self._floats[number])
            programs[number] = self.layers[number].mean(into[number])
        try:
            yield from in_step(programs)
        except NotFinite:
            self.undo()
            raise
        for number, mean in into.items():
            self._values[number].copy_(torch.from_numpy(mean))
        self._floats = {}

    def figures(self, table: str, names: Sequence[str]) -> list[LayerFigures]:
        """Return the figures of the mean that was measured, by layer, and measure the next one.

        Args:
            table: the name of all layers together.
            names: the names of the layers, by number.
        """
        found = []
        for number, each in self.layers.items():
            if each.norm and not each.measures:
                error = sqrt(each.error / each.norm)
                sizes = 4 * each.size, each.encoded_bytes
                found.append(LayerFigures(table, names[number], str(each.codec), *sizes, error))
            each.measures = True
        return found

    def state(self) -> State:
        """Return a copy of what codecs keep: of each layer, and the number of means."""
        layers = {str(number): each.state() for number, each in self.layers.items()}
        return {"count": self.count, **{number: some for number, some in layers.items() if some}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` has returned.

        Raises:
            InvalidValue: it is of other layers.
        """
        self.count = int(state.get("count", 0))
        some = {int(name): of for name, of in state.items() if name.isdecimal()}
        if unknown := some.keys() - self.layers.keys():
            raise InvalidValue(f"the state has a layer {min(unknown)}, which has no codec here")
        for number, layer in self.layers.items():
            layer.load(some.get(number, {}))


def in_step(programs: Mapping[int, LayerProgram]) -> Generator[AllReduce | AllGather, Any, None]:
    """Run the programs of layers; what they ask for at one time is one collective of each kind."""
    asked = dict.fromkeys(programs)
    answers: dict[int, Any] = dict.fromkeys(programs)
    while asked:
        asked = _next(programs, answers)
        answers = {}
        by_dtype: dict[torch.dtype, dict[int, Tensor]] = {}
        for number, each in asked.items():
            if isinstance(each, MeanOf):
                by_dtype.setdefault(each.values.dtype, {})[number] = each.values
        for values in by_dtype.values():
            yield from _means(list(values.values()))
            answers.update(dict.fromkeys(values))
        data = {number: each.data for number, each in asked.items() if isinstance(each, AllOf)}
        if data:
            answers.update(zip(data, (yield from _all(list(data.values()))), strict=True))


def _next(programs: Mapping[int, LayerProgram], answers: Mapping[int, Any]) -> dict[int, Any]:
    """Send the answers; return what the programs ask for that have not ended."""
    found = {}
    for number, answer in sorted(answers.items()):
        with suppress(StopIteration):
            found[number] = programs[number].send(answer)
    return found


def _means(values: Sequence[Tensor]) -> Generator[AllReduce, Any, None]:
    """Replace values of one dtype by their means, with one allreduce."""
    joined = torch.cat(list(values))
    yield AllReduce(joined, mean=True)
    for each, mean in zip(values, torch.split(joined, [len(each) for each in values]), strict=True):
        each.copy_(mean)


def _all(data: Sequence[np.ndarray]) -> Generator[AllGather, Any, list[list[np.ndarray]]]:
    """Return the bytes of all workers, by array and rank, with one allgather."""
    outcome = yield AllGather(np.concatenate(list(data)))
    total = sum(map(len, data))
    by_rank = np.frombuffer(outcome.value, np.uint8).reshape(-1, total)
    ends = np.cumsum([len(each) for each in data])
    pieces = [(stop - len(each), stop) for each, stop in zip(data, ends, strict=True)]
    return [[of[start:stop] for of in by_rank] for start, stop in pieces]
