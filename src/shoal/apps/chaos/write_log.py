"""Marks: each push adds 1 to a key of its own, and what its sender knows of it is in a file.

A sender writes a key down before it sends it, and again when it is acknowledged. So whoever is
killed leaves behind what must be in the table (acknowledged: 1), what may be (intended: 0 or 1),
and by that what must not (any other key).
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

import msgspec
import torch

from shoal.client.client import Client
from shoal.errors import RequestTimeout, SyncTimeout
from shoal.tables.spec import Access, TableSpec, asp

TABLE = TableSpec(
    "chaos.marks", 0, (1,), kind="sparse", access=Access("sum"), consistency=asp(), merge="sum"
)
_RECORD = Struct("<cQ")
INTENDED, ACKNOWLEDGED = b"i", b"a"


class Marks:
    """One process's: keys that nobody else has."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        self._one = torch.ones(1, 1)
        self._next = int.from_bytes(os.urandom(4)) << 32
        self._file = os.open(
            folder / f"{self._next:016x}.marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        client.create_table(TABLE)

    def push(self) -> None:
        """Another, waited for."""
        self._next += 1
        self._write(INTENDED)
        key = torch.tensor([self._next], dtype=torch.uint64)
        try:
            self._client.push(TABLE.name, self._one, key).wait()
        except (RequestTimeout, SyncTimeout):
            return  # it stays intended
        self._write(ACKNOWLEDGED)

    def _write(self, what: bytes) -> None:
        os.write(self._file, _RECORD.pack(what, self._next))


class Verdict(msgspec.Struct, frozen=True):
    """What became of all pushes.

    lost:      acknowledged, and not in the table
    doubled:   acknowledged, and in it more often than once
    strange:   in it though nobody has intended it, or more often than intended
    """

    intended: int
    acknowledged: int
    lost: int
    doubled: int
    strange: int


def judge(folder: Path, held: dict[int, float]) -> Verdict:
    """Compare what senders have written with what the table has."""
    known: dict[bytes, set[int]] = {INTENDED: set(), ACKNOWLEDGED: set()}
    for path in folder.glob("*.marks"):
        data = path.read_bytes()
        for what, key in _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]):
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
