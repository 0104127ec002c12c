"""LongWork: long work on shards is done outside of the loop, and the server goes on.

To merge and apply a round, to apply a large push and to copy a shard for a checkpoint takes as long
as memory needs to move their bytes. The handler of an event that needs such work is *suspended*:
it runs as a coroutine (a greenlet), the machine returns `Offload`, and with `Offloaded` the handler
continues after the work. So the code of a handler reads as if the work were done in place.

Meanwhile the replicas of that work are *busy*, and the state of the server is that of a handler in
its middle. So the machine handles only events that do not depend on it (`Interim`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from shoal.protocol.machine import Effects, Offload, Offloaded
from shoal.protocol.server.notes import Suspended
from shoal.protocol.server.state.replica import Replica

LONG_BYTES = 16 << 20  # a server moves them in some milliseconds

T = TypeVar("T")


class LongWork:
    """Runs handlers that may need long work, one at a time.

    possible:   whether any shard is so large that work on it may be long
    running:    whether a handler runs that may be suspended
    suspended:  whether a handler waits for its work
    busy:       the replicas of that work, by number
    closing:    the worker group whose rounds are being closed: its clocks are ahead of the rows
    """

    def __init__(self, tickets: Iterator[int], long_bytes: float = LONG_BYTES) -> None:
        """Start without a handler.

        tickets:     the numbers of `Offload` effects
        long_bytes:  the bytes from which on work that moves them is long
        """
        self.possible = self.running = self.suspended = False
        self.busy: frozenset[int] = frozenset()
        self.closing: str | None = None
        self.long_bytes = long_bytes
        self._tickets = tickets
        self._ticket = 0
        self._coroutine: greenlet | None = None
        self._effects: Effects = []  # of the handler, since it began or continued

    def look(self, replicas: Iterable[Replica]) -> None:
        """Record whether any shard is so large now that work on it may be long."""
        self.possible = any(replica.shard.copy_bytes >= self.long_bytes for replica in replicas)

    def run(self, handler: Callable[[Effects], None], out: Effects) -> None:
        """Run a handler to its end, or until it is suspended."""
        if self._coroutine is None or self._coroutine.dead:
            self._coroutine = greenlet(self._handle)
            self._coroutine.switch()
        self._go_on(handler, out)

    def _handle(self) -> None:
        """Call one handler after the other: a coroutine for each would cost ten times as much."""
        handler = _to_the_loop(None)
        while True:
            handler(self._effects)
            handler = _to_the_loop(None)

    def ends(self, event: Offloaded) -> bool:
        """Return whether an event ends the work of the suspended handler."""
        return self.suspended and event.ticket == self._ticket

    def resume(self, event: Offloaded, out: Effects) -> None:
        """Continue the suspended handler, whose work has ended."""
        self._go_on(event, out)

    def _go_on(self, value: Callable[[Effects], None] | Offloaded, out: Effects) -> None:
        assert self._coroutine is not None
        self.running, self.suspended = True, False
        try:
            offload: Offload | None = self._coroutine.switch(value)
        finally:
            self.running = False
            out += self._effects
            self._effects.clear()
        if offload is not None:
            self.suspended = True
            out.append(offload)

    def begin_closing(self, group: str) -> None:
        """Record that the rounds of a group are about to be closed."""
        self.closing = group

    def end_closing(self) -> None:
        """Record that the rounds are closed."""
        self.closing = None

    def is_small(self, replica: Replica) -> bool:
        """Return whether no work on a replica is long, and none is under way."""
        return replica.number not in self.busy and replica.shard.nbytes < self.long_bytes

    def do(self, replicas: Sequence[Replica], nbytes: int, work: Callable[[], T]) -> T:
        """Return the result of work that moves `nbytes` bytes of these replicas and of pushes.

        Raises:
            ShoalError: the work has raised it.
        """
        if not nbytes or nbytes < self.long_bytes or not self.running:
            return work()
        for replica in replicas:
            replica.shard.lend(True)
        self.busy = frozenset(replica.number for replica in replicas)
        self._ticket = next(self._tickets)
        self._effects.append(Suspended(nbytes))
        ended: Offloaded = _to_the_loop(Offload(self._ticket, work))
        self.busy = frozenset()
        for replica in replicas:
            replica.shard.lend(False)
        if ended.error is not None:
            raise ended.error
        result: T = ended.value
        return result


def _to_the_loop(offload: Offload | None) -> Any:
    """Switch to the loop, with work if there is any; return what it switches back with."""
    loop = getcurrent().parent
    assert loop is not None
    return loop.switch(offload)
