"""Codecs that send some of the values: `topk` the largest ones, `randomk` one of each part.

The rest stays in the residual, so an element waits about 1 / R pushes.
"""

from __future__ import annotations

from abc import abstractmethod
from math import ceil
from typing import Annotated, Any

import numpy as np

from shoal.codecs.base import FINE, Codec, Given, option, subtract
from shoal.codecs.kernels import BLOCK, INFINITE, MAGNITUDE, F, bits_of, load, part
from shoal.jit import U, kernel, mixed

RUN = 32  # groups of a block, each of BLOCK / RUN values, in the search for the largest ones
CHUNK = 1 << 16  # values that indices of 16 bits tell apart
NO_PLACES = np.empty(0, np.int64)

Share = Annotated[float, option("share of the values that is sent", gt=0, le=1)]


class Sparse(Codec, frozen=True):
    """A codec that sends k = ceil(R n) of n values: their places, then the values.

    A subclass gives `places_bytes`, `_choose` and `_places`.
    """

    argument = "share"

    share: Share = 0.01

    @property
    def biased(self) -> bool:
        return True

    def kept(self, count: int) -> int:
        """Return how many of `count` values are sent."""
        return min(count, ceil(self.share * count))

    @abstractmethod
    def places_bytes(self, count: int) -> int:
        """Return the bytes of the places of the values that are sent, of `count` values."""

    @abstractmethod
    def _choose(
        self, x: np.ndarray, tops: np.ndarray, values: Given, into: np.ndarray
    ) -> np.ndarray:
        """Choose values of x; write their places, and return them in ascending order: (k,).

        tops:  the bits of the largest magnitude in each group of x (`_added`)
        """

    @abstractmethod
    def _places(self, data: np.ndarray, count: int) -> np.ndarray:
        """Return the places in encoded data, (k,); none if no encoder has written them."""

    def nbytes(self, count: int) -> int:
        return self.places_bytes(count) + 4 * self.kept(count)

    def _encode(self, values: Given, into: np.ndarray) -> int:
        return self.encode_with(None, values, into)

    def encode_with(self, codec: Codec | None, values: Given, into: np.ndarray) -> int:
        """Encode as `_encode`, and the values that are sent with another codec."""
        x = values.residual if len(values.residual) else np.empty_like(values.values)
        most = np.float32(self.largest if codec is None else codec.largest).view(np.int32)
        tops = np.empty(-(-len(x) // BLOCK) * RUN, np.int32)
        at = int(_added(*values[:3], most, x, tops))
        if at != FINE:
            return at
        size = self.places_bytes(len(x))
        places = self._choose(x, tops, values, into[:size])
        chosen = x[places]
        left = np.zeros_like(chosen)
        if codec is None:
            into[size:] = chosen.view(np.uint8)
        else:
            codec.encode(
                chosen, into[size:], residual=left, key=int(values.key), first=int(values.first)
            )
        x[places] = left
        return FINE

    def _undo(self, at: int, values: Given, into: np.ndarray) -> None:
        subtract(values.values[:at], values.residual[:at], float(values.gain))  # it has been x

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return self.decode_with(None, data, into)

    def decode_with(self, codec: Codec | None, data: np.ndarray, into: np.ndarray) -> int:
        """Decode what `encode_with` has encoded."""
        size, kept = self.places_bytes(len(into)), self.kept(len(into))
        places = self._places(data[:size], len(into))
        if len(places) != kept:
            return 0
        chosen = np.empty(kept, np.float32)
        if codec is None:
            chosen.view(np.uint8)[:] = data[size:]
        else:
            codec.decode(data[size:], chosen)
        into[:] = 0
        return int(_scatter(chosen, places, into))


# fmt: off
class TopK(Sparse, frozen=True):
    """Send the ceil(R n) values of the largest magnitude, with indices of 16 bits.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("topk:0.01").nbytes(100_000)
        6008
    """

    name = "topk"
    summary = "sends the share of values with the largest magnitude; the others wait"
    source = "Aji 2017, section 3; Stich 2018, definition 2.1"
    # fmt: on

    def places_bytes(self, count: int) -> int:
        return 4 * -(-count // CHUNK) + 2 * self.kept(count)

    def _choose(
        self, x: np.ndarray, tops: np.ndarray, values: Given, into: np.ndarray
    ) -> np.ndarray:
        kept, chunks = self.kept(len(x)), -(-len(x) // CHUNK)
        places = np.empty(kept, np.int64)
        if kept:
            _largest(x, tops, kept, places)
            _write_places(places, chunks, into)
        return places

    def _places(self, data: np.ndarray, count: int) -> np.ndarray:
        chunks, kept = -(-count // CHUNK), self.kept(count)
        counts = data[: 4 * chunks].copy().view("<u4").astype(np.int64)
        if counts.sum() != kept:
            return NO_PLACES
        places = data[4 * chunks :].copy().view("<u2").astype(np.int64)
        places += np.repeat(np.arange(chunks) * CHUNK, counts)
        ascending = kept < 2 or bool((places[1:] > places[:-1]).all())
        return places if ascending and (not kept or places[-1] < count) else NO_PLACES


# fmt: off
class RandomK(Sparse, frozen=True):
    """Send one value of each of ceil(R n) parts, at a place that is drawn: no indices travel.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("randomk:0.01").nbytes(100_000)
        4008
    """

    name = "randomk"
    summary = "sends a random one of each 1 / share values, and no indices; the others wait"
    source = "Stich 2018, definition 2.1"
    draws = True
    summed = "float32"
    # fmt: on

    def head(self, count: int) -> int:
        return self.places_bytes(count)

    def places_bytes(self, count: int) -> int:
        return 8 if count else 0

    def _choose(
        self, x: np.ndarray, tops: np.ndarray, values: Given, into: np.ndarray
    ) -> np.ndarray:
        if not len(x):
            return NO_PLACES
        into[:] = np.array([mixed_seed(values.key, values.first)], "<u8").view(np.uint8)
        return self._places(into, len(x))

    def _places(self, data: np.ndarray, count: int) -> np.ndarray:
        places = np.empty(self.kept(count), np.int64)
        if count:
            _drawn(data.copy().view("<u8")[0], count, places)
        return places


class Chain(Codec, frozen=True):
    """A codec that sends some of the values, and another codec that encodes these.

    Example:
        >>> from shoal.codecs import codec_of
        >>> codec_of("topk:0.01+int:8").nbytes(100_000)
        3016
    """

    name = "+"
    summary = "CODEC+CODEC: the second one encodes the values that the first one sends"

    first: Sparse
    second: Codec

    @property
    def biased(self) -> bool:
        return True

    @property
    def largest(self) -> float:
        return self.second.largest

    @property
    def begins_at(self) -> int:
        return max(self.first.after, self.second.after)

    def nbytes(self, count: int) -> int:
        return self.first.places_bytes(count) + self.second.nbytes(self.first.kept(count))

    def _encode(self, values: Given, into: np.ndarray) -> int:
        return self.first.encode_with(self.second, values, into)

    def _undo(self, at: int, values: Given, into: np.ndarray) -> None:
        self.first._undo(at, values, into)

    def _decode(self, data: np.ndarray, into: np.ndarray) -> int:
        return self.first.decode_with(self.second, data, into)

    def __str__(self) -> str:
        return f"{self.first}+{self.second}"


def mixed_seed(key: np.uint64, first: np.uint64) -> int:
    """Return the seed of the places of a random choice."""
    return int(_seed(key, first))


@kernel
def _seed(key: Any, first: Any) -> Any:
    return mixed(key + mixed(first))


@kernel
def _added(values: Any, residual: Any, gain: Any, most: Any, x: Any, tops: Any) -> Any:
    """Compute x = values + gain * residual, which may be the residual, and look at each block.

    most:  the bits of the largest magnitude that can be encoded
    tops:  takes the bits of the largest magnitude of each group: a block's values at distances of
           RUN, so that loops are over neighbours, and become vector instructions
    """
    half = BLOCK // 2
    some, groups = np.empty(BLOCK, np.float32), np.empty(half, np.int32)
    for start in range(0, values.size, BLOCK):
        stop = min(values.size, start + BLOCK)
        left, count = part(residual, start, stop), stop - start
        if load(values[start:stop], left, gain, some[:count]) > most:
            return start
        some[count:] = 0
        _fold_bits(some[:half], some[half:], groups)
        size = half // 2
        while size >= RUN:
            _fold(groups[:size], groups[size : 2 * size])
            size //= 2
        x[start:stop] = some[:count]
        tops[start // BLOCK * RUN : start // BLOCK * RUN + RUN] = groups[:RUN]
    return -1


@kernel
def _fold_bits(one: Any, other: Any, tops: Any) -> None:
    for i in range(U(one.size)):
        first, second = np.int32(bits_of(one[i])), np.int32(bits_of(other[i]))
        tops[i] = max(np.int32(first & MAGNITUDE), np.int32(second & MAGNITUDE))


@kernel
def _fold(one: Any, other: Any) -> None:
    for i in range(U(one.size)):
        one[i] = max(one[i], other[i])


@kernel
def _kth(bits: Any, k: Any) -> Any:
    """Return the k-th largest of some non-negative int32, by three digits of 11, 10 and 10 bits."""
    found, left = np.int32(0), k
    counts = np.empty(2048, np.int64)
    mask = np.int32(0)
    for shift, width in ((20, 11), (10, 10), (0, 10)):
        size = 1 << width
        counts[:size] = 0
        for i in range(U(bits.size)):
            if np.int32(bits[i] & mask) == found:
                counts[np.int32(bits[i] >> np.int32(shift)) & np.int32(size - 1)] += 1
        digit: Any = size - 1
        while counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        found = np.int32(found | np.int32(np.int32(digit) << np.int32(shift)))
        mask = np.int32(mask | np.int32(np.int32(size - 1) << np.int32(shift)))
    return found


@kernel
def _reaching(x: Any, least: Any, tops: Any, start: Any, candidates: Any, found: Any) -> Any:
    """Add the places in a block of the values that reach `least`, in ascending order.

    Returns:
        The number of candidates then.
    """
    before = found
    for group in range(U(tops.size)):
        if tops[group] < least:
            continue
        for i in range(group, U(x.size), U(RUN)):
            if np.int32(bits_of(x[i]) & MAGNITUDE) >= least:
                at, place = found, np.int32(start + i)
                while at > before and candidates[at - 1] > place:
                    candidates[at] = candidates[at - 1]
                    at -= 1
                candidates[at] = place
                found += 1
    return found


@kernel
def _write_places(places: Any, chunks: Any, into: Any) -> None:
    """Write how many places are in each chunk, as 4 bytes, then each one's last 16 bits."""
    into[: 4 * chunks] = 0
    at = 4 * chunks
    counts = np.zeros(chunks, np.int64)
    for i in range(U(places.size)):
        place = places[i]
        counts[place // CHUNK] += 1
        into[at], into[at + 1] = np.uint8(place & 0xFF), np.uint8((place >> 8) & 0xFF)
        at += 2
    for i in range(U(chunks)):
        for byte in range(4):
            into[U(4) * i + U(byte)] = np.uint8((counts[i] >> (8 * byte)) & 0xFF)


@kernel
def _largest(x: Any, tops: Any, k: Any, places: Any) -> None:
    """Write the places of the k values of the largest magnitude, in ascending order.

    The k-th largest of the groups' largest values is not above the k-th largest value. So only
    values that reach it can be among the k largest: few more than k.
    """
    groups = x.size // BLOCK * RUN + min(RUN, x.size % BLOCK)
    least = _kth(tops[:groups], k) if k <= groups else np.int32(0)
    candidates = np.empty(x.size, np.int32)
    found: Any = 0
    for start in range(0, x.size, BLOCK):
        of = tops[start // BLOCK * RUN : start // BLOCK * RUN + RUN]
        some = x[start : min(x.size, start + BLOCK)]
        found = _reaching(some, least, of, start, candidates, found)
    sizes = np.empty(found, np.int32)
    for i in range(U(found)):
        sizes[i] = bits_of(x[candidates[i]]) & MAGNITUDE
    last = _kth(sizes, k)
    equal: Any = k
    for i in range(U(found)):
        equal -= sizes[i] > last
    at = 0
    for i in range(U(found)):
        if sizes[i] > last or (sizes[i] == last and equal > 0):
            equal -= sizes[i] == last
            places[at] = candidates[i]
            at += 1


@kernel
def _drawn(seed: Any, count: Any, places: Any) -> None:
    """Write a place in each of as many parts of `count` values."""
    k = places.size
    for i in range(U(k)):
        start, stop = np.int64(i) * count // k, (np.int64(i) + 1) * count // k
        chance = mixed(seed + i) >> U(32)
        places[i] = start + np.int64((chance * U(stop - start)) >> U(32))


@kernel
def _scatter(chosen: Any, places: Any, into: Any) -> Any:
    for i in range(U(chosen.size)):
        if np.int32(bits_of(F(chosen[i])) & MAGNITUDE) >= INFINITE:
            return places[i]
        into[places[i]] = chosen[i]
    return -1
