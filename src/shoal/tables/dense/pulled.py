"""PulledFragments: encoded rows, kept until their next update for all workers that pull them."""

from __future__ import annotations

from struct import pack

import numpy as np
from torch import Tensor

from shoal.errors import AccessFailed, NotFinite
from shoal.keys import KeyRange, digest64
from shoal.tables.encoding import Encoding, FragmentValues
from shoal.tables.spec import TableSpec
from shoal.tables.staging import data_of


class PulledFragments:
    """The fragments of a shard as its codec for pulls encodes them."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._encoding = Encoding(spec, pulled=True)
        self._kept: dict[KeyRange, tuple[int, memoryview]] = {}  # by rows: version, encoded

    def has(self, rows: KeyRange, version: int) -> bool:
        """Return whether rows are encoded in this version."""
        kept = self._kept.get(rows)
        return kept is not None and kept[0] == version

    def read(self, rows: KeyRange, values: Tensor, version: int, updates: int) -> memoryview:
        """Return rows of one fragment, encoded.

        Random bits follow from the number of updates, which replicas and checkpoints have: so all
        workers get the same, and a resumed run the same again.

        Raises:
            AccessFailed: a value cannot be encoded.
        """
        if self.has(rows, version):
            return self._kept[rows][1]
        [fragment] = self._encoding.cut(rows)
        into = np.empty(fragment.nbytes, np.uint8)
        told = pack("<2q", rows.start, updates) + self._spec.name.encode()
        key = digest64(told)
        data = np.frombuffer(data_of(values), np.uint8)
        try:
            self._encoding.encode(FragmentValues(fragment, data, into), key)
        except NotFinite as error:
            raise AccessFailed(f"table {self._spec.name!r}, rows {rows}: {error}") from None
        if len(self._kept) > 2 * len(self._spec.fragments()):  # workers pull rows of many kinds
            self._kept.clear()
        self._kept[rows] = version, into.data
        return into.data
