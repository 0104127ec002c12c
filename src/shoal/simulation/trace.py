"""The event trace of a simulated cluster: lines, and a hash of all of them."""

from __future__ import annotations

from hashlib import blake2b


class Trace:
    """Two runs of a seed are the same if their hashes are.

    lines:  all of them, if they are kept
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

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()
