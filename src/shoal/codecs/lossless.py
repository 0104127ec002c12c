"""Lossless stages: `zlib`, `lz4` and `zstd`, for values as they are or what another codec made.

Values as they are lose their zeros first, and bytes of one significance stand together: the last
ones of a float32 are noise, the first ones are alike.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from typing import Annotated

import numpy as np

from shoal.codecs.base import FINE, Codec, Given, option
from shoal.errors import BadEncoding, NotFinite
from shoal.extras import require

STORED, PACKED = 0, 1  # the first byte
BAD_HEAD = "its first byte is none that an encoder writes"


class Lossless(Codec, frozen=True):
    """A codec that loses nothing; the number of bytes depends on the values.

    A subclass gives `pack` and `unpack`.
    """

    varies = True

    @property
    def biased(self) -> bool:
        return False

    def nbytes(self, count: int) -> int:
        return 1 + 4 * count if count else 0

    @abstractmethod
    def pack(self, data: np.ndarray, into: np.ndarray) -> int:
        """Compress bytes; return the number of bytes, 0 if they do not fit."""

    @abstractmethod
    def unpack(self, data: np.ndarray, into: np.ndarray) -> int:
        """Decompress into memory of the largest size; return the number of bytes.

        Raises:
            BadEncoding: what it has are no such bytes, or more than `into` takes.
        """

    def packed(self, data: np.ndarray, plain: np.ndarray, into: np.ndarray) -> int:
        """Write `data` compressed, or `plain` if that is not larger; return the number of bytes."""
        size = self.pack(data, into[1 : 1 + len(plain)]) if len(plain) else 0
        into[0] = PACKED if size else STORED
        if not size:
            size = len(plain)
            into[1 : 1 + size] = plain
        return 1 + size

    def _encode(self, values: Given, into: np.ndarray) -> int:
        whole = values.values
        if not len(whole):
            return 0
        if len(values.residual):
            whole = whole + values.gain * values.residual
        finite = np.isfinite(whole)
        if not finite.all():
            at = int(np.argmin(finite))
            raise NotFinite(f"element {at} is {whole[at]}: codec {self} encodes finite values")
        values.residual[:] = 0
        return self.packed(_without_zeros(whole), whole.view(np.uint8), into)

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        if not len(into):
            return FINE
        if data[0] == STORED and len(data) == 1 + 4 * len(into):
            into.view(np.uint8)[:] = data[1:]
        elif data[0] == PACKED:
            most = np.empty(-(-len(into) // 8) + 4 * len(into), np.uint8)
            _with_zeros(most[: self.unpack(data[1:], most)], into)
        else:
            raise BadEncoding(f"codec {self}: {BAD_HEAD}")
        finite = np.isfinite(into)
        return FINE if finite.all() else int(np.argmin(finite))


def _without_zeros(values: np.ndarray) -> np.ndarray:
    """Return which values are not 0, a bit each, then these with their bytes by significance."""
    some = values.view(np.uint32) != 0  # -0.0 is kept
    kept = values[some].view(np.uint8).reshape(-1, 4)
    return np.concatenate([np.packbits(some), kept.T.reshape(-1)])


def _with_zeros(data: np.ndarray, into: np.ndarray) -> None:
    head = -(-len(into) // 8)
    some = np.unpackbits(data[:head], count=len(into)).astype(bool) if len(data) >= head else None
    if some is None or len(data) != head + 4 * int(some.sum()):
        raise BadEncoding(f"{len(data)} bytes are not {len(into)} values without their zeros")
    into[:] = 0
    into[some] = np.ascontiguousarray(data[head:].reshape(4, -1).T).view(np.float32).reshape(-1)


# fmt: off
class ZLib(Lossless, frozen=True):
    """Python's zlib.

    Example:
        >>> import numpy as np
        >>> from shoal.codecs import codec_of
        >>> values, codec = np.zeros(1000, np.float32), codec_of("zlib:6")
        >>> data = np.empty(codec.nbytes(1000), np.uint8)
        >>> codec.encode(values, data)
        7
    """

    argument = "level"
    name = "zlib"
    summary = "loses nothing: zeros removed, bytes by significance, then DEFLATE"
    source = "RFC 1951"

    level: Annotated[int, option("effort, from 0 (none) to 9", ge=0, le=9)] = 1
    # fmt: on

    def pack(self, data: np.ndarray, into: np.ndarray) -> int:
        found = zlib.compress(data.data, self.level, wbits=-15)
        if len(found) >= len(into):
            return 0
        into[: len(found)] = np.frombuffer(found, np.uint8)
        return len(found)

    def unpack(self, data: np.ndarray, into: np.ndarray) -> int:
        reader = zlib.decompressobj(wbits=-15)
        try:
            found = reader.decompress(data.data, len(into) or 1)
        except zlib.error as error:
            raise BadEncoding(f"codec {self}: {error}") from None
        if not reader.eof or reader.unused_data or len(found) > len(into):
            raise BadEncoding(f"codec {self}: more or fewer bytes than {len(into)}")
        into[: len(found)] = np.frombuffer(found, np.uint8)
        return len(found)


class _Cramjam(Lossless, frozen=True):
    """A format of the package cramjam, which compresses into memory of known size."""

    def __post_init__(self) -> None:
        require("cramjam", f"codec {self.name}")

    @abstractmethod
    def _compress(self, data: memoryview, into: memoryview) -> int: ...

    @abstractmethod
    def _decompress(self, data: memoryview, into: memoryview) -> int: ...

    def pack(self, data: np.ndarray, into: np.ndarray) -> int:
        from cramjam import CompressionError

        try:
            size = self._compress(data.data, into.data)
        except CompressionError:  # it does not fit
            return 0
        return size if size < len(into) else 0

    def unpack(self, data: np.ndarray, into: np.ndarray) -> int:
        from cramjam import DecompressionError

        try:
            return self._decompress(data.data, into.data)
        except DecompressionError as error:
            raise BadEncoding(f"codec {self}: {error}") from None


# fmt: off
class LZ4(_Cramjam, frozen=True):
    """LZ4, the fastest of the three.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("topk:0.01+lz4").varies
        True
    """

    name = "lz4"
    summary = "loses nothing: as zlib, faster and larger"
    source = "Collet 2011, LZ4 block format"
    # fmt: on

    def _compress(self, data: memoryview, into: memoryview) -> int:
        from cramjam import lz4

        return lz4.compress_block_into(data, into)

    def _decompress(self, data: memoryview, into: memoryview) -> int:
        from cramjam import lz4

        return lz4.decompress_block_into(data, into)


# fmt: off
class ZStd(_Cramjam, frozen=True):
    """Zstandard.

    Example:
        >>> from shoal.codecs import codec_of
        >>> str(codec_of("int:8+zstd"))
        'int:8+zstd:1'
    """

    argument = "level"
    name = "zstd"
    summary = "loses nothing: as zlib, faster and smaller"
    source = "RFC 8878"

    level: Annotated[int, option("effort, from 1 to 19", ge=1, le=19)] = 1
    # fmt: on

    def _compress(self, data: memoryview, into: memoryview) -> int:
        from cramjam import zstd

        return zstd.compress_into(data, into, level=self.level)

    def _decompress(self, data: memoryview, into: memoryview) -> int:
        from cramjam import zstd

        return zstd.decompress_into(data, into)


class Packed(Codec, frozen=True):
    """A codec, and a lossless stage for the bytes that it makes.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("onebit+zlib:9").biased
        True
    """

    name = "+"
    summary = "CODEC+CODEC: the second one compresses the bytes of the first one"
    varies = True

    first: Codec
    second: Lossless

    @property
    def biased(self) -> bool:
        return self.first.biased

    @property
    def largest(self) -> float:
        return self.first.largest

    @property
    def begins_at(self) -> int:
        return max(self.first.begins_at, self.second.after)

    def nbytes(self, count: int) -> int:
        return 1 + self.first.nbytes(count) if count else 0

    def _encode(self, values: Given, into: np.ndarray) -> int:
        count, (given, residual, gain, key, first) = len(values.values), values
        plain = np.empty(self.first.nbytes(count), np.uint8)
        left = residual if len(residual) else None
        self.first.encode(
            given, plain, residual=left, gain=float(gain), key=int(key), first=int(first)
        )
        return self.second.packed(plain, plain, into) if count else 0

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        if not len(into):
            return FINE
        plain, most = data[1:], self.first.nbytes(len(into))
        if data[0] == PACKED:
            plain = np.empty(most, np.uint8)
            if self.second.unpack(data[1:], plain) != most:
                raise BadEncoding(f"codec {self}: fewer bytes than {most}")
        elif data[0] != STORED:
            raise BadEncoding(f"codec {self}: {BAD_HEAD}")
        self.first.decode(plain, into)
        return FINE

    def __str__(self) -> str:
        return f"{self.first}+{self.second}"
