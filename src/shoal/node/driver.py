"""Driver: runs a worker's machine and its socket work on the threads that call it.

One lock owns the machine. A thread that waits for a future does the socket work itself, so that a
blocking request costs no thread hand-off. While no thread waits, a pump thread does it as long as
requests are under way, bytes are unsent, or the machine listens to other workers; it also sends
heartbeats while the caller computes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from time import monotonic
from weakref import WeakSet

from shoal.errors import RequestTimeout, ShoalError, UsageError, WaitsForever
from shoal.node.dropping import Drops
from shoal.node.future import Finish, Future, call_back
from shoal.node.node import Node
from shoal.protocol.machine import Asked, Outcome
from shoal.protocol.requests import Cancel
from shoal.protocol.worker.machine import WorkerMachine
from shoal.transport import Identity

log = logging.getLogger("shoal.client")

PUMP_AFTER_S = 0.0005  # the pump leaves a new request to its caller for this long


class Driver:
    """A worker's machine, the node that it runs in, and the threads that may drive it."""

    def __init__(
        self, machine: WorkerMachine, me: Identity, scheduler: str, drops: Drops | None = None
    ) -> None:
        self.machine = machine
        self.node = Node(machine, me, scheduler=scheduler, resolve=self._resolved, drops=drops)
        self.due: deque[tuple[Callable[[Future], None], Future]] = deque()  # callbacks to run
        self._futures: dict[int, Future] = {}
        self._ids = count(1)
        self._lock = threading.Lock()
        self._turnstile = threading.Lock()
        self._visitors = 0
        self._drivers = 0  # threads that wait for a future; changed by the lock's owner only
        self._driving = False  # whether one of them polls
        # The other waiting threads in order of arrival, each with its wake-up event.
        self._asleep: list[tuple[Future, threading.Event]] = []
        self.closed = False
        self._pump = threading.Thread(target=self._run_pump, name="shoal-pump", daemon=True)
        self._pump_wake = threading.Event()
        self._process = os.getpid()
        _drivers.add(self)

    # ------------------------------------------------------------------ the public side

    def ask(self, request: object, finish: Finish | None = None, pump: bool = False) -> Future:
        """Submit a request; with `pump`, wake the pump at once if no thread waits."""
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
        """Submit a request and wait, taking the lock once and without waking the pump.

        Returns:
            The future, which is done.
        """
        future = Future(self, next(self._ids), finish)
        self._enter()
        self._drivers += 1
        try:
            self._submit(future, request)
            self._drive(future, None)
        except KeyboardInterrupt:  # the caller has no future to cancel
            if future.outcome is None and not self.node.stopped:
                self.node.handle(Asked(next(self._ids), Cancel(future.request_id)))
            raise
        finally:
            self._leave()
        return future

    def wait(self, future: Future, timeout: float | None) -> None:
        """Drive the machine until the future is done."""
        self._enter()
        self._drivers += 1
        try:
            self._drive(future, timeout)
        finally:
            self._leave()

    @contextmanager
    def own(self) -> Iterator[None]:
        """Own the machine and the node exclusively in a `with` block."""
        self._enter()
        try:
            yield
        finally:
            self._release()

    def start_pump(self) -> None:
        self._pump.start()
        self.node.send_heartbeats(lambda: self.machine.session.incarnation)

    def stopped_by(self) -> ShoalError | None:
        """Return the error with which the client has stopped; None while it works."""
        return (self.node.error or UsageError("this client is closed")) if self._over() else None

    def disown(self) -> None:
        """Refuse every request from now on, in a fork of the process that has made this driver.

        Connections and numbers of requests are the parent's: what a fork sent would be taken for
        the parent's, and the parent's next request for one that was answered already.
        """
        self._lock, self._turnstile = threading.Lock(), threading.Lock()  # others may have had them
        self.closed = True
        error = UsageError(
            f"this process is a fork of {self.machine.session.name} (process {self._process}), "
            "which alone can use its part in the run: call the client in that process, and hand "
            "its results to the fork"
        )
        self.node.stop(error)
        self._fail_all(error)
        self.due.clear()

    @property
    def in_fork(self) -> bool:
        """Whether this is a fork of the process that has made this driver."""
        return os.getpid() != self._process

    def close(self) -> None:
        """Send the outbox and disconnect; in a fork of the process, leave both to the parent."""
        if self.in_fork:
            return
        self.closed = True
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
            self._resolved(future.request_id, Outcome(error=self.stopped_by()))
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
        """Sleep while another thread drives, until the future is done or that thread leaves."""
        if self.due:  # before it has a place: a callback may wait too, and one of both is woken
            try:
                self._release()
            finally:
                self._insist(self._enter)
            return
        woken = threading.Event()
        place = future, woken
        self._asleep.append(place)
        self._lock.release()
        try:
            woken.wait(limit_s)
        finally:
            self._insist(self._enter)
            self._asleep.remove(place)

    def _poll(self, limit_s: float) -> None:
        """Poll once with the lock held, let visiting threads in, run the callbacks that are due.

        A visiting thread submits its request and sleeps: it does not become the driving thread.
        """
        self._driving = True
        try:
            self.node.poll(limit_s)
            if self.node.stopped:
                self._fail_all(self.node.error or UsageError("the run has ended"))
            if self._visitors:
                self._lock.release()
                try:
                    with self._turnstile:  # waits until the visitor has the lock
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
        """Own the machine; wake a polling thread so that it releases the lock."""
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
        """Own the machine again, even if Ctrl-C interrupts: the caller will release the lock."""
        try:
            own()
        except BaseException:
            self._lock.acquire()
            raise

    def _leave(self) -> None:
        self._drivers -= 1
        if not self._driving:
            self._wake_next()
        left_over = self._unattended()
        self._release()
        if left_over:
            self._pump_wake.set()

    def _unattended(self) -> bool:
        """Return whether something is under way, and no thread waits for a future."""
        return self._under_way() and not self._drivers

    def _under_way(self) -> bool:
        machine = self.machine
        unsent = machine.sends_on and bool(self.node.unsent())
        return bool(self._futures) or machine.listens or unsent

    def _wake_next(self) -> None:
        """Let the thread that has slept longest drive next."""
        if self._asleep:
            self._asleep[0][1].set()

    def _release(self) -> None:
        """Release the machine, then run the callbacks that are due."""
        self._lock.release()
        while self.due:
            try:
                due = self.due.popleft()
            except IndexError:  # another thread has run the last one
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

    # ------------------------------------------------------------------ the pump

    def _run_pump(self) -> None:
        """Send heartbeats while the caller computes; make progress while no thread waits."""
        while not self._over():
            left_alone = self._unattended()
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
            self._poll(0.02 if self._under_way() else 0.0)
        except Exception as error:  # fail every request rather than let callers wait forever
            log.exception("the client's pump failed")
            failed = UsageError(f"the client failed: {type(error).__name__}: {error}")
            self.node.stop(failed)
            self._fail_all(failed)
        finally:
            self._wake_next()

    def _over(self) -> bool:
        return self.closed or self.node.stopped


_drivers: WeakSet[Driver] = WeakSet()


def _disown_all() -> None:
    for driver in [*_drivers]:
        driver.disown()


os.register_at_fork(after_in_child=_disown_all)


def _shown(waiting: list[tuple[str, str]]) -> str:
    return "; ".join(f"{what}: {why}" for what, why in waiting[:4]) or "no request is unanswered"
