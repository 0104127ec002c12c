"""A simulated node: a machine, its disk, and the program that uses it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator
from itertools import count
from typing import Any

import msgspec

from shoal.errors import InvalidValue, ShoalError
from shoal.protocol.machine import Append, Effect, Machine, Outcome, Persist, Send
from shoal.protocol.messages.membership import HeartbeatSeen
from shoal.protocol.requests import Exchange
from shoal.protocol.views import NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.pushes import Door
from shoal.tables.spec import TableSpec


class Sleep(msgspec.Struct, frozen=True):
    """A request of a program, which computes for this long."""

    seconds: float


Program = Generator[Any, Any, None]


class SimDisk:
    """A node's journal and lease log, which outlive it.

    record:      the last record of the journal
    log:         the entries of the lease log
    full_until:  the time when there is room again
    slow_until:  the time when writes take no time again
    """

    def __init__(self) -> None:
        self.record: bytes | None = None
        self.log: list[bytes] = []
        self.full_until = self.slow_until = 0.0
        self._synced: tuple[bytes | None, int] = (None, 0)  # the record, and entries of the log

    def write(self, effect: Persist | Append) -> None:
        """Write the record or entry of an effect, and sync it."""
        if isinstance(effect, Persist):
            self.record = effect.record
        else:
            self.log.append(effect.entry)
        self.sync()

    def sync(self) -> None:
        """Make what was written survive a loss of power: the files, and the names in the folder."""
        self._synced = self.record, len(self.log)

    def lose_power(self) -> None:
        """Lose what was written and is not synced."""
        self.record, entries = self._synced
        del self.log[entries:]


class SimNode:
    """A machine, its disk, and the program that uses it."""

    def __init__(
        self, node: NodeId, machine: Machine, program: Program | None = None, seed: int = 0
    ) -> None:
        self.node = node
        self.machine = machine
        self.program = program
        self.disk = SimDisk()
        self.held: deque[Effect] = deque()  # behind a write that the disk has no room for
        self.alive = True
        self.stopped = False
        self.error: ShoalError | None = None
        self.outcomes: dict[int, Outcome] = {}
        self.door: Door | None = None
        if isinstance(machine, WorkerMachine):
            session = machine.session
            self.door = Door(self._table, seed, lambda: session.rank)
        self._sent: dict[int, Exchange] = {}  # under way
        self.notes: Counter[str] = Counter()  # by kind
        self.waits_for: int | None = None
        self.turn = 0  # of the program; a wake-up for an earlier turn is void
        self.tickets = count(1)
        self.tick_at: float | None = None
        self.turns = 0  # of the node's loop
        self.paused_at = 0.0
        self.paused_until = 0.0  # the end of a pause of the node's loop
        self.stopped_until = 0.0  # the end of a stop of its whole process
        self.works_until = 0.0  # the handling of an event takes until then
        self.inbox: deque[Callable[[], None]] = deque()  # what arrives meanwhile
        self.takes_next = False  # whether the node takes the first of these now

    def _table(self, name: str) -> TableSpec:
        """Return the specification of a table, for a worker's door."""
        assert isinstance(self.machine, WorkerMachine)
        number, view = self.machine.number_of(name), self.machine.session.view
        if number is None or view is None:
            raise InvalidValue(f"no table {name!r} in this run")
        return view.tables[number]

    def ready(self, request_id: int, request: object) -> object:
        """Return a request of the program as its client sends it.

        Raises:
            NotFinite, InvalidValue: it cannot be sent.
        """
        if self.door is None or not isinstance(request, Exchange):
            return request
        assert isinstance(self.machine, WorkerMachine)
        ready = self.door.ready(request, self.machine.clock)
        self._sent[request_id] = ready
        return ready

    def resolved(self, request_id: int, outcome: Outcome) -> None:
        """Keep the outcome of a request."""
        self.outcomes[request_id] = outcome
        if self.door is not None and request_id in self._sent:
            self.door.settled(self._sent.pop(request_id), outcome)

    def holds(self, effect: Effect, now: float) -> bool:
        """Hold an effect that waits for room on the disk, or behind one; return whether it does."""
        full = self.disk.full_until > now and isinstance(effect, Persist | Append)
        answers = isinstance(effect, Send) and isinstance(effect.message, HeartbeatSeen)
        if not full and (not self.held or answers):
            return False
        self.held.append(effect)
        return True
