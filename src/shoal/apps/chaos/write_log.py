"""The log of writes: each push adds 1 to a key of its own, and its sender logs the key.

A sender logs a key before it pushes, and again when the push is acknowledged. After a kill the logs
say what the table must have (acknowledged: 1), what it may have (intended: 0 or 1), and what it
must not have (any other key).
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

import msgspec
import torch

from shoal.client.client import Client
from shoal.errors import RequestTimeout, SyncTimeout
from shoal.storage.files import damaged, read_whole
from shoal.tables.consistency import asp
from shoal.tables.spec import Access, TableSpec

TABLE = TableSpec(
    "chaos.writes", 0, (1,), kind="sparse", access=Access("sum"), consistency=asp(), merge="sum"
)
_RECORD = Struct("<cQ")
INTENDED, ACKNOWLEDGED = b"i", b"a"


class WriteLog:
    """The log of one process, whose keys no other process has."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        self._one = torch.ones(1, 1)
        self._next = int.from_bytes(os.urandom(4)) << 32
        self._file = os.open(
            folder / f"{self._next:016x}.writes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        client.create_table(TABLE)

    def push(self) -> None:
        """Push one more key, and wait for the acknowledgement."""
        self._next += 1
        self._write(INTENDED)
        key = torch.tensor([self._next], dtype=torch.uint64)
        try:
            self._client.push(TABLE.name, self._one, key).wait()
        except (RequestTimeout, SyncTimeout):
            return  # the push stays intended
        self._write(ACKNOWLEDGED)

    def _write(self, what: bytes) -> None:
        os.write(self._file, _RECORD.pack(what, self._next))


class Verdict(msgspec.Struct, frozen=True):
    """The fate of all pushes.

    acknowledged_lost:      the acknowledged pushes that are not in the table
    acknowledged_doubled:   the acknowledged pushes that were applied more than once
    strange:                the other pushes that were applied, without being intended or too often
    """

    intended: int
    acknowledged: int
    acknowledged_lost: int
    acknowledged_doubled: int
    strange: int


def judge(folder: Path, held: dict[int, float]) -> Verdict:
    """Compare the logs of the senders with the counts `held` in the table.

    Raises:
        DataCorrupt: the log of a sender is damaged
    """
    known: dict[bytes, set[int]] = {INTENDED: set(), ACKNOWLEDGED: set()}
    for path in folder.glob("*.writes"):
        data = read_whole(path)
        for what, key in _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]):
            if what not in known:
                raise damaged(path, f"it has a record of kind {what!r}")
            known[what].add(key)
    intended, acknowledged = known[INTENDED], known[ACKNOWLEDGED]
    strange = [
        key
        for key, times in held.items()
        if key not in acknowledged and times not in ((0.0, 1.0) if key in intended else (0.0,))
    ]
    return Verdict(
        len(intended),
        len(acknowledged),
        sum(held.get(key, 0.0) < 1 for key in acknowledged),
        sum(held.get(key, 0.0) > 1 for key in acknowledged),
        len(strange),
    )
