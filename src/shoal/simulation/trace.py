"""The event trace of a simulated cluster: lines, and a hash of all of them."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from traceback import extract_tb

import msgspec

from shoal.protocol.machine import Note
from shoal.protocol.views import NodeId

NOTED = ("view", "closed", "released", "lost", "refused", "joined")
OMITTED = ("node", "launch", "whole", "servers", "workers", "group", "shards")  # fields of notes


class Trace:
    """The lines of a run, and their hash: two runs of a seed are the same if their hashes are.

    lines:  all lines, if they are kept
    """

    def __init__(self, keep_lines: bool) -> None:
        self.lines: list[str] = []
        self._keeps = keep_lines
        self._hash = blake2b(digest_size=16)

    def add(self, now: float, line: str) -> None:
        text = f"{now:10.6f}  {line}"
        self._hash.update(text.encode())
        if self._keeps:
            self.lines.append(text)

    def note(self, now: float, node: NodeId, note: Note) -> None:
        """Add a machine's note, if its kind is one of `NOTED`."""
        if note.kind in NOTED:
            fields = msgspec.structs.asdict(note).items()
            shown = " ".join(f"{value}" for name, value in fields if name not in OMITTED)
            self.add(now, f"{node} notes {note.kind}: {shown}")

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()


def place_of(error: Exception) -> str:
    """Return where an error was raised: the file in its folder, and the line."""
    frame = extract_tb(error.__traceback__)[-1]
    return f"{'/'.join(Path(frame.filename).parts[-2:])} line {frame.lineno}"
