"""Chain replication: operations go down the chain and are acknowledged back up.

See van Renesse and Schneider (2004). The head of a chain applies what workers ask, and sends the
operation to the next server, which applies it and passes it on. When the tail has applied it, every
server of the chain has it: the operation is *done*, and its worker gets the acknowledgement.

Each server counts the changes of its replica: the *version*. Each change carries the version that
it makes. So it can be sent again in a new view, by another server and in another operation, and a
replica that has that version leaves it out. Messages between two servers are numbered and handled
in that order; versions are acknowledged for each shard.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

from shoal.protocol.machine import Arrival, Discard, Effects, EventTime, Send, Sink
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.reasons import some_of
from shoal.protocol.messages.replication import Replicate, ReplicateAck, StateChunk
from shoal.protocol.server.chains.handshakes import Handshakes
from shoal.protocol.server.chains.link import Incoming, Link, ReplicationOptions
from shoal.protocol.server.chains.operations import (
    Change,
    Check,
    Chunk,
    Operation,
    StateTransferOperation,
)
from shoal.protocol.server.chains.round_trip import RoundTrip
from shoal.protocol.server.chains.validation import problem_of
from shoal.protocol.server.state.replica import NONE, NOT_BEGUN, AppliedPart, Replica
from shoal.protocol.server.state.shard_store import Loads, Staged
from shoal.protocol.views import NO_VIEW, NodeId, View, ViewId

Stage = Callable[[Replica, int], Staged]  # returns memory for the part of a message by its number


class Chains:
    """Sends, receives and acknowledges the operations of one server's replicas.

    replicas:  the replicas by number
    rank:      the rank of this server
    repeated:  the function that is called with a server to which messages are sent again
    """

    def __init__(
        self,
        replicas: dict[int, Replica],
        options: ReplicationOptions | None = None,
        time: EventTime | None = None,
        repeated: Callable[[NodeId, Effects], None] = lambda to, out: None,
    ) -> None:
        self.options = options or ReplicationOptions()
        self._repeated = repeated
        self.replicas = replicas
        self.time = time or EventTime()
        self.rank = -1
        self._view: ViewId = NO_VIEW
        self._ids: dict[int, NodeId] = {}  # of the servers, by rank
        self._servers: set[NodeId] = set()
        self._before: set[NodeId] = set()  # servers of lower rank, which connect to this one
        self._handshakes = Handshakes(self.options.resend_s, self.options.resend_max_s)
        self._links: dict[NodeId, Link] = {}
        self._round_trips: dict[NodeId, RoundTrip] = {}
        self._incoming: dict[NodeId, Incoming] = {}
        self._held: dict[int, list[Replica]] = {}  # by table, in the order of their rows
        self._log: dict[int, Operation] = {}
        self._next = 0
        self._unseen = 0  # occasions since all operations were looked at

    # ------------------------------------------------------------------ views

    def adopt(self, view: View, rank: int, out: Effects) -> None:
        """Adopt the chains of a view, and resend the operations that are not done."""
        self._view, self.rank = view.id, rank
        self._ids = {member.rank: member.id for member in view.servers}
        self._servers = set(self._ids.values())
        self._before = {node for each, node in self._ids.items() if each < rank}
        self._links.clear()
        self._round_trips = {n: t for n, t in self._round_trips.items() if n in self._servers}
        self._incoming.clear()
        self._held.clear()
        for replica in sorted(self.replicas.values(), key=_first_row):
            self._held.setdefault(replica.table, []).append(replica)
        for operation in list(self._log.values()):
            operation.send_again([each for each in operation.changes if self._holds(each)])
            self._send(operation, out)
        self._forget()

    def _holds(self, change: Change) -> bool:
        """Return whether a change is still to be sent: its replica or transfer is still here."""
        replica = change.replica
        if self.replicas.get(replica.number) is not replica or isinstance(change, Check):
            return False
        if not isinstance(change, Chunk):
            return True
        return replica.placement.syncing_since == change.since and replica.tail == self.rank

    @property
    def idle(self) -> bool:
        """Whether all operations of this server are on the rest of the chains."""
        return all(
            isinstance(each, StateTransferOperation) or each.done for each in self._log.values()
        )

    def greet(self, out: Effects) -> None:
        """Connect to neighbours of higher rank: of two servers the one of lower rank connects."""
        beside = [each for r in self.replicas.values() for each in (r.previous, r.following)]
        self._handshakes.begin([self._ids[r] for r in beside if r > self.rank], self.time.now)
        self._greet(out)

    def _greet(self, out: Effects) -> list[NodeId]:
        nodes = self._handshakes.take(self.time.now)
        out.extend(Send(node, ReplicateAck(self._view, 0, ())) for node in nodes)
        return nodes

    def reached(self, replica: Replica, clock: int) -> int:
        """Return the clock of a shard's rows: `clock` at the head, else the one it announced."""
        return clock if replica.previous == NONE else replica.clock

    def of(self, group: str) -> list[Replica]:
        """Return the replicas whose tables go by a group's clocks."""
        return [replica for replica in self.replicas.values() if replica.group == group]

    # ------------------------------------------------------------------ down the chain

    def carry(self, operation: Operation, out: Effects) -> None:
        """Send an operation down the chains."""
        for each in operation.changes:
            self._acknowledge(each.replica)
        self._log[self._next] = operation
        self._next += 1
        self._send(operation, out)
        self._forget()

    def _acknowledge(self, replica: Replica) -> None:
        """Acknowledge a tail's version without waiting for its syncing replica.

        While the syncing replica is more than `credit_bytes` behind, acknowledgements wait for it:
        otherwise it might never catch up, and its backlog would fill this server's memory.
        """
        if replica.tail == self.rank and replica.following != NONE:
            link = self._link(self._ids[replica.following])
            if link.backlog <= self.options.credit_bytes:
                replica.acknowledge(replica.version, 0)

    def tell(self, group: str, clock: int, out: Effects) -> None:
        """Send a group's clock at this head to the next servers that have not heard it."""
        self._tell((self.rank,), group, clock, out)

    def _tell(self, path: tuple[int, ...], group: str, own: int, out: Effects) -> None:
        for following in {replica.following: None for replica in self._along(path, group)}:
            if following == NONE:
                continue
            link = self._link(self._ids[following])
            clock = self._clock_of(path, group, own, following)
            if link.announced.get((path, group), -1) < clock:
                alone = Operation("round", path, clock, [], group=group)
                link.say(alone, [], clock, self.time.now, out)

    def _along(self, path: tuple[int, ...], group: str) -> list[Replica]:
        """Return a group's replicas whose chains begin with `path`, which ends at this server.

        A clock travels along chains only. If a server waited until all shards that it shares with
        the next one had reached a clock, on whichever path, servers of several chains could wait in
        a circle.
        """
        return [replica for replica in self.of(group) if replica.chain[: len(path)] == path]

    def _clock_of(self, path: tuple[int, ...], group: str, own: int, following: int) -> int:
        """Return the head's clock that may be announced to a server."""
        if path == (self.rank,):
            return own
        shared = [each for each in self._along(path, group) if each.following == following]
        return min((replica.clock for replica in shared), default=0)

    def _send(self, operation: Operation, out: Effects) -> None:
        """Send each change to the next server of its chain."""
        by_server: dict[int, list[Change]] = {}
        for each in operation.changes:
            if each.replica.following != NONE and not each.done:
                by_server.setdefault(each.replica.following, []).append(each)
        for following, changes in by_server.items():
            clock = operation.clock  # 0 if it is sent again: the clock may be that of a later one
            if clock:
                clock = self._clock_of(operation.path, operation.group, clock, following)
            link = self._link(self._ids[following])
            link.say(operation, changes, clock, self.time.now, out)

    def _link(self, to: NodeId) -> Link:
        link = self._links.get(to)
        if link is None:
            new = RoundTrip(self.options.resend_s, self.options.resend_max_s)
            round_trip = self._round_trips.setdefault(to, new)
            link = self._links[to] = Link(to, self._view, self.options, round_trip)
        return link

    # ------------------------------------------------------------------ up the chain

    def acknowledged(self, sender: NodeId, message: ReplicateAck, out: Effects) -> bool:
        """Handle an acknowledgement of the next server; return whether it is new."""
        if sender in self._handshakes.silent:
            self._handshakes.answered(sender)
        link = self._links.get(sender)
        if not message.number and sender in self._before:  # a greeting: the connection may be new
            if link is not None:
                link.broken(self.time.now)
            out.append(Send(sender, ReplicateAck(self._view, 0, ())))
        if link is None:
            return False
        news = link.heard(message.number, self.time.now)
        told = {(table, start): version for table, start, version in message.done}
        for replica in self.replicas.values() if told else ():
            version = told.get((replica.table, replica.rows.start), NOT_BEGUN)
            if version > NOT_BEGUN and self._ids.get(replica.following) == sender:
                news = self._heard_of(replica, min(version, replica.version)) or news
        if news:
            link.go_on(self.time.now, out)
            self._forget()
            self.answer(out)
        return news

    def _heard_of(self, replica: Replica, version: int) -> bool:
        """Record the version that the servers after this one have; return whether it has grown."""
        if replica.tail != self.rank:
            # the tail keeps what its syncing replica lacks
            return replica.acknowledge(version, max(version, replica.done))
        before = replica.done
        news = replica.acknowledge(0, version)
        self._acknowledge(replica)
        return news or replica.done != before

    def _forget(self) -> None:
        """Release the operations that all servers have.

        To look at all of them each time would take a time for each that grows with their number. So
        they are looked at when the newest is done, and otherwise a few times while as many come.
        """
        self._unseen += 1
        newest = self._log.get(self._next - 1)
        if newest is not None and 4 * self._unseen < len(self._log) and not newest.done:
            return
        self._unseen = 0
        for number in [number for number, each in self._log.items() if each.done]:
            self._log.pop(number).release()

    def answer(self, out: Effects) -> None:
        """Tell the previous servers which versions this server and those after it have."""
        for sender, incoming in self._incoming.items():
            ack = self._ack(sender, incoming)
            if ack != incoming.said:
                incoming.say(ack)
                out.append(Send(sender, ack, cumulative=True))

    def _ack(self, sender: NodeId, incoming: Incoming) -> ReplicateAck:
        done = tuple(
            (replica.table, replica.rows.start, replica.done)
            for replica in self.replicas.values()
            if self._ids.get(replica.previous) == sender
        )
        return ReplicateAck(self._view, incoming.expected, done)

    # ------------------------------------------------------------------ from the server before

    def arriving(
        self,
        sender: NodeId,
        message: Replicate | StateChunk,
        nbytes: int,
        stage: Stage,
    ) -> Arrival:
        """Return the destination of a payload, and change nothing."""
        found = self._found(sender, message)
        if found is None:
            return Discard("not from the server before this one in this view")
        expected = self.expected(sender)
        if message.number < expected:
            return Discard("seen")
        problem = problem_of(message, found, expected)
        if problem:
            return Discard(problem)  # the message is refused then
        try:
            loads = [stage(replica, number) for number, replica in enumerate(found)]
        except MemoryError:
            return Discard("this server has no memory for it")  # it is resent
        views = [view for load in loads for view in load.views]
        sink = Sink(views, loads)
        return sink if sink.nbytes == nbytes else Discard("not as many bytes as its parts need")

    def received(
        self,
        sender: NodeId,
        message: Replicate | StateChunk,
        payload: Sink | None,
        stage: Stage,
        out: Effects,
    ) -> Iterator[tuple[Replicate | StateChunk, list[Replica], Loads]]:
        """Yield the messages that are due now, in order: each when the one before is applied."""
        if self._found(sender, message) is None:
            return
        if sender in self._handshakes.silent:
            self._handshakes.answered(sender)
        incoming = self._incoming.setdefault(sender, Incoming())
        if message.number < incoming.expected:
            out.append(Send(sender, self._ack(sender, incoming)))
            return
        if payload is None or payload.revoked:
            arrival = self.arriving(sender, message, 0, stage)
            if not isinstance(arrival, Sink):
                return  # its payload was discarded: it is resent
            payload = arrival
        for each, loads in incoming.take(message, payload.context):
            yield each, self._found(sender, each) or [], loads

    def expected(self, sender: NodeId) -> int:
        """Return the number of the next message of the server before this one."""
        incoming = self._incoming.get(sender)
        return incoming.expected if incoming is not None else 0

    def taken(self, sender: NodeId) -> int:
        """Return how many messages of the server before this one were taken, early ones too."""
        incoming = self._incoming.get(sender)
        return incoming.expected + len(incoming.early) if incoming is not None else 0

    def problem_of(self, sender: NodeId, message: Replicate | ReplicateAck | StateChunk) -> str:
        """Return the problem of another server's message; empty if it has none."""
        if sender not in self._servers:
            return "its sender is no server of this view"
        if isinstance(message, ReplicateAck):
            return ""
        return problem_of(message, self._found(sender, message), self.expected(sender))

    def reach(self, message: Replicate) -> None:
        """Record the head's clock, which came with a message."""
        for replica in self._along((*message.path, self.rank), message.group):
            replica.reach(message.clock)

    def pass_on(self, message: Replicate, out: Effects) -> None:
        """Tell the next servers the head's clock, if no operation has."""
        self._tell((*message.path, self.rank), message.group, message.clock, out)

    def named(self, sender: NodeId, message: Replicate) -> list[Replica]:
        """Return the replicas that a message changes, if it is for this server."""
        return self._found(sender, message) or []

    def _found(self, sender: NodeId, message: Replicate | StateChunk) -> list[Replica] | None:
        """Return the replicas that a message changes; None if it is not for this server."""
        if message.view != self._view:
            return None
        found = []
        for part in message.parts:
            replica = self._replica_of(part)
            if replica is None or self._ids.get(replica.previous) != sender:
                return None
            found.append(replica)
        return found

    def _replica_of(self, part: Part) -> Replica | None:
        held = self._held.get(part.table, ())
        at = bisect_right(held, part.start, key=_first_row) - 1
        return held[at] if at >= 0 and part.stop <= held[at].rows.stop else None

    # ------------------------------------------------------------------ time

    def wakes_at(self) -> float:
        resends_at = min((link.again_at for link in self._links.values()), default=inf)
        return min(resends_at, self._handshakes.wakes_at())

    def tick(self, out: Effects) -> None:
        """Resend the messages that were not acknowledged in time, and greet silent neighbours."""
        due = [link for link in self._links.values() if self.time.now >= link.again_at]
        for link in due:
            link.again(self.time.now, out)
        for node in dict.fromkeys([*(link.to for link in due), *self._greet(out)]):
            self._repeated(node, out)

    def peer_lost(self, node: NodeId, again_at: float) -> None:
        """Resend to a server whose connection broke, and greet it, at `again_at`."""
        if node in self._links:
            self._links[node].broken(again_at)
        chained = {
            rank for replica in self.replicas.values() for rank in replica.chain if rank > self.rank
        }
        if node in (self._ids.get(rank) for rank in chained):
            self._handshakes.lost(node, again_at)

    def behind(self, replicas: Sequence[Replica], clock: int) -> str:
        """Return which heads have not announced `clock`, as the reason of a wait."""
        heads = {
            f"server-{replica.chain[0]} (at {replica.reached})"
            for replica in replicas
            if replica.chain[0] != self.rank and replica.reached < clock
        }
        return f"waits for clock {clock} to come from {some_of(sorted(heads))}" if heads else ""

    def waits_for(self, parts_of_push: Iterable[AppliedPart]) -> str:
        """Return which servers have to acknowledge parts of a push, as the reason of a wait."""
        names = {
            f"server-{each.replica.following}"
            for each in parts_of_push
            if each.replica.done < each.version
        }
        return f"waits for {some_of(sorted(names))} to have it as well" if names else ""


def _first_row(replica: Replica) -> int:
    return replica.rows.start
