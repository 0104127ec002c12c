"""Sums: the sums of a client over all workers, on Shoal's ring or by MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shoal.collective.mpi import MpiSums, communicator
from shoal.collective.tensors import reduce_of
from shoal.errors import ShoalError
from shoal.node.driver import Driver
from shoal.node.future import Future
from shoal.protocol.machine import Outcome

if TYPE_CHECKING:
    from torch import Tensor


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

    def begin(self, asked: Any) -> Future:
        return self._driver.ask(asked, pump=True)


class SumsByMpi:
    """By MPI, which has no futures that go on by themselves: `begin` waits, too."""

    def __init__(self, driver: Driver, workers: int) -> None:
        comm = communicator("collective 'mpi'", "or use collective 'ring'")
        self._mpi = MpiSums(comm, workers, driver.stopped_by)
        self._driver = driver
        self.prepare = self._mpi.prepare
        self.sum = self._mpi.sum

    def begin(self, asked: Any) -> Future:
        future = Future(self._driver, 0, None)
        try:
            self._mpi.sum(asked)
        except ShoalError as error:
            future.resolve(Outcome(error=error))
        else:
            future.resolve(Outcome())
        return future
