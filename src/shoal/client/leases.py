"""shoal.leases: which batches are this worker's to do; what a dead one had, others do."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.context import current
from shoal.errors import UsageError
from shoal.protocol.machine import Outcome
from shoal.protocol.messages import Leased
from shoal.protocol.requests import TakeLease

if TYPE_CHECKING:
    from shoal.client.client import Client


class Lease(NamedTuple):
    """One batch of an epoch, by its number; None where there is nothing to do in this step."""

    epoch: int
    batch: int | None


def leases(epochs: int, batches: int, *, client: Client | None = None) -> Iterator[Lease]:
    """The batches that this worker is to do, one after the other, until all of all epochs are done.

    The scheduler grants each batch to one worker of the group; what a worker that died had not done
    is granted to others, and faster workers do more. Each lease is one clock: take one step
    (`Optimizer.step`, `Client.advance`) for each before asking for the next. A batch of None is a
    step as well, without data (`optimizer.step(weight=0)`): the others still have batches, one of
    which may yet become this worker's.

    Where pushes are applied at the end of a round each batch counts exactly once in each epoch;
    otherwise one that was under way when its worker died may count twice.

    epochs, batches:  of the data; the same on all workers
    client:           the one of `shoal.init()` by default

    Raises:
        UsageError: there was not one clock for each lease
        Refused: another worker has asked for other epochs or batches

    >>> for epoch, batch in shoal.leases(epochs=3, batches=100):        # doctest: +SKIP
    ...     loss = model(*data[batch]).mean() if batch is not None else None
    ...     optimizer.zero_grad()
    ...     if loss is not None:
    ...         loss.backward()
    ...     optimizer.step(weight=0.0 if loss is None else 1.0)
    """
    asked = client if client is not None else current().client
    group = asked.options.group
    rules = [spec.consistency.name for spec in asked.view.tables if spec.group == group]
    alone = bool(rules) and set(rules) == {"asp"}
    while not (lease := _ask(asked, TakeLease(epochs, batches, alone))).over:
        first = lease.first if lease.count else None
        for at in range(max(lease.count, 1)):
            clock = asked.clock
            yield Lease(lease.epoch, None if first is None else first + at)
            if asked.clock != clock + 1:
                raise UsageError(
                    f"a lease is one clock, and this worker has gone from {clock} to "
                    f"{asked.clock}: take one step for each"
                )


def _ask(client: Client, request: TakeLease) -> Leased:
    def program() -> Generator[TakeLease, Outcome, Leased]:
        found: Leased = (yield request).value
        return found

    return client.drive(program())
