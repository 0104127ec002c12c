"""Neighbours: a worker's exchanges with its neighbours in a graph of all workers, peer to peer.

Each worker sends versions of its values to its neighbours and takes theirs, which it keeps apart:
so it can mix them with any weights (as after a neighbourhood allgather of MPI). In order, each
takes the version of its own round from every neighbour, and is at most one round ahead of them. Out
of order, each takes the newest versions that have arrived since, and waits for none.

Invariant: this worker sends a copy, which stays until every neighbour has acknowledged it or a
newer version has taken its place. So its caller goes on at once, and lost pieces can be sent again.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from shoal.errors import Cancelled, InvalidValue, ShoalError
from shoal.protocol.machine import Arrival, Discard, Effects, Outcome, Received, Resolve, Unexpected
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.collective import NeighbourAck, NeighbourPiece, NeighbourProbe
from shoal.protocol.requests import NeighbourExchange, Neighbourhood, NeighbourValues
from shoal.protocol.session import Session
from shoal.protocol.views import Member, NodeId, View
from shoal.protocol.worker.peers.links import NO_VERSION, Layout, Link, Values, Version
from shoal.protocol.worker.peers.members import members_of, unreachable

FromNeighbour = NeighbourPiece | NeighbourProbe | NeighbourAck


class Neighbours:
    """The exchanges of one name: the part of a worker's machine that handles their messages."""

    def __init__(self, session: Session, piece_bytes: int, late_s: float, name: str) -> None:
        self._session = session
        self._piece_bytes = piece_bytes
        self._late_s = late_s
        self._name = name
        self._members: tuple[Member, ...] = ()  # by rank, without finished workers
        self._left: set[str] = set()  # names of workers that have left, in this view or before
        self._graph = ""  # until the first exchange
        self._layout = Layout.of((), piece_bytes)
        self._links: dict[NodeId, Link] = {}  # by rank
        self._version: Version = NO_VERSION
        self._sent: list[Values] = []  # copies, some of which links still need
        self._request_id = 0
        self._asked: NeighbourExchange | None = None  # the exchange that waits
        self._late_at = inf  # when it goes on without neighbours that are late
        self._changed = False  # whether the workers have changed since the last exchange
        self._wrong: ShoalError | None = None  # a neighbour's mistake, for the next exchange
        self._bytes = [0, 0]  # sent to and received from former neighbours

    @property
    def bytes_sent(self) -> int:
        """The bytes of values sent so far."""
        return self._bytes[0] + sum(link.bytes_sent for link in self._links.values())

    @property
    def bytes_received(self) -> int:
        """The bytes of values received so far."""
        return self._bytes[1] + sum(link.bytes_received for link in self._links.values())

    # ------------------------------------------------------------------ events of the machine

    def adopt(self, view: View, now: float, out: Effects) -> None:
        """Adopt the members of this worker's group; an exchange goes on with them."""
        workers = members_of(view, self._session)
        self._members = tuple(each for each in workers if each.name not in self._left)
        self._changed = True
        if self._graph:
            self._connect(now, out)
            self._look(out)

    def leave_out(self, names: Iterable[str], now: float, out: Effects) -> None:
        """Go on without workers that have ended their work."""
        self._left.update(names)
        view = self._session.view
        if view is not None and any(each.name in self._left for each in self._members):
            self.adopt(view, now, out)

    def _connect(self, now: float, out: Effects) -> None:
        """Make the links to new neighbours, and close the links to former ones."""
        near = self._near()
        before, self._links = self._links, {}
        for member in self._members:
            if member.id in near:
                link = before.pop(member.id, None)
                if link is None:
                    link = Link(member.id, member.rank, self._layout, self._name)
                    if self._sent:  # this worker is a new neighbour for it
                        link.offer(self._sent[-1], True, now, out)
                self._links[member.id] = link
        for link in before.values():
            link.close()
            self._bytes[0] += link.bytes_sent
            self._bytes[1] += link.bytes_received
        for link in self._links.values():
            link.tick(now, out)

    def _near(self) -> set[NodeId]:
        """Return the neighbours; none if this worker has left."""
        nodes, me = [member.id for member in self._members], self._session.me
        if me not in nodes:
            return set()
        at = nodes.index(me)
        near = {nodes[at - 1], nodes[(at + 1) % len(nodes)]} if self._graph == "ring" else {*nodes}
        return near - {me}

    def ask(self, request_id: int, ask: NeighbourExchange, now: float, out: Effects) -> None:
        """Send values, and take the values of the neighbours when they have arrived."""
        problem = self._problem(ask)
        if problem:
            out.append(Resolve(request_id, Outcome(error=InvalidValue(problem))))
            return
        if not self._graph:
            sizes = tuple(each.nbytes for each in ask.buffers)
            self._graph, self._layout = ask.graph, Layout.of(sizes, self._piece_bytes)
            self._connect(now, out)
        self._request_id, self._asked = request_id, ask
        self._late_at = now + self._late_s
        if not ask.hurries:
            for link in self._links.values():
                link.wait_again()
        if ask.buffers:
            same = ask.phase == self._version[0]
            self._version = ask.phase, self._version[1] + 1 if same else 1
            values = self._copy(ask)
            for link in self._links.values():
                link.offer(values, ask.ordered, now, out)
        self._look(out)

    def _problem(self, ask: NeighbourExchange) -> str:
        if self._asked is not None:
            return "this worker's exchange with its neighbours has not ended yet"
        if ask.phase < self._version[0]:
            return f"phase {ask.phase} is over"
        if self._graph:
            if ask.graph != self._graph:
                return f"this worker's neighbours are those of a {self._graph} graph"
            if ask.buffers and tuple(b.nbytes for b in ask.buffers) != self._layout.sizes:
                return "values have the same sizes in all exchanges"
        elif not any(each.nbytes for each in ask.buffers):
            return "the first exchange says how large the values are"
        return unreachable(self._members, "an exchange with neighbours")

    def _copy(self, ask: NeighbourExchange) -> Values:
        """Return a copy of the values, in memory that no link needs any more."""
        links = self._links.values()
        kept = [each for each in self._sent if any(link.keeps(each) for link in links)]
        free = [each.memory for each in self._sent if each not in kept and not each.again]
        memory = free[0] if free else self._layout.memory()
        for into, values in zip(self._layout.buffers(memory), ask.buffers, strict=True):
            into[:] = values
        made = Values(self._version, memory, dict(ask.clocks))
        self._sent = [*kept, made]
        return made

    def cancel(self, request_id: int, out: Effects) -> None:
        """Withdraw an exchange; the values that were sent go on."""
        if self._asked is not None and self._request_id == request_id:
            self._resolve(Outcome(error=Cancelled("the caller withdrew it")), out)

    def close(self, error: ShoalError, out: Effects) -> None:
        """Fail the exchange: the run has ended."""
        for link in self._links.values():
            link.close()
        if self._asked is not None:
            self._resolve(Outcome(error=error), out)

    def deadline(self) -> float:
        due = self._late_at if self._asked is not None else inf
        return min(due, *(link.probe_at() for link in self._links.values()), inf)

    def peer_lost(self, node: NodeId, now: float) -> None:
        if node in self._links:
            self._links[node].lost(now)

    def tick(self, now: float, out: Effects) -> None:
        for link in self._links.values():
            link.tick(now, out)
        if self._asked is not None and now >= self._late_at:
            self._late_at = inf
            for link in self._links.values():
                link.skip_if_late(self._version)
            self._look(out)

    def waiting(self) -> list[tuple[str, str]]:
        """Return (exchange, reason) of the exchange that waits."""
        if self._asked is None:
            return []
        names = {member.id: member.name for member in self._members}
        late = [names[n] for n, link in self._links.items() if not link.has(self._version)]
        what = ", ".join(late) if self._asked.wait == "all" else "any of its neighbours"
        return [(f"exchange #{self._version[1]} with neighbours", f"waits for {what}")]

    # ------------------------------------------------------------------ messages

    def arriving(self, sender: NodeId, message: NeighbourPiece, nbytes: int) -> Arrival:
        link = self._links.get(sender)
        return Discard("no neighbour") if link is None else link.arriving(message, nbytes)

    def handle(self, message: FromNeighbour, event: Received, now: float, out: Effects) -> None:
        link = self._links.get(event.sender)
        if link is None:
            out.append(Unexpected(type(message).__name__))
            return
        link.heard(now, out)
        if isinstance(message, NeighbourProbe):
            link.probed(message, out)
        elif isinstance(message, NeighbourAck):
            link.acknowledged(message, now, out)
        else:
            if message.total != self._layout.nbytes:
                self._wrong = InvalidValue(
                    f"worker {link.rank} sends values of {message.total} bytes where this "
                    f"worker's have {self._layout.nbytes}"
                )
            elif not link.landed(message, event.payload, out):
                return
            phase, number = self._version
            link.catch_up((phase, number - 1))
            self._look(out)

    def _look(self, out: Effects) -> None:
        """Resolve the exchange if its condition is met."""
        ask, links = self._asked, self._links.values()
        if ask is None:
            return
        if self._wrong is not None:
            error, self._wrong = self._wrong, None
            self._resolve(Outcome(error=error), out)
        elif (
            ask.wait == "none"
            or (ask.wait == "all" and all(link.late or link.has(self._version) for link in links))
            or (ask.wait == "any" and self._changed)
            or (ask.wait == "any" and any(link.news(ask.phase) for link in links))
        ):
            self._resolve(Outcome(value=self._taken(ask)), out)

    def _taken(self, ask: NeighbourExchange) -> Neighbourhood:
        self._changed = False
        found, number, newest = [], self._version[1], self._version
        for link in self._links.values():
            values = link.take((ask.phase, number), ask.ordered and not link.late)
            if values is not None:
                newest = max(newest, values.version)
                buffers = self._layout.buffers(values.memory)
                found.append(NeighbourValues(link.rank, buffers, values.clocks))
        if self._late_s < inf and ask.ordered:
            self._version = newest  # a worker that was late itself is in step from now on
        ranks = tuple(member.rank for member in self._members)
        return Neighbourhood(tuple(found), len(self._links), ranks)

    def _resolve(self, outcome: Outcome, out: Effects) -> None:
        out.append(Resolve(self._request_id, outcome))
        self._request_id, self._asked = 0, None


class NeighbourExchanges:
    """A worker's exchanges with neighbours, of all names."""

    def __init__(self, session: Session, piece_bytes: int, late_s: float) -> None:
        self._session = session
        self._piece_bytes = piece_bytes
        self._late_s = late_s
        self._named: dict[str, Neighbours] = {}

    @property
    def bytes_sent(self) -> int:
        """The bytes of values sent so far."""
        return sum(each.bytes_sent for each in self._named.values())

    @property
    def bytes_received(self) -> int:
        """The bytes of values received so far."""
        return sum(each.bytes_received for each in self._named.values())

    def ask(self, request_id: int, ask: NeighbourExchange, now: float, out: Effects) -> None:
        """Send values, and take the values of the neighbours when they have arrived."""
        if ask.name not in self._named:
            made = Neighbours(self._session, self._piece_bytes, self._late_s, ask.name)
            if self._session.view is not None:
                made.adopt(self._session.view, now, out)
            self._named[ask.name] = made
        self._named[ask.name].ask(request_id, ask, now, out)

    def arriving(self, sender: NodeId, message: NeighbourPiece, nbytes: int) -> Arrival:
        named = self._named.get(message.name)
        return (
            Discard("no exchange yet") if named is None else named.arriving(sender, message, nbytes)
        )

    def problem_of(self, message: Message) -> str:
        """Return why no worker may send a message; "" if one may."""
        if isinstance(message, NeighbourAck) and len({*message.missing}) < len(message.missing):
            return "it misses a piece twice"
        if isinstance(message, NeighbourPiece) and not message.round:
            return "rounds begin with 1"
        return ""

    def handle(self, event: Received, now: float, out: Effects) -> None:
        message = event.message
        if not isinstance(message, FromNeighbour):
            return
        if named := self._named.get(message.name):
            named.handle(message, event, now, out)
        else:  # it comes before this worker's first exchange, and is not answered
            out.append(Unexpected(type(message).__name__))

    def adopt(self, view: View, now: float, out: Effects) -> None:
        """Adopt the members of this worker's group; exchanges go on with them."""
        for each in self._named.values():
            each.adopt(view, now, out)

    def leave_out(self, names: Iterable[str], now: float, out: Effects) -> None:
        """Go on without workers that have ended their work."""
        for each in self._named.values():
            each.leave_out(names, now, out)

    def cancel(self, request_id: int, out: Effects) -> None:
        """Withdraw an exchange; the values that were sent go on."""
        for each in self._named.values():
            each.cancel(request_id, out)

    def close(self, error: ShoalError, out: Effects) -> None:
        """Fail the exchanges: the run has ended."""
        for each in self._named.values():
            each.close(error, out)

    def deadline(self) -> float:
        if not self._named:
            return inf
        return min(each.deadline() for each in self._named.values())

    def peer_lost(self, node: NodeId, now: float) -> None:
        for each in self._named.values():
            each.peer_lost(node, now)

    def tick(self, now: float, out: Effects) -> None:
        for each in self._named.values():
            each.tick(now, out)

    def waiting(self) -> list[tuple[str, str]]:
        """Return (exchange, reason) of each waiting exchange."""
        return [line for each in self._named.values() for line in each.waiting()]
