"""Driver: who does a worker's socket work, and when.

One lock owns the machine. A caller that waits does the socket work itself, so that a blocking
request costs no thread hand-off; a pump thread takes over while requests are under way and nobody
waits, and sends heartbeats while the caller computes (DESIGN section 4, rule 8).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from time import monotonic
from typing import Any

from shoal.errors import RequestTimeout, ShoalError, UsageError, WaitsForever
from shoal.node.node import Node
from shoal.protocol.machine import Asked, Note, Outcome
from shoal.protocol.requests import Cancel
from shoal.protocol.worker.machine import WorkerMachine
from shoal.transport import Identity

log = logging.getLogger("shoal.client")

PUMP_AFTER_S = 0.0005  # a request that nobody waits for is left to its caller for this long

Finish = Callable[[], Any]


class Future:
    """A request under way. `wait` drives the exchange.

    Done callbacks run on the thread that drives it, and may use the client. What they raise is
    logged.
    """

    __slots__ = ("_callbacks", "_driver", "_finish", "_result", "outcome", "request_id")

    def __init__(self, driver: Driver, request_id: int, finish: Finish | None) -> None:
        self.request_id = request_id
        self.outcome: Outcome | None = None
        self._driver = driver
        self._finish = finish
        self._result: Any = None
        self._callbacks: list[Callable[[Future], None]] | None = None

    def done(self) -> bool:
        return self.outcome is not None

    def wait(self, timeout: float | None = None) -> Any:
        """What was pulled (None for pushes), once it is there.

        timeout: seconds; then RequestTimeout is raised and the request goes on. `cancel` ends it.
        Raises the request's own error: SyncTimeout, Refused, RoundClosed, WaitsForever ...
        """
        if self.outcome is None:
            self._driver.wait(self, timeout)
        return self.result()

    def result(self) -> Any:
        """What `wait` returns, of a request that is done."""
        if self.outcome is None:
            raise UsageError(f"request {self.request_id} is not done yet; wait() for it")
        if self.outcome.error is not None:
            raise self.outcome.error
        return self._result

    def exception(self) -> ShoalError | None:
        """The error of a request that is done."""
        return self.outcome.error if self.outcome is not None else None

    def cancel(self) -> bool:
        """Withdraw the request; its buffers are the caller's again. False if it was done."""
        if self.outcome is not None:
            return False
        self._driver.ask(Cancel(self.request_id)).wait()
        return True

    def add_done_callback(self, callback: Callable[[Future], None]) -> None:
        """Call `callback(future)` when it is done, or now if it is."""
        with self._driver.own():
            if self.outcome is None:
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        call_back(callback, self)

    def resolve(self, outcome: Outcome) -> None:
        """The driver says how the request ended."""
        if outcome.error is None and self._finish is not None:
            try:
                self._result = self._finish()
            except ShoalError as error:
                outcome = Outcome(error=error)
            except Exception as error:
                outcome = Outcome(error=UsageError(f"{type(error).__name__}: {error}"))
        self.outcome = outcome
        if self._callbacks:
            self._driver.due.extend((callback, self) for callback in self._callbacks)
            self._callbacks = None


def call_back(callback: Callable[[Future], None], future: Future) -> None:
    """Nobody who drives is stopped by what a callback raises."""
    try:
        callback(future)
    except Exception:
        log.exception("a done callback of request %d raised", future.request_id)


class Driver:
    """A worker's machine, the node that it runs in, and the threads that may drive it."""

    def __init__(self, machine: WorkerMachine, me: Identity, scheduler: str) -> None:
        self.machine = machine
        self.node = Node(
            machine, me, scheduler=scheduler, resolve=self._resolved, on_note=self._noted
        )
        self.on_note: Callable[[Note], None] = lambda note: None
        self.due: deque[tuple[Callable[[Future], None], Future]] = deque()  # callbacks to be made
        self._futures: dict[int, Future] = {}
        self._ids = count(1)
        self._lock = threading.Lock()
        self._turnstile = threading.Lock()
        self._visitors = 0
        self._drivers = 0  # threads that wait for a future; changed by the lock's owner only
        self._driving = False  # one of them polls
        # The others, first to last: each with what wakes it.
        self._asleep: list[tuple[Future, threading.Event]] = []
        self._closed = False
        self._pump = threading.Thread(target=self._run_pump, name="shoal-pump", daemon=True)
        self._pump_wake = threading.Event()

    # ------------------------------------------------------------------ the public side

    def ask(self, request: object, finish: Finish | None = None, pump: bool = False) -> Future:
        """Ask the machine; with `pump` its answer is worked for even where nobody waits."""
        future = Future(self, next(self._ids), finish)
        self._enter()
        try:
            self._submit(future, request)
        finally:
            self._release()
        if pump and not self._drivers:
            self._pump_wake.set()
        return future

    def run(self, request: object, finish: Finish | None = None) -> Future:
        """Ask and wait: the lock is taken once, and nobody else is told that there is work.

        Returns the future of what is done.
        """
        future = Future(self, next(self._ids), finish)
        self._enter()
        self._drivers += 1
        try:
            self._submit(future, request)
            self._drive(future, None)
        except KeyboardInterrupt:  # nobody has a handle on it
            if future.outcome is None and not self.node.stopped:
                self.node.handle(Asked(next(self._ids), Cancel(future.request_id)))
            raise
        finally:
            self._leave()
        return future

    def wait(self, future: Future, timeout: float | None) -> None:
        """Drive until the future is done."""
        self._enter()
        self._drivers += 1
        try:
            self._drive(future, timeout)
        finally:
            self._leave()

    @contextmanager
    def own(self) -> Iterator[None]:
        """Nobody else touches machine and node meanwhile."""
        self._enter()
        try:
            yield
        finally:
            self._release()

    def start_pump(self) -> None:
        self._pump.start()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Send what waits to be sent, and disconnect."""
        self._closed = True
        with self.own():
            self._fail_all(UsageError("this client was closed"))
            self.node.linger()
            self.node.close()
        self._pump_wake.set()
        if self._pump.is_alive() and threading.current_thread() is not self._pump:
            self._pump.join(timeout=2)

    # ------------------------------------------------------------------ driving

    def _submit(self, future: Future, request: object) -> None:
        self._futures[future.request_id] = future
        if self.node.stopped:
            error = self.node.error or UsageError("this client is closed")
            self._resolved(future.request_id, Outcome(error=error))
        else:
            try:
                self.node.handle(Asked(future.request_id, request))
            except BaseException:
                self._futures.pop(future.request_id, None)
                raise

    def _drive(self, future: Future, timeout: float | None) -> None:
        if future.outcome is not None:
            return
        until = monotonic() + timeout if timeout is not None else None
        reason = self.machine.hopeless(future.request_id)
        if reason:
            raise WaitsForever(reason)
        while future.outcome is None:
            left = 3600.0 if until is None else until - monotonic()
            if left <= 0:
                raise RequestTimeout(
                    f"not done within {timeout:g} s; the request goes on (cancel() ends "
                    f"it): {_shown(self.machine.waiting())}"
                )
            if self._driving:
                self._sleep(future, left)
                continue
            self._poll(left)

    def _sleep(self, future: Future, limit_s: float) -> None:
        """While another thread drives, until it is done with this or leaves its place."""
        woken = threading.Event()
        place = future, woken
        self._asleep.append(place)
        self._release()
        try:
            woken.wait(limit_s)
        finally:
            self._insist(self._enter)
            self._asleep.remove(place)

    def _poll(self, limit_s: float) -> None:
        """Poll once with the lock held, let visitors in, make the calls that are due.

        Visitors do not take the place: they leave their request and sleep. A callback may.
        """
        self._driving = True
        try:
            self.node.poll(limit_s)
            if self.node.stopped:
                self._fail_all(self.node.error or UsageError("the run has ended"))
            if self._visitors:
                self._lock.release()
                try:
                    with self._turnstile:  # until the visitor has the lock
                        pass
                finally:
                    self._insist(self._lock.acquire)
        finally:
            self._driving = False
        if self.due:
            try:
                self._release()
            finally:
                self._insist(self._enter)

    def _enter(self) -> None:
        """Own the machine; a driver that polls is woken to let us in."""
        if not self._lock.acquire(blocking=False):
            with self._turnstile:
                self._visitors += 1
                try:
                    if not self.node.stopped:
                        self.node.wake()
                    self._lock.acquire()
                finally:
                    self._visitors -= 1

    def _insist(self, own: Callable[[], object]) -> None:
        """Own the machine again, also when Ctrl-C comes meanwhile: the caller will let go of it."""
        try:
            own()
        except BaseException:
            self._lock.acquire()
            raise

    def _leave(self) -> None:
        self._drivers -= 1
        if not self._driving:
            self._wake_next()
        left_over = self._futures and not self._drivers
        self._release()
        if left_over:
            self._pump_wake.set()

    def _wake_next(self) -> None:
        """The place is free: who has slept longest drives from here on."""
        if self._asleep:
            self._asleep[0][1].set()

    def _release(self) -> None:
        """Let go of the machine, then make the calls that are due."""
        self._lock.release()
        while self.due:
            try:
                due = self.due.popleft()
            except IndexError:  # another thread was quicker
                return
            call_back(*due)

    def _resolved(self, request_id: int, outcome: Outcome) -> None:
        future = self._futures.pop(request_id, None)
        if future is not None:
            future.resolve(outcome)
            for waited_for, woken in self._asleep:
                if waited_for is future:
                    woken.set()

    def _fail_all(self, error: ShoalError) -> None:
        for request_id in list(self._futures):
            self._resolved(request_id, Outcome(error=error))

    def _noted(self, note: Note) -> None:
        self.on_note(note)

    # ------------------------------------------------------------------ the pump

    def _run_pump(self) -> None:
        """Heartbeats while the caller computes; progress while nobody waits."""
        while not self._over():
            left_alone = bool(self._futures) and not self._drivers
            if left_alone:
                idle_s = PUMP_AFTER_S
            elif self._drivers:
                idle_s = 0.05
            else:
                due = self.machine.deadline()
                idle_s = 0.5 if due is None else max(0.0, min(0.5, due - monotonic()))
            self._pump_wake.wait(idle_s)
            self._pump_wake.clear()
            if self._drivers or (self._futures and not left_alone):
                continue  # its caller may be about to wait for it
            with self.own():
                if not self._over() and not self._driving:
                    self._pump_once()

    def _pump_once(self) -> None:
        try:
            self._poll(0.02 if self._futures else 0.0)
        except Exception as error:  # better to say so everywhere than to wait for ever
            log.exception("the client's pump failed")
            self.node.stopped = True
            self.node.error = UsageError(f"the client failed: {type(error).__name__}: {error}")
            self._fail_all(self.node.error)
        finally:
            self._wake_next()

    def _over(self) -> bool:
        return self._closed or self.node.stopped


def _shown(waiting: list[tuple[str, str]]) -> str:
    return "; ".join(f"{what}: {why}" for what, why in waiting[:4]) or "nothing is unanswered"
