"""Entries of processes that fail."""

from errno import ENOSPC
from pathlib import Path

from shoal.errors import InvalidValue


def fails(counter: str, times: int, how: str) -> None:
    """Fail, so many times."""
    path = Path(counter)
    path.write_text((path.read_text() if path.exists() else "") + "x")
    if len(path.read_text()) > times:
        return
    match how:
        case "error":
            raise OSError(ENOSPC, "no space left")
        case "status":
            raise SystemExit(3)
        case "option":
            raise InvalidValue("lr has to be positive")
