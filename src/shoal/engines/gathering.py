"""Gathering: the processes that have not joined the run yet, and the code that they execute.

Before a script joins, imports and the preparation of data may take any time, and no limit ends a
process that an engine watches. Instead the user is told where the process is: on a signal
`faulthandler` writes the stack of the process to its log, even from within C code.
"""

from __future__ import annotations

import faulthandler
import logging
import re
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("shoal.engine")

UNLIMITED_S = 1e9  # the time in which a process that is watched has to join
SAY_S = 30.0  # before the first report; each later wait is twice the time since the start
STACK_SIGNAL = signal.SIGRTMIN + 9
STDERR = 2
FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
SHOAL = re.escape(f"{Path(__file__).parents[1]}/")
# code that is not the user's
OTHERS = re.compile(rf"/(site|dist)-packages/|/lib/python|^{SHOAL}|^<")


def show_stack_on_signal() -> None:
    """Make this process write its stack to its log on `STACK_SIGNAL`."""
    faulthandler.register(STACK_SIGNAL, STDERR, all_threads=False)


class Gathering:
    """The processes that have not joined.

    log_of:  the function that returns the log of a process by its name
    """

    def __init__(self, log_of: Callable[[str], Path]) -> None:
        self._log_of = log_of
        self._joined: set[str] = set()  # launches
        self._began: float | None = None
        self._say_at = 0.0
        self._asked: dict[str, int] = {}  # size of each log before its stack is written

    def joined(self, launch: str) -> None:
        """Note that the scheduler has admitted a process."""
        self._joined.add(launch)

    def look(
        self, living: Mapping[str, str], now: float, signal: Callable[[str, int], object]
    ) -> None:
        """Log which processes have not joined, whenever a report is due.

        living:  the launches of the processes by name
        signal:  the function that sends a signal to a process: (name, number)
        """
        if self._began is None:
            self._began, self._say_at = now, now + SAY_S
        if self._asked:
            self._say(now - self._began)
        if now < self._say_at:
            return
        self._say_at = now + 2 * (now - self._began)
        late = [n for n, at in living.items() if n != "scheduler" and at not in self._joined]
        for name in late:
            with suppress(OSError):
                self._asked[name] = self._log_of(name).stat().st_size
                signal(name, STACK_SIGNAL)

    def _say(self, seconds: float) -> None:
        places = {name: _place(self._log_of(name), size) for name, size in self._asked.items()}
        self._asked.clear()
        told = [f"{name} ({place})" if place else name for name, place in sorted(places.items())]
        log.warning("not in the run yet after %.0f s: %s", seconds, ", ".join(told))


def shows_stack(pid: int) -> bool:
    """Return whether a process handles the signal, which would end it if it has run `exec`."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (STACK_SIGNAL - 1) & 1)


def _place(path: Path, size: int) -> str:
    """Return the place of a process in the user's code, or else in any code; "" if unknown.

    It is read from the stack at the end of the process's log, from byte `size` on.
    """
    with suppress(OSError), path.open("rb") as file:
        file.seek(size)
        text = file.read(1 << 16).decode(errors="replace")
        frames = [match.groupdict() for match in FRAME.finditer(text)]
        users = [each for each in frames if not OTHERS.search(each["file"])]
        for each in (users or frames)[:1]:
            return f"at {each['file']}, line {each['line']}, in {each['name']}"
    return ""
