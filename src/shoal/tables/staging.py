"""Staging: reusable memory for pushes in flight, and the keys and values in it."""

from __future__ import annotations

import mmap
import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.keys import KeyRange
from shoal.tables.access import Prepared

ALIGN = 64
POOLED_PER_SIZE = 8
LARGE_BYTES = 1 << 25  # from here on memory is mapped, in large pages


class Staging:
    """A pool of memory for pushes in flight: fresh buffers would page-fault on every message.

    Sizes are powers of two, so that pushes of varying sizes share a few buffers. The part of a
    buffer that a push does not fill is never touched, and takes no physical memory.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def take(self, nbytes: int) -> np.ndarray:
        size = 1 << (max(nbytes, 1) - 1).bit_length()
        free = self._free[size]
        return free.pop() if free else aligned(size)

    def give(self, memory: np.ndarray) -> None:
        free = self._free[memory.nbytes]
        if len(free) < POOLED_PER_SIZE:
            free.append(memory)


def aligned(nbytes: int) -> np.ndarray:
    """Return fresh memory aligned to a cache line: unaligned copies can be four times slower."""
    memory = np.empty(nbytes + ALIGN, np.uint8)
    start = -memory.ctypes.data % ALIGN
    return memory[start : start + nbytes]


def in_large_pages(nbytes: int) -> np.ndarray:
    """Return fresh memory for rows, in large pages if it is large: they take less time to touch."""
    if nbytes < LARGE_BYTES:
        return aligned(nbytes)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class Shard(ABC):
    """The base class of the shards of all kinds.

    syncing:        whether the rows are still coming from another replica
    lent:           whether another thread works on the rows
    new_row_bytes:  the most bytes that a new row takes; 0 if pushes create none, or with a bound
    """

    syncing = lent = False
    new_row_bytes = 0

    @property
    def nbytes(self) -> int:
        """The most bytes that the shard takes, with staging memory; 0 if that is unknown."""
        return 0

    @property
    def copy_bytes(self) -> int:
        """The most bytes that a copy of the state moves; 0 if only the loop's thread may copy."""
        return self.nbytes

    def new_keys(self, pushes: Sequence[Any]) -> int:
        """Return the number of rows that these pushes would create together."""
        return 0

    def only_read(self, staged: Any) -> None:  # noqa: B027
        """Mark a pull as one that creates no rows for absent keys."""

    @property
    def evicted(self) -> int:
        """The number of evicted rows."""
        return 0

    def retain(self, staged: Any) -> None:
        """Keep the memory of a push after it is applied, because it is sent to other servers."""
        staged.retained = True

    def let_go(self, staged: Any) -> None:
        """Release the memory of a retained push, because the other servers have it."""
        staged.retained = False
        self.release(staged)

    def lend(self, on: bool) -> None:
        """Lend the rows to another thread, or take them back.

        Staging memory that is released meanwhile goes back to the pool at the end.
        """
        self.lent = on
        if on:
            self._released: list[Any] = []
        else:
            for staged in self._released:
                self.release(staged)

    def keep_keys(self, staged: Any) -> None:
        """Keep the keys of a push after it is applied, because a pull reads them."""
        staged.kept = True

    def sync(self, on: bool) -> None:
        """Record whether rows are still coming from another replica."""
        self.syncing = on

    def keep(self, clients: Collection[int]) -> None:  # noqa: B027
        """Forget the state of all workers but `clients`, if the shard has any."""

    def changes(self) -> dict[str, Tensor] | None:
        """Return the changes since the last checkpoint; None if all rows have to be written."""
        return None

    @abstractmethod
    def release(self, staged: Any) -> None:
        """Give the memory of a push or a pull back to the pool."""


class EncodedValues:
    """The encoded values of a push, one fragment behind the other.

    Attributes:
        memory: the memory that they are in, which is larger.
        data: the encoded values.
        sizes: the bytes of each encoded fragment.
    """

    __slots__ = ("data", "memory", "sizes")

    def __init__(self, memory: np.ndarray, sizes: tuple[int, ...]) -> None:
        self.memory = memory
        self.sizes = sizes
        self.data: memoryview = memory[: sum(sizes)].data


class StagedRows:
    """Staged values of a push, or keys of a pull.

    Attributes:
        rows: the range that the push covers.
        keys: the keys, (n,) int64, or None; strictly increasing within `rows` unless `problem()`.
        values: the values, (n, width); in a whole state, those of each slot follow.
        slots: the number of slots of a whole state; 0 for the rows alone.
        views: the destinations of the payload: of encoded values, the values once they are decoded.
        encoded: the encoded values, if they come so.
        loan: the loan of the sender's memory, if the values are there: they cannot be written to.
    """

    __slots__ = (
        "_memory",
        "encoded",
        "kept",
        "keys",
        "loan",
        "nbytes",
        "prepared",
        "retained",
        "rows",
        "slots",
        "values",
        "views",
    )

    def __init__(
        self,
        rows: KeyRange,
        memory: np.ndarray,
        keys: int,
        values_bytes: int,
        dtype: torch.dtype,
        width: int,
        slots: int = 0,
    ) -> None:
        self.rows = rows
        self.slots = slots
        self.kept = False  # a pull reads the same keys after this is applied
        self.retained = False  # the memory is also sent to other servers
        self.loan: Any = None
        self.encoded: EncodedValues | None = None
        self.prepared: list[tuple[int, KeyRange, Prepared | None]] | None = None  # of whole rows
        self._memory = memory
        self.nbytes = memory.nbytes  # of all the memory
        keys_bytes = 0 if keys < 0 else 8 * keys
        start = -(-keys_bytes // ALIGN) * ALIGN
        self.keys: Tensor | None = None
        self.views: list[memoryview] = []
        if keys >= 0:
            part = memory[:keys_bytes]
            self.keys = torch.from_numpy(part.view(np.int64))
            self.views.append(part.data)
        part = memory[start : start + values_bytes]
        self.values: Tensor = torch.empty((0, width), dtype=dtype)
        if values_bytes:
            self.values = torch.from_numpy(part).view(dtype).view(-1, width)
            self.views.append(part.data)

    def borrowed(self, view: memoryview, loan: Any) -> StagedRows:
        """Return a push of the same whole rows, with its values in the sender's memory."""
        other = copy(self)
        other.values = tensor_in(view, self.values.dtype).view(self.values.shape)
        other.views, other.nbytes, other.prepared = [view], view.nbytes, None
        other.loan = loan
        return other

    def own(self) -> None:
        """Copy values that are in the sender's memory."""
        if self.loan is not None:
            self._memory = aligned(self.nbytes)
            self.views = [self._memory.data]
            self.views[0][:] = data_of(self.values)
            self.values = tensor_in(self.views[0], self.values.dtype).view(self.values.shape)
            self.loan = None

    def comes_encoded(self, memory: np.ndarray, sizes: Sequence[int]) -> None:
        """Receive encoded values in other memory."""
        self.encoded = EncodedValues(memory, tuple(sizes))
        self.views = [self.encoded.data]

    def is_decoded(self) -> None:
        """Note that the values are decoded now."""
        self.views = [data_of(self.values)]

    def states(self) -> Sequence[Tensor]:
        """Return the values of the rows and of each of their slots, in a whole state."""
        return self.values.chunk(1 + self.slots)

    def problem(self) -> str:
        """Return why the keys are invalid; empty if they are valid."""
        keys = self.keys
        if keys is None or not len(keys):
            return ""
        if int(keys[0]) < self.rows.start or int(keys[-1]) >= self.rows.stop:
            return f"keys outside the named range {self.rows}"
        if len(keys) > 1 and not bool((keys[1:] > keys[:-1]).all()):
            return "keys are not strictly increasing"
        return ""


class Merged(msgspec.Struct, eq=False):
    """The merged pushes of a round, for some rows.

    Attributes:
        keys: the keys, (n,) int64 or uint64, or None for all of `rows`.
        values: the values, (n, width).
        lr: the learning rate in place of the schedule's.
    """

    rows: KeyRange
    keys: Tensor | None
    values: Tensor
    lr: float | None

    @property
    def views(self) -> tuple[memoryview, ...]:
        """The bytes of the keys, if there are any, and of the values."""
        parts = (self.values,) if self.keys is None else (self.keys, self.values)
        return tuple(data_of(each.contiguous()) for each in parts)


def side_by_side(updates: list[Merged]) -> list[Merged]:
    """Return the updates, joined where their rows and memory are adjacent."""
    joined: list[Merged] = []
    for each in updates:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.keys is None
            and each.keys is None
            and last.rows.stop == each.rows.start
            and last.lr == each.lr
            and _end(last.values) == each.values.data_ptr()
        ):
            shape = (len(last.values) + len(each.values), each.values.shape[1])
            values = last.values.as_strided(shape, last.values.stride())
            joined[-1] = Merged(KeyRange(last.rows.start, each.rows.stop), None, values, each.lr)
        else:
            joined.append(each)
    return joined


def _end(values: Tensor) -> int:
    return values.data_ptr() + values.nbytes


def tensor_in(memory: memoryview, dtype: torch.dtype) -> Tensor:
    """Return a tensor of memory that may be read-only: it must not be written to."""
    _take_warning()
    return torch.frombuffer(memory, dtype=dtype)


@cache
def _take_warning() -> None:
    """Let torch say unheard, once, that it knows no read-only tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)


def data_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor."""
    data: memoryview = tensor.view(-1).view(torch.uint8).numpy().data
    return data


class StreamedRows(msgspec.Struct, eq=False):
    """A push of whole rows that is applied while it arrives, one fragment at a time.

    Attributes:
        values: the values, (n, width), of the largest fragment.
        views: a destination for each fragment; all share the memory of `values`.
        pieces: the fragment's number, its rows and their prepared update, if any, for each view.
    """

    rows: KeyRange
    values: Tensor
    views: list[memoryview]
    pieces: list[tuple[int, KeyRange, Prepared | None]]
    kept: bool = False
    keys: ClassVar[None] = None  # all of its rows
    encoded: ClassVar[None] = None

    def problem(self) -> str:
        return ""
