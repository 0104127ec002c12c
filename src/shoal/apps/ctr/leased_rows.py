"""The rows of all workers, read once into files that workers map, for runs that lease batches."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from shoal.apps.ctr.readers import Batch
from shoal.apps.ctr.shuffling import taken
from shoal.apps.ctr.spec import CtrSpec
from shoal.storage.files import make_folder

PARTS = {  # of a batch, with their types
    "labels": np.float32,
    "offsets": np.int64,
    "keys": np.uint64,
    "values": np.float32,
    "fields": np.int64,
}


def write_rows(folder: Path, batches: Iterable[Batch]) -> None:
    """Write the rows of batches, in their order, to a folder that `LeasedRows` reads."""
    make_folder(folder)
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in PARTS}
        keys = 0
        for batch in batches:
            for name in PARTS:
                part = getattr(batch, name)
                files[name].write((part + keys if name == "offsets" else part).data)
            keys += len(batch.keys)


class LeasedRows:
    """Batches of rows, by epoch and number, the same for all workers.

    With `spec.shuffle` each epoch has a random order of all rows, drawn from the seed. The last
    batch of an epoch may have fewer rows than the others.

    folder:  the folder that `write_rows` has written
    """

    def __init__(self, folder: Path, spec: CtrSpec) -> None:
        parts = {name: _mapped(folder / name, np.dtype(kind)) for name, kind in PARTS.items()}
        self._rows = Batch(**parts)
        self._spec = spec
        self._epoch, self._order = -1, np.arange(0)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self._rows) // self._spec.batch_size)

    def batch(self, epoch: int, number: int) -> Batch:
        """Return a batch of an epoch."""
        if epoch != self._epoch:
            rows = len(self._rows)
            random = np.random.default_rng((self._spec.seed, epoch))
            self._order = random.permutation(rows) if self._spec.shuffle else np.arange(rows)
            self._epoch = epoch
        first = number * self._spec.batch_size
        return taken(self._rows, self._order[first : first + self._spec.batch_size])


def _mapped(path: Path, kind: np.dtype[Any]) -> np.ndarray:
    """Return the values in a file, as if writable, for the kernel that copies them."""
    if not path.stat().st_size:
        return np.empty(0, kind)
    return np.asarray(np.memmap(path, kind, "c"))
