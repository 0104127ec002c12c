"""Poller: an epoll that spins for a moment before it sleeps."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic

TURN_S = 0.1  # for the work on the descriptors that are ready
SPIN_S = 0.0004  # how long to look for work before sleeping
SPIN_PENALTY_MAX = 64  # waits at most without spinning, after it was in vain
CROWDED_S = 1e-5  # a `sched_yield` that takes longer has let another thread run
CROWDED_WAITS = 8  # after so many crowded waits in a row this thread moves to another core
CROWDED_WAITS_MAX = 1 << 14

Ready = list[tuple[int, int]]


class Poller:
    """An epoll that spins before it sleeps.

    An answer to a small request arrives sooner than a sleeping core wakes up. After spinning in
    vain the next waits do not spin, twice as many each time, so that an idle process costs nothing.

    Two spinning processes that exchange messages can share one core forever while another is idle:
    to the kernel both look too busy to migrate, and every message costs two context switches. The
    process that detects it moves to another core. That may not help (every core is busy), so
    detection takes twice as long each time, and half as long after as many uncrowded waits.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._left: Ready = []
        self.register = self._epoll.register
        self.modify = self._epoll.modify
        self.unregister = self._epoll.unregister
        self.close = self._epoll.close
        self._skip = 0
        self._penalty = 1
        self._crowded = False  # whether the last waits were crowded
        self._alike = 0  # how many waits in a row agree with `_crowded`
        # It differs between processes, or two of them would change places.
        self._patience = self._patience_min = CROWDED_WAITS + os.getpid() % CROWDED_WAITS

    def turn(self, timeout_s: float, now: float) -> Iterator[tuple[int, int]]:
        """Yield the ready (file descriptor, event mask), until the work on them has taken TURN_S.

        The others come first in the next turn: timers, and the proof that the loop lives, do not
        wait for all that peers have sent.
        """
        ready = self.wait(timeout_s, now)
        until = monotonic() + TURN_S if len(ready) > 1 else inf
        for at, each in enumerate(ready):
            if at and monotonic() > until:
                self._left = ready[at:]
                return
            yield each

    def wait(self, timeout_s: float, now: float) -> Ready:
        """Return (file descriptor, event mask) of each that is ready, after `timeout_s` at most."""
        poll = self._epoll.poll
        if self._left:
            left, self._left = self._left, []
            return list({**dict(left), **dict(poll(0))}.items())
        if timeout_s <= 0 or self._skip > 0:
            self._skip -= 1
            return poll(timeout_s)
        until = now + min(SPIN_S, timeout_s)
        crowded = False
        while True:
            ready = poll(0)
            if ready:
                self._penalty = 1
                self._note(crowded)
                return ready
            if now >= until:
                break
            before = now
            os.sched_yield()
            now = monotonic()
            crowded = crowded or now - before > CROWDED_S
        self._skip = self._penalty
        self._penalty = min(2 * self._penalty, SPIN_PENALTY_MAX)
        return poll(timeout_s)

    def _note(self, crowded: bool) -> None:
        if crowded != self._crowded:
            self._crowded, self._alike = crowded, 0
        self._alike += 1
        if self._alike < self._patience:
            return
        self._alike = 0
        if crowded:
            self._patience = min(2 * self._patience, CROWDED_WAITS_MAX)
            self._move()
        else:
            self._patience = max(self._patience // 2, self._patience_min)

    def _move(self) -> None:
        with suppress(OSError):  # a sandbox may forbid it, or have no /proc
            allowed = os.sched_getaffinity(0)
            others = allowed - {_core()}
            if others:
                os.sched_setaffinity(0, others)
                os.sched_setaffinity(0, allowed)


def _core() -> int:
    """Return the core that this thread runs on."""
    fields = Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()
    return int(fields[36])
