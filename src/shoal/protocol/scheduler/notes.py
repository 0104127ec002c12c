"""Notes of the scheduler: what it reports to the run's event log, counters and checkers.

The tag of a class is the kind of its lines in event logs and in traces of the simulator.
"""

from __future__ import annotations

from shoal.protocol.machine import Note
from shoal.protocol.views import NodeId, ViewId


class MemberJoined(Note, frozen=True, tag="joined"):
    """A member has joined."""

    name: str
    launch: str
    node: NodeId


class JoinDenied(Note, frozen=True, tag="refused"):
    """A join is refused."""

    role: str
    reason: str


class MemberLost(Note, frozen=True, tag="lost"):
    """A member is considered dead; `how` is the evidence."""

    name: str
    how: str
    launch: str
    node: NodeId


class MemberAwaited(Note, frozen=True, tag="awaited"):
    """A silent server is not given up yet, because it holds a sole replica."""

    name: str
    node: NodeId


class StragglerDropped(Note, frozen=True, tag="dropped"):
    """A straggler is dropped."""

    name: str
    reason: str


class ViewImpossible(Note, frozen=True, tag="no view"):
    """A view cannot be made yet."""

    reason: str


class ViewOffered(Note, frozen=True, tag="offered"):
    """A view is offered to the servers of the view `before`."""

    view: ViewId
    before: ViewId


class ViewDropped(Note, frozen=True, tag="dropped view"):
    """An offered view will not be adopted any more."""

    view: ViewId
    reason: str


class ViewMade(Note, frozen=True, tag="view"):
    """A view takes effect; `whole`: no replica is being synced in it."""

    view: ViewId
    reason: str
    whole: bool
    servers: int
    workers: int


class ShardUnopened(Note, frozen=True, tag="unopened"):
    """A server cannot open a shard."""

    name: str
    table: str
    rows: str
    reason: str


class ReplicasCrowded(Note, frozen=True, tag="crowded"):
    """Several replicas of a shard are on one host; no hosts: they are not any more."""

    hosts: list[str]


class BatchesLeased(Note, frozen=True, tag="leased"):
    """Batches `[first, first + count)` of an epoch are granted to a worker."""

    name: str
    group: str
    epochs: int
    batches: int
    clock: int
    epoch: int
    first: int
    count: int
    over: bool


class BatchesReturned(Note, frozen=True, tag="returned"):
    """A worker's unfinished batches go back to the ledger."""

    name: str
    group: str
    epoch: int
    first: int
    count: int


class BarrierOpened(Note, frozen=True, tag="released"):
    """A barrier opens."""

    name: str
    generation: int


class RunEnding(Note, frozen=True, tag="ending"):
    """The run ends."""

    reason: str


class OutOfDate(Note, frozen=True, tag="stale"):
    """A message of a member's former self, or of one that has finished, is ignored."""

    message: str
    node: NodeId
