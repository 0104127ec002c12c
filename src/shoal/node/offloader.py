"""Offloader: does a machine's work in threads, outside of the node's loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock

from shoal.errors import ShoalError
from shoal.protocol.machine import Offload, Offloaded

THREADS = 2


class Offloader:
    """The threads that do the work, and its results.

    Args:
        wake: the function that makes the loop call `finished`; not called after `close`.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._threads: ThreadPoolExecutor | None = None
        self._done: deque[tuple[int, Future[object]]] = deque()
        self._lock = Lock()  # a thread must not wake a node that has closed
        self._closed = False

    def start(self, effect: Offload) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "shoal-offload")
        future = self._threads.submit(effect.work)
        future.add_done_callback(partial(self._end, effect.ticket))

    def _end(self, ticket: int, future: Future[object]) -> None:
        with self._lock:
            if not self._closed:
                self._done.append((ticket, future))
                self._wake()

    def finished(self) -> Iterator[Offloaded]:
        """Yield the results since the last call; raise an error that is no `ShoalError`."""
        while self._done:
            ticket, future = self._done.popleft()
            try:
                yield Offloaded(ticket, future.result())
            except ShoalError as error:
                yield Offloaded(ticket, error=error)

    def close(self) -> None:
        """Cancel the work that has not begun; ignore the results of the rest."""
        with self._lock:
            self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
