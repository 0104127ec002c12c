"""`shoal.leases`: batches granted to workers one by one, and reassigned when a worker dies."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.context import current
from shoal.errors import UsageError
from shoal.protocol.machine import Outcome
from shoal.protocol.messages.membership import Leased
from shoal.protocol.requests import TakeLease

if TYPE_CHECKING:
    from shoal.client.client import Client


class Lease(NamedTuple):
    """One batch of an epoch, granted to this worker.

    Attributes:
        epoch: the number of the epoch, from 0.
        batch: the number of the batch in its epoch, from 0; None for a step without data.

    Example:
        >>> Lease(epoch=0, batch=7).batch
        7
    """

    epoch: int
    batch: int | None


def leases(epochs: int, batches: int, *, client: Client | None = None) -> Iterator[Lease]:
    """Iterate over the batches that the scheduler grants to this worker, until all are done.

    Each batch is granted to one worker of the group. Faster workers get more batches, and the
    unfinished batches of a dead worker are granted to others. Each lease is one clock: take one
    step (`Optimizer.step` or `Client.advance`) before the next lease. A lease whose batch is None
    is a step without data (`optimizer.step(weight=0)`), while other workers still have batches.

    With `apply_at="round_end"` each batch counts exactly once per epoch. Otherwise a batch that was
    under way when its worker died may count twice.

    Args:
        epochs: the number of passes over the data; the same on all workers.
        batches: the number of batches per epoch; the same on all workers.
        client: the client of `shoal.init()` by default.

    Returns:
        An iterator of leases.

    Raises:
        UsageError: the worker did not take exactly one step for a lease.
        Refused: another worker has asked for other numbers of epochs or batches.

    Example:
        >>> import shoal
        >>> client = shoal.init().client
        >>> for lease in shoal.leases(epochs=1, batches=2):
        ...     print(lease.epoch, lease.batch)
        ...     client.advance().wait()
        0 0
        0 1
    """
    asked = client if client is not None else current().client
    group = asked.options.group
    rules = [spec.consistency.name for spec in asked.view.tables if spec.group == group]
    alone = bool(rules) and set(rules) == {"asp"}
    while not (lease := take_lease(asked, epochs, batches, alone)).over:
        first = lease.first if lease.count else None
        for at in range(max(lease.count, 1)):
            clock = asked.clock
            yield Lease(lease.epoch, None if first is None else first + at)
            if asked.clock != clock + 1:
                raise UsageError(
                    f"a lease is one clock, but this worker's clock went from {clock} to "
                    f"{asked.clock}: take exactly one step for each lease"
                )


def take_lease(client: Client, epochs: int, batches: int, patient: bool) -> Leased:
    """Ask the scheduler for some batches, and wait for its answer.

    patient:  whether to wait for a lease while others may still lose theirs, in place of a step
              without data
    """

    def program() -> Generator[TakeLease, Outcome, Leased]:
        found: Leased = (yield TakeLease(epochs, batches, patient)).value
        return found

    return client.drive(program())
