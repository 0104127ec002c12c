"""Differences: what has changed in the fragments of a table since others got them, encoded.

The values that others have are the reference. An encoded difference leads from one reference to the
next, and says which by their names: a reader that has another one takes the next one whole. A name
follows from what the reference consists of: equal names are equal values, also after a server has
begun anew from a checkpoint.
"""

from __future__ import annotations

from struct import pack, unpack
from typing import NamedTuple

import numpy as np
from torch import Tensor

from shoal.errors import NotFinite
from shoal.keys import KeyRange, digest64
from shoal.tables.encoding import Encoding, Fragment, FragmentValues
from shoal.tables.spec import HEAD_BYTES, ITEM_SIZES, TableSpec
from shoal.tables.staging import data_of

NO_NAME = -1


class Names(NamedTuple):
    """The names of the reference that a difference leads from, and of the one that it leads to.

    The first is NO_NAME where there is no difference.
    """

    before: int
    after: int

    @classmethod
    def of(cls, data: memoryview) -> Names:
        """Return the names at the beginning of some bytes."""
        return cls(*unpack("<2q", data[:HEAD_BYTES]))


class Differences:
    """How the fragments of a table are encoded as differences, and how references are sent whole.

    Args:
        spec: the table, which has a codec of differences.

    Raises:
        UnknownName, InvalidValue: there is no such codec.

    Example:
        >>> from shoal.tables.consistency import bsp
        >>> how = {"consistency": bsp(), "server_codec": "delta:qsgd:4"}
        >>> table = TableSpec("w", 4096, fragment_rows=2048, **how)
        >>> [fragment.nbytes for fragment in Differences(table).cut(KeyRange(0, 4096))]
        [1056, 1056]
    """

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._encoding = Encoding(spec, pulled=True)

    def cut(self, rows: KeyRange) -> list[Fragment]:
        """Return the fragments that have some of the rows, with the bytes of their differences.

        A fragment whose difference is not fewer bytes has no pieces, and is sent as it is.
        """
        return [self._with_head(fragment) for fragment in self._encoding.cut(rows)]

    def _with_head(self, fragment: Fragment) -> Fragment:
        raw = self.raw_bytes(fragment)
        if not fragment.pieces or fragment.nbytes + HEAD_BYTES >= raw:
            return fragment._replace(pieces=(), nbytes=raw)
        return fragment._replace(nbytes=fragment.nbytes + HEAD_BYTES)

    def raw_bytes(self, fragment: Fragment) -> int:
        """Return the bytes of the values of a fragment."""
        return fragment.length * ITEM_SIZES[self._spec.dtype]

    def whole_bytes(self, fragment: Fragment) -> int:
        """Return the bytes of a reference that is sent whole."""
        return self.raw_bytes(fragment) + (HEAD_BYTES if fragment.pieces else 0)

    # ------------------------------------------------------------------ servers

    def encode(
        self, fragment: Fragment, values: Tensor, reference: Tensor, name: int, key: int
    ) -> np.ndarray | None:
        """Encode the difference of values to a reference, and move the reference by it.

        Args:
            fragment: the fragment.
            values: its values, (length, width).
            reference: those of the reference, likewise; afterwards of the next one.
            name: the name of the reference.
            key: the key of the random bits.

        Returns:
            The difference, (fragment.nbytes,) uint8; None if it cannot be encoded because a value
            is NaN, infinite or too large. The reference has not moved then.
        """
        into = np.empty(fragment.nbytes, np.uint8)
        data, old = (np.frombuffer(data_of(each), np.uint8) for each in (values, reference))
        body = into[HEAD_BYTES:]
        try:
            self._encoding.encode(FragmentValues(fragment, data, body, reference=old), key)
        except NotFinite:
            return None
        names = Names(name, digest64(pack("<q", name) + body.tobytes()) >> 1)
        into[:HEAD_BYTES] = np.frombuffer(pack("<2q", *names), np.uint8)
        self._encoding.decode_fragment(fragment, body, reference.view(-1), adds=True)
        return into

    # ------------------------------------------------------------------ workers

    def decode(self, fragment: Fragment, data: memoryview, reference: Tensor) -> None:
        """Move a reference by an encoded difference.

        Raises:
            BadEncoding: it is none of this fragment.
        """
        body = np.frombuffer(data, np.uint8)[HEAD_BYTES:]
        self._encoding.decode_fragment(fragment, body, reference, adds=True)


def name_of(values: Tensor) -> int:
    """Return the name of a reference of these values that no difference has led to."""
    return digest64(bytes(data_of(values))) >> 1


def whole(values: Tensor, name: int) -> memoryview:
    """Return a copy of a reference with its name."""
    return memoryview(pack("<2q", NO_NAME, name) + bytes(data_of(values)))


def nothing(nbytes: int, name: int) -> memoryview:
    """Return what is sent in place of a difference where there is none."""
    return memoryview(pack("<2q", NO_NAME, name).ljust(nbytes, b"\0"))
