"""Future: the handle of a request under way."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from shoal.errors import ShoalError, UsageError
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import Cancel

log = logging.getLogger("shoal.client")

Finish = Callable[[], Any]


class Driving(Protocol):
    """The part of the driver that a future uses."""

    due: deque[tuple[Callable[[Future], None], Future]]

    def ask(self, request: object) -> Future: ...
    def wait(self, future: Future, timeout: float | None) -> None: ...
    def own(self) -> AbstractContextManager[None]: ...


class Future:
    """A request under way.

    A future is done when the request is resolved, with a result or an error. The thread that calls
    `wait` does the socket work. Done callbacks run on the thread that resolves the future; they may
    use the client, and their exceptions are logged.

    Attributes:
        request_id: the number of the request in this process.
        outcome: the outcome of the request; None until it is resolved.

    Example:
        >>> import shoal, torch
        >>> client = shoal.init().client
        >>> spec = client.create_table(shoal.TableSpec("docs/future", 2))
        >>> future = client.push("docs/future", torch.ones(2))
        >>> future.wait(), future.done(), future.exception()
        (None, True, None)
    """

    __slots__ = ("_callbacks", "_driver", "_finish", "_result", "outcome", "request_id")

    def __init__(self, driver: Driving, request_id: int, finish: Finish | None) -> None:
        self.request_id = request_id
        self.outcome: Outcome | None = None
        self._driver = driver
        self._finish = finish
        self._result: Any = None
        self._callbacks: list[Callable[[Future], None]] | None = None

    def done(self) -> bool:
        """Return whether the request is resolved."""
        return self.outcome is not None

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the request is resolved.

        Args:
            timeout: the seconds to wait, None for no limit. When they have passed `RequestTimeout`
                is raised and the request goes on; `cancel` ends it.

        Returns:
            The rows of a pull; None for a push or an advance.

        Raises:
            SyncTimeout: the request waited for members that did not arrive.
            RequestTimeout: no answer, or `timeout` has passed.
            Refused: a server refused the request, with its reason.
            RoundClosed: the round of a push had closed before.
            WaitsForever: the wait could never end, such as for a BSP push before `advance`.
            RunAborted: the run ended with an error.
        """
        if self.outcome is None:
            self._driver.wait(self, timeout)
        return self.result()

    def result(self) -> Any:
        """Return the result of a request that is done, as `wait` returns it.

        Raises:
            UsageError: the request is not done yet.
            ShoalError: the request's error.
        """
        if self.outcome is None:
            raise UsageError(f"request {self.request_id} is not done yet; wait() for it")
        if self.outcome.error is not None:
            raise self.outcome.error
        return self._result

    def exception(self) -> ShoalError | None:
        """Return the error of a request that is done; None if it succeeded or is under way."""
        return self.outcome.error if self.outcome is not None else None

    def cancel(self) -> bool:
        """Withdraw the request and give its buffers back to the caller.

        Returns:
            False if the request was done before.
        """
        if self.outcome is not None:
            return False
        self._driver.ask(Cancel(self.request_id)).wait()
        return True

    def add_done_callback(self, callback: Callable[[Future], None]) -> None:
        """Call `callback(future)` when the request is done; at once if it is done already."""
        with self._driver.own():
            if self.outcome is None:
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        call_back(callback, self)

    def resolve(self, outcome: Outcome) -> None:
        """End the request with an outcome; for the driver."""
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
    """Run a done callback; its exceptions are logged and do not stop the driving thread."""
    try:
        callback(future)
    except Exception:
        log.exception("a done callback of request %d raised", future.request_id)
