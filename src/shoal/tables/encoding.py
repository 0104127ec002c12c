"""Encoding: how codecs encode the fragments of a dense table, layer by layer.

The unit is the fragment: a push is a list of encoded fragments, which may go to different servers.
Fragments do not end where layers do, so a codec encodes the values that a fragment and a layer have
in common. A fragment that encoding would not make smaller is sent as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.errors import BadEncoding, NotFinite
from shoal.keys import KeyRange
from shoal.tables.spec import ITEM_SIZES, NO_CODECS, TableSpec

if TYPE_CHECKING:
    from shoal.codecs import Codec

_RANGES_KEPT = 64
NUMBER_BYTES = 4  # before a piece whose codec varies: the number of its bytes


class Piece(NamedTuple):
    """The values that a fragment and a layer have in common.

    Attributes:
        codec: the codec of the layer; None if it has none.
        first: the number of the first value in its fragment.
        number: the same in the table.
        length: the number of values.
        nbytes: the number of its bytes in the encoded fragment; the most that they may be if its
            codec varies, with their number before them.
        layer: the number of the layer.
    """

    codec: Codec | None
    first: int
    number: int
    length: int
    nbytes: int
    layer: int

    @property
    def varies(self) -> bool:
        """Whether its number of bytes depends on its values."""
        return self.codec is not None and self.codec.varies


class Fragment(NamedTuple):
    """Some rows of one fragment, and how they are encoded.

    Attributes:
        first: the number of the first value in the range that was cut.
        length: the number of values.
        pieces: its pieces; none if it is sent as it is.
        nbytes: the bytes that it has when it is sent; the most that they may be if it `varies`.
        varies: whether the number of bytes depends on the values.
    """

    first: int
    length: int
    pieces: tuple[Piece, ...]
    nbytes: int
    varies: bool = False


class Measured(NamedTuple):
    """What became of a piece: bytes, and the squared norms of its values and of what was left out.

    Attributes:
        layer: the number of the layer.
        codec: the codec; empty for none.
        raw_bytes: the bytes of its values.
        encoded_bytes: the bytes that they have become.
        norm: the sum of the squared values, with the residual.
        error: the sum of the squared differences of these and of what was decoded.
    """

    layer: int
    codec: str
    raw_bytes: int
    encoded_bytes: int
    norm: float
    error: float


class LayerFigures(msgspec.Struct, frozen=True):
    """What a codec made of a layer in one push.

    Attributes:
        table: the table.
        layer: the name of the layer; its table has one if it is empty.
        codec: the codec.
        raw_bytes: the bytes of the values.
        encoded_bytes: the bytes that were sent.
        error: the relative error ||x - decoded|| / ||x||, x being the values with the residual.
    """

    table: str
    layer: str
    codec: str
    raw_bytes: int
    encoded_bytes: int
    error: float


class FragmentValues(NamedTuple):
    """The values of a fragment that is encoded.

    Attributes:
        fragment: the fragment.
        data: the bytes of its values.
        into: the memory of the bytes that they become, (`fragment.nbytes`,) uint8; once they are
            encoded, these bytes.
        residual: (length,) float32, or None.
        gain: the factor of the residual.
        reference: the bytes of the values whose difference is encoded, of `data` to these; None
            for the values themselves.
    """

    fragment: Fragment
    data: np.ndarray
    into: np.ndarray
    residual: np.ndarray | None = None
    gain: float = 1.0
    reference: np.ndarray | None = None


class Encoding:
    """How the fragments of a dense table are encoded.

    Args:
        spec: the table.
        pulled: whether this is about rows that are pulled, not about pushes.

    Raises:
        UnknownName, InvalidValue: as `codec_of`; or no codec for rows that are pulled.

    Example:
        >>> encoding = Encoding(TableSpec("w", 4096, fragment_rows=2048, codec="int:8"))
        >>> [fragment.nbytes for fragment in encoding.cut(KeyRange(0, 4096))]
        [2064, 2064]
    """

    def __init__(self, spec: TableSpec, pulled: bool = False) -> None:
        self._spec = spec
        self._item = ITEM_SIZES[spec.dtype]
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._layers = _layers_of(spec, spec.server_codec if pulled else spec.codec, pulled)
        self._cut: dict[KeyRange, tuple[Fragment, ...]] = {}
        self.begins_at = max((each.begins_at for _, each in self._layers if each), default=0)
        self.biased = any(codec is not None and codec.biased for _, codec in self._layers)

    def cut(self, rows: KeyRange) -> tuple[Fragment, ...]:
        """Return the fragments that have some of the rows."""
        found = self._cut.get(rows)
        if found is None:
            if len(self._cut) >= _RANGES_KEPT:
                self._cut.clear()
            found = self._cut[rows] = tuple(
                self._fragment(part, rows.start) for part in self._spec.fragments_in(rows)
            )
        return found

    def _fragment(self, part: KeyRange, start: int) -> Fragment:
        width, pieces, at = self._spec.width, [], 0
        number = bisect_right(self._layers, part.start, key=itemgetter(0)) - 1
        while number < len(self._layers) and self._layers[number][0] < part.stop:
            begins, codec = self._layers[number]
            layer, number = number, number + 1
            ends = self._layers[number][0] if number < len(self._layers) else self._spec.rows
            common = part & KeyRange(begins, ends)
            count = len(common) * width
            nbytes = codec.nbytes(count) if codec is not None else count * self._item
            if codec is not None and codec.varies:
                nbytes += NUMBER_BYTES
            first = (common.start - part.start) * width
            pieces.append(Piece(codec, first, common.start * width, count, nbytes, layer))
            at += nbytes
        first, count = (part.start - start) * width, len(part) * width
        varies = any(piece.varies for piece in pieces)
        biased = any(piece.codec.biased for piece in pieces if piece.codec is not None)
        if at >= count * self._item and (biased or not varies):  # else `encode` will see
            return Fragment(first, count, (), count * self._item)
        return Fragment(first, count, tuple(pieces), at, varies)

    # ------------------------------------------------------------------ workers

    def encode(self, given: FragmentValues, key: int) -> FragmentValues:
        """Encode a fragment, as `Codec.encode` does its pieces.

        Args:
            given: the fragment with its values.
            key: the key of the random bits.

        Returns:
            The same, with the bytes that the values have become.

        Raises:
            NotFinite: a value cannot be encoded; the residual is as before, up to rounding.
        """
        fragment, data, into, _, _, reference = given
        values = self._floats(data, reference) if fragment.pieces else np.empty(0, np.float32)
        at = 0
        for number, piece in enumerate(fragment.pieces):
            head = NUMBER_BYTES if piece.varies else 0
            to = into[at + head : at + piece.nbytes]
            try:
                size = self._encode(piece, given, values, to, key)
            except NotFinite:
                begun = fragment._replace(pieces=fragment.pieces[:number])
                self.take_back(given._replace(fragment=begun, into=into[:at]))
                raise
            if head:
                into[at : at + head] = np.array([size], "<u4").view(np.uint8)
            at += head + size
        if not fragment.pieces or at >= len(data):
            self._check_finite(data)
            into[: len(data)] = data
            at = len(data)
        return given._replace(into=into[:at])

    def _encode(
        self, piece: Piece, given: FragmentValues, values: np.ndarray, into: np.ndarray, key: int
    ) -> int:
        """Encode a piece; return the number of its bytes."""
        some = slice(piece.first, piece.first + piece.length)
        if piece.codec is None:
            raw = given.data[some.start * self._item : some.stop * self._item]
            self._check_finite(raw)
            into[:] = raw
            return len(raw)
        keeps = given.residual is not None and piece.codec.biased
        left = given.residual[some] if given.residual is not None and keeps else None
        return piece.codec.encode(
            values[some], into, residual=left, gain=given.gain, key=key, first=piece.number
        )

    def _pieces(self, fragment: Fragment, data: np.ndarray) -> Iterator[tuple[Piece, np.ndarray]]:
        """Yield the pieces of an encoded fragment with their bytes; none if it is as it was.

        Raises:
            BadEncoding: the fragment has another number of bytes.
        """
        raw = fragment.length * self._item
        if not fragment.pieces or len(data) == raw:
            return
        at = 0
        for piece in fragment.pieces:
            size = piece.nbytes
            if piece.varies:
                number = data[at : at + NUMBER_BYTES]
                at += NUMBER_BYTES
                size = int(number.copy().view("<u4")[0]) if len(number) == NUMBER_BYTES else -1
            if not 0 <= size <= len(data) - at:
                break
            yield piece, data[at : at + size]
            at += size
        else:
            if at == len(data):
                return
        raise BadEncoding(
            f"table {self._spec.name!r}: a fragment of {fragment.length} values has "
            f"{fragment.nbytes} bytes{' at most' * fragment.varies} or {raw}, not {len(data)}"
        )

    def take_back(self, given: FragmentValues) -> None:
        """Undo what `encode` did to the residual, up to rounding."""
        fragment, data, into, residual, gain, _ = given
        if residual is None:
            return
        values = self._floats(data)
        for piece, encoded in self._pieces(fragment, into):
            if piece.codec is not None and piece.codec.biased:
                some = slice(piece.first, piece.first + piece.length)
                piece.codec.take_back(encoded, values[some], residual[some], gain)

    def measured(self, given: FragmentValues) -> Iterator[Measured]:
        """Yield what became of the pieces of a fragment that was encoded."""
        fragment, data, into, residual, _, _ = given
        for piece, encoded in self._pieces(fragment, into):
            some = slice(piece.first, piece.first + piece.length)
            raw = data[some.start * self._item : some.stop * self._item]
            norm = error = 0.0
            if piece.codec is not None:
                decoded = np.empty(piece.length, np.float32)
                piece.codec.decode(encoded, decoded)
                if residual is not None and piece.codec.biased:
                    left = residual[some]
                    values = decoded + left
                else:
                    values = self._floats(raw)
                    left = values - decoded
                norm, error = (float(np.vdot(each, each)) for each in (values, left))
            told = "" if piece.codec is None else str(piece.codec)
            yield Measured(piece.layer, told, raw.nbytes, len(encoded), norm, error)

    def give_back(
        self, fragment: Fragment, encoded: np.ndarray, residual: np.ndarray, factor: float
    ) -> None:
        """Add a factor times the decoded values of a fragment to the residual."""
        for piece, data in self._pieces(fragment, encoded):
            if piece.codec is not None and piece.codec.biased:
                some = slice(piece.first, piece.first + piece.length)
                piece.codec.give_back(data, residual[some], factor)

    def _floats(self, data: np.ndarray, reference: np.ndarray | None = None) -> np.ndarray:
        """Return the values of a fragment, or their difference to others, as float32: (count,)."""
        if self._dtype == torch.float32:
            values = data.view(np.float32)
            return values if reference is None else values - reference.view(np.float32)
        tensor = torch.from_numpy(data).view(self._dtype)
        if reference is not None:
            tensor = tensor.double() - torch.from_numpy(reference).view(self._dtype).double()
        floats: np.ndarray = tensor.float().numpy()
        return floats

    def _check_finite(self, data: np.ndarray) -> None:
        if not bool(torch.from_numpy(data).view(self._dtype).isfinite().all()):
            raise NotFinite("a value is NaN or infinite")

    # ------------------------------------------------------------------ servers

    def decode(
        self, rows: KeyRange, data: memoryview, sizes: tuple[int, ...], into: Tensor
    ) -> None:
        """Decode encoded fragments.

        Args:
            rows: the rows that they are.
            data: their bytes.
            sizes: the bytes of each.
            into: (len(rows), width) of the table's dtype.

        Raises:
            BadEncoding: what has come is no encoding of these rows.
        """
        encoded, flat, at = np.frombuffer(data, np.uint8), into.view(-1), 0
        for fragment, size in zip(self.cut(rows), sizes, strict=True):
            some = flat[fragment.first : fragment.first + fragment.length]
            self.decode_fragment(fragment, encoded[at : at + size], some)
            at += size

    def decode_fragment(
        self, fragment: Fragment, data: np.ndarray, into: Tensor, adds: bool = False
    ) -> None:
        """Decode one fragment.

        Args:
            fragment: the fragment.
            data: its bytes.
            into: (length,) of the table's dtype.
            adds: whether what is decoded is a difference, and is added to `into`; pieces without a
                codec replace it.

        Raises:
            BadEncoding: they are no encoding of it; `into` may have changed.
        """
        raw = into.view(torch.uint8).numpy()
        if len(data) == len(raw):
            raw[:] = data
            return
        if not fragment.pieces:
            raise BadEncoding(
                f"table {self._spec.name!r}: {len(data)} bytes for {len(raw)}, which have no codec"
            )
        exact = self._dtype == torch.float32 and not adds
        for piece, encoded in self._pieces(fragment, data):
            some = slice(piece.first, piece.first + piece.length)
            if piece.codec is None:
                raw[some.start * self._item : some.stop * self._item] = encoded
            elif exact:
                piece.codec.decode(encoded, into[some].numpy())
            else:
                floats = torch.empty(piece.length)
                piece.codec.decode(encoded, floats.numpy())
                if adds:
                    floats = into[some] + floats  # float32 at least
                if self._item < floats.itemsize:
                    most = torch.finfo(self._dtype).max
                    floats.clamp_(-most, most)
                into[some] = floats.to(self._dtype)


def _layers_of(spec: TableSpec, codec: str, pulled: bool) -> list[tuple[int, Codec | None]]:
    """Return the first row of each layer, and its codec; neighbours with one codec stay apart."""
    named: dict[str, Codec | None] = dict.fromkeys(NO_CODECS)
    layers = []
    for start, text in [(span.start, span.codec) for span in spec.spans] or [(0, "")]:
        text = codec if pulled and text != "exact" else text or codec
        if text not in named:
            from shoal.codecs import codec_of, pulled_codec_of  # numba, which takes half a second

            named[text] = pulled_codec_of(text) if pulled else codec_of(text)
        layers.append((start, named[text]))
    return layers
