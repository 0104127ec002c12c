"""Codec: the contract, which `shoal.testing.codecs` checks; and what all codecs have."""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from shoal.errors import BadEncoding, InvalidValue, NotFinite

NOTHING = np.empty(0, np.float32)
PAGE = 4096
_NOISE = 2.0**-20  # of the largest value: several roundings of float32
_FLOATS, _BYTES = np.dtype(np.float32), np.dtype(np.uint8)
FINE = -1  # what a kernel returns if it has found no fault; else the first element of a bad block


def option(text: str, **bounds: Any) -> Any:
    """Return the annotation of an option: its description, and the bounds of `msgspec.Meta`."""
    return msgspec.Meta(description=text, **bounds)


class Given(NamedTuple):
    """What a codec encodes, as in `Codec.encode`; the residual is empty without feedback."""

    values: np.ndarray
    residual: np.ndarray
    gain: np.float32
    key: np.uint64
    first: np.uint64


def residual_of(count: int) -> np.ndarray:
    """Return a residual of zeros for `count` values: (n,) float32.

    It begins in the middle of a page. Large arrays begin at the start of one, and two that are read
    and written at the same places of their pages hinder each other: encoding takes half as long
    again.
    """
    memory = np.zeros(4 * count + PAGE, np.uint8)
    start = (PAGE // 2 - memory.ctypes.data) % PAGE
    return memory[start : start + 4 * count].view(np.float32)


class NamedCodec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a text such as "int:8" describes. Its fields are its options.

    Attributes:
        name: the name.
        argument: the option whose value stands behind the name without its own: "bits" in "int:8".
        summary: what it does, in a line.
        source: the paper, with its section.
        stateless: whether its error is small beside each block's largest value, so that values
            without a residual are of use.
        after: the clock at which a worker begins to use it; before, values travel as they are.
    """

    name: ClassVar[str]
    argument: ClassVar[str] = ""
    summary: ClassVar[str]
    source: ClassVar[str] = ""
    stateless: ClassVar[bool] = False

    after: Annotated[int, option("clock (step) of a worker from which it is used", ge=0)] = 0

    @property
    def begins_at(self) -> int:
        """The clock from which it is used; before, values travel as they are."""
        return self.after

    @property
    @abstractmethod
    def biased(self) -> bool:
        """Whether the mean of decoded values, over all keys, differs from the values.

        Such a codec needs a residual, or training converges to another point.
        """

    @abstractmethod
    def bytes_of(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor of this shape."""

    def __str__(self) -> str:
        shown = [self.name]
        for each in msgspec.structs.fields(self):
            value = getattr(self, each.name)
            if each.name == self.argument:
                shown.append(f"{value:g}" if isinstance(value, float) else f"{value}")
            elif value != each.default:
                shown.append(f"{each.name}={value}")
        return ":".join(shown)


class Codec(NamedCodec, frozen=True):
    """A way to encode n float32 values in fewer bytes.

    A subclass gives `biased`, `nbytes`, `_encode` and `_decode`, and the class variables.

    Attributes:
        draws: whether it draws random bits.
        summed: the dtype of its encoded values if the mean of encodings is the encoding of the
            mean, so that an allreduce sums them as they are; "" if they have to be decoded first.
        varies: whether the number of bytes depends on the values; `nbytes` is the most then.
    """

    draws: ClassVar[bool] = False
    summed: ClassVar[str] = ""
    varies: ClassVar[bool] = False

    @abstractmethod
    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` encoded values; the most that they may be if it `varies`."""

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        return self.nbytes(prod(shape))

    @abstractmethod
    def _encode(self, values: Given, into: np.ndarray) -> int:
        """Encode, and return FINE or the first element of a block that cannot be encoded.

        A codec that `varies` returns the number of bytes, and raises NotFinite itself.
        """

    @abstractmethod
    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        """Decode, and return FINE or the first element of a block that no encoder has written."""

    def head(self, count: int) -> int:
        """Return the bytes before the values that are `summed`; equal keys give equal ones."""
        return 0

    @property
    def largest(self) -> float:
        """The largest magnitude that can be encoded."""
        return float(np.finfo(np.float32).max)

    def encode(
        self,
        values: np.ndarray,
        into: np.ndarray,
        *,
        residual: np.ndarray | None = None,
        gain: float = 1.0,
        key: int = 0,
        first: int = 0,
    ) -> int:
        """Encode x = values + gain * residual; the residual becomes x - decoded.

        Args:
            values: (n,) float32.
            into: (`nbytes(n)`,) uint8.
            residual: (n,) float32, what earlier encodings have left out; None for no feedback.
            gain: the factor of the residual.
            key: 64 bits; encodings of equal values with one key are equal, bit for bit.
            first: the number of the first value among those that share the key, so that no two of
                them share random bits.

        Returns:
            The number of bytes at the beginning of `into` that are the encoding.

        Raises:
            NotFinite: x has a NaN, an infinity, or a value beyond `largest`. The residual is as
                before, up to rounding.
            InvalidValue: an array has another length or dtype, or is not contiguous.
        """
        count, left = len(values), NOTHING if residual is None else residual
        _check((values, _FLOATS), (left, _FLOATS), (into, _BYTES))
        if len(into) != self.nbytes(count) or len(left) not in (0, count):
            raise InvalidValue(
                f"{count} values of codec {self} need {self.nbytes(count)} bytes and no residual "
                f"or one of {count} values, not {len(into)} bytes and a residual of {len(left)}"
            )
        given = Given(values, left, np.float32(gain), np.uint64(key), np.uint64(first))
        at = self._encode(given, into)
        if self.varies:
            return at
        if at == FINE:
            return len(into)
        if residual is not None:
            self._undo(at, given, into)
            values = values + np.float32(gain) * residual
        bad = at + int(np.argmax(~(np.abs(values[at:]) <= np.float32(self.largest))))
        raise NotFinite(
            f"element {bad} is {values[bad]}: codec {self} encodes finite values up to "
            f"{self.largest:.5g}. Lower the learning rate or clip the gradient"
        )

    def decode(self, data: np.ndarray, into: np.ndarray) -> None:
        """Decode all of `data` into finite values.

        Args:
            data: (`nbytes(n)`,) uint8; fewer if it `varies`.
            into: (n,) float32; what it holds after an error is undefined.

        Raises:
            BadEncoding: `data` is too short or too long, or has a scale or a code that no encoder
                writes.
            InvalidValue: an array has another dtype, or is not contiguous.
        """
        _check((data, _BYTES), (into, _FLOATS))
        most = self.nbytes(len(into))
        if not (0 < len(data) <= most if self.varies and most else len(data) == most):
            raise BadEncoding(
                f"{len(into)} values of codec {self} have {most} bytes{' at most' * self.varies}, "
                f"not {len(data)}"
            )
        at = self._decode(data, into)
        if at != FINE:
            raise BadEncoding(f"codec {self}: a scale or a code behind element {at} is invalid")

    def _undo(self, at: int, values: Given, into: np.ndarray) -> None:
        """Undo what `_encode` has done to the residual before it found a bad block at `at`."""
        some = values.values[:at], values.residual[:at], float(values.gain)
        self.take_back(into[: self.nbytes(at)], *some)

    def give_back(self, data: np.ndarray, residual: np.ndarray, factor: float = 1.0) -> None:
        """Add a factor times encoded values to a residual: they did not count where they were sent.

        Raises:
            BadEncoding: as `decode`.
        """
        values = np.empty_like(residual)
        self.decode(data, values)
        residual += np.float32(factor) * values

    def take_back(
        self, data: np.ndarray, values: np.ndarray, residual: np.ndarray, gain: float = 1.0
    ) -> None:
        """Make the residual what it was before `encode` of these values, up to rounding.

        Raises:
            BadEncoding: as `decode`.
        """
        self.give_back(data, residual)
        subtract(values, residual, gain)


def subtract(values: np.ndarray, residual: np.ndarray, gain: float) -> None:
    """Make x = values + gain * residual, which `residual` holds, the residual again.

    What rounding has left of a residual beside large values is noise, and becomes 0.
    """
    largest = float(np.abs(values).max(initial=0.0))
    residual -= values
    residual[np.abs(residual) <= _NOISE * largest] = 0
    if gain != 1:
        residual /= np.float32(gain)


def _check(*arrays: tuple[np.ndarray, np.dtype[Any]]) -> None:
    """Refuse arrays that the loops would misread."""
    for array, dtype in arrays:
        same = array.dtype is dtype or array.dtype == dtype  # to compare takes ten times as long
        if not same or array.ndim != 1 or not array.flags.c_contiguous:
            raise InvalidValue(
                f"a codec takes contiguous {dtype.name} values in one dimension, not "
                f"{array.dtype} of shape {array.shape} and strides {array.strides}"
            )
