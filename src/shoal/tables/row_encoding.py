"""RowEncoding: how codecs encode the rows of a sparse table.

Rows of one push go to several servers, in any order, so each is encoded by itself: the values of a
row are a block of the codec, with a scale of their own. There is no residual: a worker would need
one for each key that it has ever pushed.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec.structs import fields

from shoal.codecs import Codec, codec_of
from shoal.errors import BadEncoding, InvalidValue
from shoal.tables.spec import TableSpec


class RowEncoding:
    """How the rows of a sparse table are encoded.

    Args:
        spec: the table.
        pulled: whether this is about rows that are pulled, not about pushes.

    Attributes:
        codec: the codec, whose blocks are rows.

    Raises:
        UnknownName: no such codec.
        InvalidValue: the codec needs a residual, or cannot encode rows by themselves, or makes them
            no smaller.

    Example:
        >>> encoding = RowEncoding(TableSpec("e", row_shape=(16,), kind="sparse", codec="int:8"))
        >>> str(encoding.codec), encoding.nbytes(1)
        ('int:8:block=16', 20)
    """

    def __init__(self, spec: TableSpec, pulled: bool = False) -> None:
        self._spec = spec
        self.codec = _codec_of(spec, spec.server_codec if pulled else spec.codec)
        self._row_bytes = self.codec.nbytes(spec.width)
        if self._row_bytes >= spec.row_bytes:
            raise InvalidValue(
                f"table {spec.name!r}: codec {self.codec} makes {self._row_bytes} bytes of a row "
                f"of {spec.row_bytes}; leave it out"
            )

    def nbytes(self, count: int) -> int:
        """Return the bytes of a number of encoded rows."""
        return count * self._row_bytes

    def encode(self, rows: np.ndarray, key: int) -> np.ndarray:
        """Encode rows.

        Args:
            rows: (n, width) of the table's dtype.
            key: the key of random bits.

        Returns:
            (`nbytes(n)`,) uint8.

        Raises:
            NotFinite: a value is NaN, infinite or too large.
        """
        values = np.ascontiguousarray(rows, np.float32).reshape(-1)
        data = np.empty(len(rows) * self._row_bytes, np.uint8)
        self.codec.encode(values, data, key=key)
        return data

    def decode(self, data: np.ndarray, into: np.ndarray) -> None:
        """Decode rows.

        Args:
            data: (`nbytes(n)`,) uint8.
            into: (n, width) of the table's dtype.

        Raises:
            BadEncoding: it is no encoding of so many rows.
        """
        if len(data) != len(into) * self._row_bytes:
            raise BadEncoding(
                f"table {self._spec.name!r}: {len(into)} encoded rows have "
                f"{len(into) * self._row_bytes} bytes, not {len(data)}"
            )
        exact = into.dtype == np.float32 and into.flags.c_contiguous
        values = into.reshape(-1) if exact else np.empty(into.size, np.float32)
        self.codec.decode(data, values)
        if not exact:
            into[:] = values.reshape(into.shape)


def _codec_of(spec: TableSpec, text: str) -> Codec:
    codec: Any = codec_of(text)  # some have blocks
    if codec.varies or (codec.biased and not codec.stateless):
        lacks = "a size for each row" if codec.varies else "a residual"
        raise InvalidValue(
            f"table {spec.name!r}: codec {text!r} needs {lacks}, which rows of a sparse table do "
            "not have: take fp16, bf16, int:8, qsgd:8 or natural:8"
        )
    if "block" not in codec.__struct_fields__:
        if codec.nbytes(2 * spec.width) != 2 * codec.nbytes(spec.width):
            raise InvalidValue(f"table {spec.name!r}: codec {text!r} does not encode single rows")
        whole: Codec = codec
        return whole
    usual = next(each.default for each in fields(codec) if each.name == "block")
    if codec.block not in (usual, spec.width):
        raise InvalidValue(
            f"table {spec.name!r}: codec {text!r} has blocks of {codec.block} values, and in a "
            f"sparse table a row is a block: leave out block"
        )
    try:
        by_row = {**msgspec.structs.asdict(codec), "block": spec.width}
        found: Codec = msgspec.convert(by_row, type(codec))
        return found
    except msgspec.ValidationError:
        raise InvalidValue(
            f"table {spec.name!r}: codec {text!r} has a scale for each row, of 8, 16, ... to 4096 "
            f"values, not of {spec.width}; take fp16 or bf16"
        ) from None
