"""Replication: what is done to rows goes down their chain, and is acknowledged back up.

Chain replication (van Renesse and Schneider 2004): the head of an arc does what workers ask, and
says so to the next server in the chain, which does the same and says so to the one after it. What
the tail has done every server of the chain has: then it is *done*, and its worker is told.

Each server counts the changes of its copy of an arc: its *version*. Whatever is sent says which
version it makes, so that a new view may have it sent again, by another server and in other company,
and a copy that has it already leaves it out. Between two servers messages have numbers as well, and
are handled in their order; what is done is acknowledged for each arc by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from shoal.keys import KeyRange
from shoal.protocol.machine import Arrival, Buffers, Discard, Effects, EventTime, Send, Sink
from shoal.protocol.messages import Part, Replicate, ReplicateAck, StateChunk
from shoal.protocol.server.replica import AppliedPart, Replica
from shoal.protocol.server.replication.link import (
    Change,
    Check,
    Chunk,
    Incoming,
    Link,
    Operation,
    ReplicationOptions,
    StateTransferOperation,
    nothing,
)
from shoal.protocol.server.shard_store import Loads, Staged
from shoal.protocol.views import NO_VIEW, NodeId, View, ViewId

Stage = Callable[[int, KeyRange, int], Staged]  # (shard, rows, keys): room for a part


class Replication:
    """One server's place in the chains of its arcs.

    replicas: by the number of their shard
    rank:   of this server
    """

    def __init__(
        self,
        replicas: dict[int, Replica],
        options: ReplicationOptions | None = None,
        time: EventTime | None = None,
    ) -> None:
        self.options = options or ReplicationOptions()
        self.replicas = replicas
        self.time = time or EventTime()
        self.rank = -1
        self._view: ViewId = NO_VIEW
        self._ids: dict[int, NodeId] = {}  # of servers, by rank
        self._silent: dict[NodeId, float] = {}  # not heard of since their connection was lost
        self._links: dict[NodeId, Link] = {}
        self._incoming: dict[NodeId, Incoming] = {}
        self._log: dict[int, Operation] = {}
        self._next = 0

    # ------------------------------------------------------------------ views

    def adopt(self, view: View, rank: int, out: Effects) -> None:
        """The chains of this view. What is not done goes to whoever is next now."""
        self._view, self.rank = view.id, rank
        self._ids = {member.rank: member.id for member in view.servers}
        self._links.clear()
        self._incoming.clear()
        for operation in list(self._log.values()):
            operation.keep([each for each in operation.changes if self._holds(each)])
            self._send(operation, out)
        self._forget()

    def _holds(self, change: Change) -> bool:
        """Whether its copy is still here; and who is sent it, if it is a chunk."""
        replica = change.replica
        if self.replicas.get(replica.number) is not replica or isinstance(change, Check):
            return False
        if not isinstance(change, Chunk):
            return True
        return replica.placement.syncing_since == change.since and replica.tail == self.rank

    @property
    def idle(self) -> bool:
        """Whether all that was done here is on the rest of the chains."""
        return all(isinstance(each, StateTransferOperation) for each in self._log.values())

    def greet(self, out: Effects) -> None:
        """Make the connections that others wait for: of two servers the one of lower rank does."""
        self._silent.clear()
        for replica in self.replicas.values():
            at = replica.chain.index(self.rank)
            beside = (*replica.chain[max(at - 1, 0) : at], *replica.chain[at + 1 : at + 2])
            self._silent.update(
                (self._ids[rank], self.time.now) for rank in beside if rank > self.rank
            )
        self._say_hello(out)

    def _say_hello(self, out: Effects) -> None:
        for node, again_at in self._silent.items():
            if self.time.now >= again_at:
                self._silent[node] = self.time.now + self.options.resend_s
                out.append(Send(node, ReplicateAck(self._view, 0, ())))

    def reached(self, number: int, clock: int) -> int:
        """The clock that a shard's rows have come to, where this server's own is `clock`."""
        replica = self.replicas[number]
        if replica.chain[0] == self.rank:
            return clock
        return replica.clock

    def of(self, group: str) -> list[Replica]:
        """The copies of tables that go by a group's clocks."""
        return [replica for replica in self.replicas.values() if replica.group == group]

    def alone(self, number: int) -> bool:
        """Whether a shard has no other copy."""
        return len(self.replicas[number].chain) == 1

    def _following(self, replica: Replica) -> NodeId | None:
        at = replica.chain.index(self.rank) + 1
        return self._ids[replica.chain[at]] if at < len(replica.chain) else None

    def _previous(self, replica: Replica) -> NodeId | None:
        at = replica.chain.index(self.rank) - 1
        return self._ids[replica.chain[at]] if at >= 0 else None

    # ------------------------------------------------------------------ down the chain

    def change(self, number: int, part: Part, lr: float | None, buffers: Buffers) -> Change:
        """A shard has been changed by this."""
        replica = self.replicas[number]
        version = replica.change()
        self._acknowledge(replica)
        return Change(replica, part, version, lr, buffers)

    def _acknowledge(self, replica: Replica) -> None:
        """At the tail, all is done that was done here: a learner is waited for when it is far
        behind, or it would never catch up with what waits for it in this server's memory."""
        to = self._following(replica)
        if to is None:
            replica.acknowledge(replica.version, replica.version)
        elif replica.tail == self.rank and self._link(to).backlog <= self.options.credit_bytes:
            replica.acknowledge(replica.version, 0)

    def carry(self, operation: Operation, out: Effects) -> None:
        """Have what was done here done on the rest of the chains."""
        self._log[self._next] = operation
        self._next += 1
        self._send(operation, out)
        self._forget()

    def tell(self, group: str, clock: int, out: Effects) -> None:
        """A group's clock at this head, for those who are next and were not told with a round."""
        self._tell((self.rank,), group, clock, out)

    def _tell(self, path: tuple[int, ...], group: str, own: int, out: Effects) -> None:
        for to in {self._following(replica): None for replica in self._along(path, group)}:
            clock = self._clock_of(path, group, own, to) if to is not None else -1
            if to is not None and self._link(to).told.get((path, group), -1) < clock:
                alone = Operation("round", path, clock, [], (), nothing, group=group)
                self._link(to).say(alone, [], clock, self.time.now, out)

    def _along(self, path: tuple[int, ...], group: str) -> list[Replica]:
        """A group's copies whose chains begin with these servers, of which this one is the last.

        A clock goes along chains, and nowhere else: where one server waited until all arcs with the
        next had come as far, by whatever ways, servers of several chains could wait in a circle.
        """
        return [replica for replica in self.of(group) if replica.chain[: len(path)] == path]

    def _clock_of(self, path: tuple[int, ...], group: str, own: int, to: NodeId | None) -> int:
        """What that server may be told of the head's clock."""
        if path == (self.rank,):
            return own
        told = [each for each in self._along(path, group) if self._following(each) == to]
        return min((replica.clock for replica in told), default=0)

    def _send(self, operation: Operation, out: Effects) -> None:
        """To whoever is next for each of its changes."""
        by_server: dict[NodeId, list[Change]] = {}
        for each in operation.changes:
            to = self._following(each.replica)
            if to is not None and not each.done:
                by_server.setdefault(to, []).append(each)
        for to, changes in by_server.items():
            clock = self._clock_of(operation.path, operation.group, operation.clock, to)
            self._link(to).say(operation, changes, clock, self.time.now, out)

    def _link(self, to: NodeId) -> Link:
        link = self._links.get(to)
        if link is None:
            link = self._links[to] = Link(to, self._view, self.options)
        return link

    # ------------------------------------------------------------------ up the chain

    def acknowledged(self, sender: NodeId, message: ReplicateAck, out: Effects) -> bool:
        """A server has everything below a number; whether that is news."""
        self._silent.pop(sender, None)
        link = self._links.get(sender)
        if not message.number:  # it has heard nothing: the connection is new
            if link is not None:
                link.broken(self.time.now)
            if sender in (self._ids[rank] for rank in self._ids if rank < self.rank):
                out.append(Send(sender, ReplicateAck(self._view, 0, ())))
        if link is None:
            return False
        news = link.heard(message.number)
        for table, start, version in message.done:
            for replica in self.replicas.values():
                if (replica.table, replica.rows.start) != (table, start):
                    continue
                if self._following(replica) == sender:
                    news = self._heard_of(replica, min(version, replica.version)) or news
        if news:
            link.go_on(self.time.now, out)
            self._forget()
            self.answer(out)
        return news

    def _heard_of(self, replica: Replica, version: int) -> bool:
        """The next server has so much of a copy, and those after it; whether that is news."""
        if replica.tail != self.rank:
            # the tail keeps what its syncing replica lacks
            return replica.acknowledge(version, max(version, replica.done))
        before = replica.done
        news = replica.acknowledge(0, version)
        self._acknowledge(replica)
        return news or replica.done != before

    def _forget(self) -> None:
        """Release what is done on all servers."""
        for number in [number for number, each in self._log.items() if each.done]:
            self._log.pop(number).release()

    def answer(self, out: Effects) -> None:
        """Acknowledge what is done here and after this server."""
        for sender, incoming in self._incoming.items():
            says = self._standing(sender, incoming)
            if says != incoming.said:
                incoming.say(says)
                out.append(Send(sender, says))

    def _standing(self, sender: NodeId, incoming: Incoming) -> ReplicateAck:
        done = tuple(
            (replica.table, replica.rows.start, replica.done)
            for replica in self.replicas.values()
            if self._previous(replica) == sender
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
        """Where a payload goes. Changes nothing."""
        found = self._found(sender, message)
        if found is None:
            return Discard("not from the server before this one in this view")
        incoming = self._incoming.get(sender)
        if incoming is not None and message.number < incoming.expected:
            return Discard("seen")
        if isinstance(message, Replicate) and not _agrees(message):
            return Discard("parts, versions and rates do not agree")
        loads = [
            stage(replica.number, KeyRange(part.start, part.stop), part.keys)
            for replica, part in zip(found, message.parts, strict=True)
        ]
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
    ) -> list[tuple[Replicate | StateChunk, list[Replica], Loads]]:
        """What is to be done now, in this order: `handled` is to be called after each."""
        if self._found(sender, message) is None:
            return []
        self._silent.pop(sender, None)
        incoming = self._incoming.setdefault(sender, Incoming())
        if message.number < incoming.expected:
            out.append(Send(sender, self._standing(sender, incoming)))
            return []
        if payload is None or payload.revoked:
            arrival = self.arriving(sender, message, 0, stage)
            if not isinstance(arrival, Sink):
                return []  # its payload was not taken: it comes again
            payload = arrival
        return [
            (each, self._found(sender, each) or [], loads)
            for each, loads in incoming.take(message, payload.context)
        ]

    def handled(self, operation: Operation, out: Effects) -> None:
        """It has been done here: pass it on, and the clock."""
        clock = operation.clock
        for replica in self._along(operation.path, operation.group):
            replica.reach(clock)
        self.carry(operation, out)
        self._tell(operation.path, operation.group, clock, out)

    def _found(self, sender: NodeId, message: Replicate | StateChunk) -> list[Replica] | None:
        """The copies that it is for; None where it is not for this server."""
        if message.view != self._view:
            return None
        found = []
        for part in message.parts:
            replica = next(
                (
                    replica
                    for replica in self.replicas.values()
                    if replica.table == part.table
                    and replica.rows.start <= part.start
                    and part.stop <= replica.rows.stop
                ),
                None,
            )
            if replica is None or self._previous(replica) != sender:
                return None
            found.append(replica)
        return found

    # ------------------------------------------------------------------ time

    def wakes_at(self) -> float:
        return min((*(each.again_at for each in self._links.values()), *self._silent.values(), inf))

    def tick(self, out: Effects) -> None:
        """Send again what has waited too long for its acknowledgement."""
        for link in self._links.values():
            if self.time.now >= link.again_at:
                link.again(self.time.now, out)
        self._say_hello(out)

    def peer_lost(self, node: NodeId, again_at: float) -> None:
        """Send again once the connection is back."""
        if node in self._links:
            self._links[node].broken(again_at)
        chained = {
            rank for replica in self.replicas.values() for rank in replica.chain if rank > self.rank
        }
        if node in (self._ids.get(rank) for rank in chained):
            self._silent[node] = again_at

    def behind(self, numbers: Sequence[int], clock: int) -> str:
        """Which heads have not told that `clock` is reached, of those that shards wait for."""
        heads = {
            f"server-{replica.chain[0]} (at {replica.reached})"
            for replica in (self.replicas[number] for number in numbers)
            if replica.chain[0] != self.rank and replica.reached < clock
        }
        return f"waits for clock {clock} to come from {', '.join(sorted(heads))}" if heads else ""

    def waits_for(self, parts_of_push: Iterable[AppliedPart]) -> str:
        """Who has to say that parts of a push are done."""
        names = {
            f"server-{each.replica.chain[each.replica.chain.index(self.rank) + 1]}"
            for each in parts_of_push
            if each.replica.done < each.version
        }
        return f"waits for {', '.join(sorted(names))} to have it as well" if names else ""


def _agrees(message: Replicate) -> bool:
    """Whether there is a version and a rate for each part."""
    return len(message.parts) == len(message.versions) == len(message.rates)
