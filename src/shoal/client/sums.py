"""Sums: the sums of a client over all workers, on Shoal's ring or by MPI."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from shoal.collective.mpi import MpiSums, communicator
from shoal.collective.tensors import reduce_of
from shoal.errors import RingBroken, ShoalError
from shoal.node.driver import Driver
from shoal.node.future import Future
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import Gather

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


LEFT_S = 5.0  # after a worker has ended its work, for a sum that it took part in


class Sums(Protocol):
    """The way of sums over all workers."""

    def prepare(self, tensor: Tensor, mean: bool) -> Any:
        """Return the request that sums a tensor in place.

        Raises:
            InvalidValue: not a contiguous CPU tensor of numbers, or the mean of integers
        """
        ...

    def sum(self, asked: Any) -> None:
        """Carry out a request, and wait."""
        ...

    def gather(self, data: np.ndarray) -> memoryview:
        """Return the bytes of all workers, by rank: as many of each."""
        ...

    def begin(self, asked: Any) -> Future:
        """Begin a request."""
        ...


class SumsByRing:
    """On the ring of the workers, as the machine of the client has it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.prepare = reduce_of

    def sum(self, asked: Any) -> None:
        self._driver.run(asked).result()

    def gather(self, data: np.ndarray) -> memoryview:
        future = self._driver.run(Gather(data.data))
        future.result()
        outcome = future.outcome
        assert outcome is not None
        gathered: memoryview = outcome.value
        return gathered

    def begin(self, asked: Any) -> Future:
        return self._driver.ask(asked, pump=True)


class SumsByMpi:
    """By MPI, which has no futures that go on by themselves: `begin` waits, too."""

    def __init__(self, driver: Driver, workers: int, left: Callable[[], bool]) -> None:
        comm = communicator("collective 'mpi'", "or use collective 'ring'")

        self._driver = driver
        self._left = left
        self._left_at = inf
        self._mpi = MpiSums(comm, workers, self._stopped)
        self.prepare = self._mpi.prepare
        self.sum = self._mpi.sum
        self.gather = self._mpi.gather

    def _stopped(self) -> ShoalError | None:
        """Return why a sum that is under way will not end."""
        now = monotonic()
        if self._left_at == inf and self._left():
            self._left_at = now
        if now >= self._left_at + LEFT_S:  # before, MPI may be about to end the sum
            return RingBroken("a worker has ended its work without this sum")
        return self._driver.stopped_by()

    def begin(self, asked: Any) -> Future:
        future = Future(self._driver, 0, None)
        try:
            self._mpi.sum(asked)
        except ShoalError as error:
            future.resolve(Outcome(error=error))
        else:
            future.resolve(Outcome())
        return future
