"""Checkers of the history of a run, called while it runs.

Each checker has a name, which `Violation` carries, so that a test can show that a planted bug is
found by the right checker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from shoal.errors import InvalidValue, ShoalError
from shoal.keys import tiles
from shoal.protocol.machine import Outcome
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.membership import BarrierReleased, End, Frozen, Joined, Leased, NewView
from shoal.protocol.messages.requests import Reply, Request
from shoal.protocol.scheduler.barriers import released_as
from shoal.protocol.scheduler.journal import JournalRecord
from shoal.protocol.scheduler.leases.ledger import Span
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.requests.admission import Named
from shoal.protocol.views import NO_VIEW, NodeId, View, ViewId
from shoal.simulation.plan import GUESTS
from shoal.tables.consistency import Consistency


class Violation(ShoalError):
    """A property that does not hold.

    checker:  the name of the checker
    """

    def __init__(self, message: str = "", trace: Sequence[str] = (), checker: str = "") -> None:
        super().__init__(message, trace)
        self.checker = checker


def violated(checker: str, message: str) -> Violation:
    return Violation(f"{checker}: {message}", (), checker)


def check_tiling(view: View) -> None:
    """Check `tiling`: shards cover each table once, in whole fragments, on chains of members."""
    ranks = {member.rank for member in view.servers}
    for spec, placements in zip(view.tables, view.placements, strict=True):
        held = [placement.rows for placement in placements]
        if not tiles(held, spec.keys.stop):
            raise violated("tiling", f"table {spec.name!r} is held as {held} in view {view.id}")
        edges = {part.start for part in spec.fragments()} | {spec.keys.stop}
        if any(rows.stop not in edges for rows in held):
            raise violated("tiling", f"a fragment of {spec.name!r} is split in view {view.id}")
        for rows, chain in ((each.rows, each.chain) for each in placements):
            if not chain or len(set(chain)) < len(chain) or set(chain) - ranks:
                raise violated("tiling", f"{spec.name!r} {rows} is on {chain}")


class Ledger:
    """Every push adds 1 to a key of its own; the ledger knows which values each key may have.

    The keys of a clock are next to each other, so that a worker comes to all fragments in turn.

    intended:      the clock of each push that was requested, by key
    acknowledged:  the keys of pushes that resolved without an error
    failed:        the keys of pushes that resolved with an error: their outcome is unknown
    crashed:       the incarnations of workers that have crashed
    seen:          the keys that a worker has read as 1
    """

    def __init__(self, consistency: Consistency, clocks: int, incarnations: int) -> None:
        self.consistency = consistency
        self.clocks = clocks
        self.incarnations = incarnations
        self.intended: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        self.failed: set[int] = set()
        self.crashed: set[int] = set()
        self.seen: set[int] = set()

    def key(self, incarnation: int, clock: int) -> int:
        return clock * self.incarnations + incarnation

    def check_read(self, incarnation: int, clock: int, values: np.ndarray) -> None:
        """Check `freshness`, `own writes` and `exactly once` for an answered read at `clock`.

        values:  the value of each key; negative if it was not read
        """
        doubled = np.flatnonzero(values > 1)
        if len(doubled):
            raise violated("exactly once", f"key {doubled[0]} reads {values[doubled[0]]:g}")
        for key in np.flatnonzero(values > 0).tolist():
            if key not in self.intended:
                raise violated("exactly once", f"key {key} reads 1 and was never pushed")
            self.seen.add(key)
        bound = clock - self.consistency.staleness
        for key, at in self.intended.items():
            owner = key % self.incarnations
            if owner == incarnation:
                if key in self.acknowledged and at < clock and values[key] == 0:
                    raise violated("own writes", f"worker {owner} at {clock} misses its push {at}")
                continue
            if self.consistency.name == "asp" or at >= bound or values[key] != 0:
                continue
            late = self.consistency.closes is not None  # pushes may miss their rounds
            uncertain = owner in self.crashed or key in self.failed or late
            if key in self.acknowledged or not uncertain:
                reader = f"worker {incarnation} reads at clock {clock}"
                push = f"worker {owner}'s push at clock {at}, older than {bound}"
                raise violated("freshness", f"{reader} and misses {push}")

    def check_visit(self, values: Mapping[int, float], known: Collection[int]) -> None:
        """Check `freshness` and `exactly once` for a read that waits for no clock.

        known:  the pushes that were acknowledged before the read was requested
        """
        for key, value in values.items():
            if value not in (0, 1) or (value and key not in self.intended):
                raise violated("exactly once", f"key {key} reads {value:g}")
            if key in known and not value:
                raise violated("freshness", f"a visitor misses the acknowledged push {key}")

    def check_departed(self, values: np.ndarray, departed: Mapping[int, int]) -> None:
        """Check `departed`: a worker that left counts in the rounds below its last clock only.

        departed:  the last clock of each departed incarnation
        """
        for incarnation, last in departed.items():
            for key in (self.key(incarnation, clock) for clock in range(self.clocks)):
                if values[key] > 0 and self.intended.get(key, -1) >= last:
                    text = f"push {key} at clock {self.intended[key]}, last clock {last}"
                    raise violated("departed", f"the rows have a dead worker's {text}")

    def check_end(self, values: np.ndarray) -> None:
        """Check `lost`, `exactly once`: acknowledged keys read 1, intended ones 0 or 1, others 0.

        `vanished`: a value that was read is still there, except under `asp`, where the head
        answers before its push is replicated. Rows that have no replica left are NaN.
        """
        for key, value in enumerate(values.tolist()):
            if value != value:
                continue
            if key in self.seen and value == 0 and self.consistency.name != "asp":
                raise violated("vanished", f"key {key} was read as 1 and reads 0 at the end")
            if key in self.acknowledged and value != 1:
                raise violated("lost", f"the acknowledged push {key} reads {value:g}")
            if key not in self.intended and value != 0:
                raise violated("exactly once", f"key {key} reads {value:g} and was never pushed")
            if value not in (0, 1):
                raise violated("exactly once", f"key {key} reads {value:g}")


def check_untorn(values: np.ndarray, fragment_rows: int) -> None:
    """Check `torn`: every push adds one number to a whole fragment, so all its rows are equal."""
    for start in range(0, len(values), fragment_rows):
        part = values[start : start + fragment_rows]
        if not (part == part[0]).all():
            raise violated("torn", f"a fragment reads {part.tolist()}")


def check_not_refused(outcome: Outcome) -> None:
    """Check `invariant`: requests of simulated workers may fail, but are not refused as invalid."""
    if isinstance(outcome.error, InvalidValue):
        raise violated("invariant", f"a valid request is refused: {outcome.error.message}")


def check_canary(buffer: np.ndarray, canary: float) -> None:
    """Check `late pull`: no rows arrive in a buffer whose pull was abandoned."""
    if not (buffer == canary).all():
        raise violated("late pull", "rows landed in a buffer whose pull had timed out")


def check_groups(before: View | None, view: View) -> None:
    """Check `group`: a worker group begins only when it is complete."""
    begun = {member.group for member in before.workers} if before is not None else set()
    for group in {m.group for m in view.workers if m.group} - begun:
        members = view.group(group)
        if len(members) < members[0].group_size:
            names = ", ".join(member.name for member in members)
            raise violated("group", f"{names} alone begin in view {view.id}")


class Views:
    """`view` and `old view`: servers act under the current view and keep their promises.

    `thaw`: where a server continued in its view, nobody adopts a view that it had refused.

    `successor`: a view is made of the newest view that a server had when it promised it.

    departed:  the last clock of each incarnation that was in a view and has left
    """

    def __init__(self) -> None:
        self.departed: dict[int, int] = {}
        self._latest: View | None = None
        self._promised: dict[NodeId, ViewId] = {}
        self._acknowledged: dict[NodeId, ViewId] = {}
        self._adopted: dict[ViewId, NodeId] = {}  # by view: the first member that adopted it
        self._view_of: dict[NodeId, ViewId] = {}
        self._at_promise: dict[ViewId, dict[NodeId, ViewId]] = {}  # by promised view
        self._void: list[tuple[ViewId, ViewId]] = []  # the views in which servers continued, and
        #     the last views that they had refused

    def made(self, view: View) -> None:
        """Check a new view of the scheduler."""
        check_tiling(view)
        check_groups(self._latest, view)
        self._latest = view
        for member in view.departed:
            self.departed.setdefault(member.incarnation, member.last_clock)

    def adopted(self, node: NodeId, view: ViewId) -> None:
        """Check a view that a member adopts."""
        self._adopted[view] = self._adopted.get(view, node)
        self._view_of[node] = view
        self._check_void()

    def offered(self, view: ViewId, before: ViewId) -> None:
        """Check the view from which the scheduler has made a new one."""
        for node, had in self._at_promise.get(view, {}).items():
            if had > before:
                text = f"{view} is made of {before}, and {node} was in {had} when it promised it"
                raise violated("successor", text)

    def thawed(self, node: NodeId, view: ViewId, refused: ViewId, rows: bool) -> None:
        """Check that a server may continue in a view, and take back its promise.

        rows:  whether the view has any rows. If so, the run ends without all of its servers; if
               not, it goes on with other servers, which had no part in the refusal
        """
        self._promised.pop(node, None)
        if rows:
            self._void.append((view, refused))
        self._check_void()

    def _check_void(self) -> None:
        for view, refused in self._void:
            for adopted, node in self._adopted.items():
                if view < adopted <= refused:
                    text = f"servers continued in view {view}, and {node} adopted {adopted}"
                    raise violated("thaw", text)

    def sent(self, node: NodeId, message: Message) -> None:
        """Check that no server answers in a view older than one it answered in or promised."""
        if isinstance(message, Frozen):
            self._promised[node] = max(message.view, self._promised.get(node, NO_VIEW))
            promised = self._at_promise.setdefault(message.view, {})
            promised[node] = self._view_of.get(node, NO_VIEW)
        elif isinstance(message, Reply) and message.code in ("applied", "accepted"):
            if message.view < self._acknowledged.get(node, NO_VIEW):
                text = f"{node} acknowledged under {message.view} after a newer view"
                raise violated("old view", text)
            if message.view < self._promised.get(node, NO_VIEW):
                raise violated("view", f"{node} answers in {message.view}, having promised a later")
            self._acknowledged[node] = message.view

    def pushed(self, node: NodeId, request: Request, present: ViewId) -> None:
        """Check that a push is taken in the view of its sender, and not while frozen."""
        if request.view != present:
            raise violated("view", f"{node} in view {present} took a push of {request.view}")
        if self._promised.get(node, NO_VIEW) > present:
            raise violated("view", f"{node} took a push in {present}, having promised a later view")


class Durability:
    """`durable`: the scheduler sends nothing that depends on state that is not on its disk."""

    def __init__(self) -> None:
        self._disk: bytes | None = None
        self._record = JournalRecord()

    def sent(self, target: NodeId, message: Message, disk: bytes | None) -> None:
        if disk is not self._disk:
            self._disk = disk
            self._record = JournalRecord()
            if disk:
                self._record = msgspec.msgpack.decode(disk, type=JournalRecord)
        record = self._record
        match message:
            case NewView(view):
                views = [each for each in (record.view, record.offered) if each is not None]
                written = any(each.id >= view.id for each in views)
            case Joined(incarnation):
                written = record.next_incarnation > incarnation
            case BarrierReleased(name, generation):
                # former members are answered too
                groups = {m.group for m in record.members if m.id == target} or {"", GUESTS}
                keys = [released_as(group, name) for group in groups]
                written = any(record.released.get(key, -1) >= generation for key in keys)
            case Leased(clock, epoch, first, count):
                granted = [each for ledger in record.ledgers.values() for each in ledger.granted]
                lease = clock, Span(epoch, first, count)
                written = lease in [(each.clock, each.span) for each in granted]
            case End():
                written = record.ended or target in record.left or bool(message.error)
            case _:
                return
        if not written:
            text = f"the scheduler sent {message.describe()} before it was on its disk"
            raise violated("durable", text)


def check_waiting(node: NodeId, machine: ServerMachine) -> None:
    """Check `forgotten`: each pull recorded as "waiting" is in the wait queue, with a reason.

    The server still has the rows that it reads.

    `visitor`: a pull that reads only tables of other groups does not wait.
    """
    waiting = machine.requests.wait_queue.waiting()
    logs = machine.requests.admission.logs.values()
    recorded = sum(list(log.outcomes.values()).count("waiting") for log in logs)
    if recorded != len(waiting):
        text = f"{node} recorded {recorded} waiting pulls and queues {len(waiting)}"
        raise violated("forgotten", text)
    for request, reason, _ in waiting:
        if not reason and not machine.frozen:
            raise violated("forgotten", f"{request.describe()} waits at {node} for no reason")
    replicas = machine.state.replicas
    for admitted in (each.admitted for each in machine.requests.wait_queue.pulls.values()):
        pulled = [number for number, _, _ in admitted.footprint.pulls]
        if not all(number in replicas for number in pulled):
            text = f"{admitted.request.describe()} waits at {node}, which has lost its rows"
            raise violated("forgotten", text)
        groups = {replicas[number].group for number in pulled}
        waits = admitted.request.pushes or not admitted.log.complete(admitted.request.seq)
        # a frozen server checks which workers have read its answers only when it goes on
        waits = waits or machine.frozen or admitted.sender in machine.requests.wait_queue.full
        if not waits and admitted.log.group not in groups:
            raise violated("visitor", f"{node} lets a pull of another group's tables wait")


def check_served(node: NodeId, machine: ServerMachine, pulls: Sequence[Named]) -> None:
    """Check `unreplicated`: a pull returns only what all replicas have, except under `asp`."""
    for number, _, _ in pulls:
        replica = machine.state.replicas[number]
        spec = replica.shard.spec
        tail = replica.placement.tail == machine.session.rank
        if not tail and replica.version > replica.done and spec.consistency.name != "asp":
            text = f"{spec.name}{replica.rows} at version {replica.version}, done {replica.done}"
            raise violated("unreplicated", f"{node} answers with {text}")


def check_one_round(shards: Sequence[np.ndarray]) -> None:
    """Check `split round`: under BSP a push counts on every server or on none."""
    numbers = sorted({float(value) for shard in shards for value in shard.ravel()})
    if len(numbers) > 1:
        raise violated("split round", f"the servers' stamps differ: {numbers}")
