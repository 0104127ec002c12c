"""The seeded network of the simulator: delay, clogs, partitions, and one of two kinds of links.

Datagrams are lost, duplicated and reordered. Streams behave as TCP: what is sent arrives once, in
order; what is lost is sent again after a silence, and all behind it waits; a link that is full
holds its sender up.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec

from shoal.protocol.views import NodeId
from shoal.simulation.draws import Draws

Link = tuple[NodeId, NodeId, str]  # source, target, and which of several connections
Fate = tuple[list[float], list[str]]  # arrival times, and the names of faults
RETRANSMIT_S, RETRANSMIT_MAX_S = 0.2, 1.0  # silence until a segment is sent again; doubles
PACKET_BYTES = 1460
CONNECT_S = 0.004  # at most, where the peer answers


class NetworkOptions(msgspec.Struct, frozen=True):
    """Options of the simulated network.

    delay_s, jitter_s:  the parts of a message's delay, delay + U(0, jitter)
    loss, duplicate:    the probabilities for each message
    reorder:            the probability that a message does not wait for the one before it
    stall:              the probability that a payload stops half-way, for U(0, stall_s)
    payload_s:          the bound of the time that the second half of a payload takes otherwise
    bandwidth:          the bytes per second of every link
    host_bandwidth:     the bytes per second that a host sends, and receives, over all links; 0 for
                        no limit
    link_bytes:         the bytes that a link holds before it drops messages or holds up the sender;
                        an empty one takes any message
    streams:            whether links are streams
    """

    delay_s: float = 0.0005
    jitter_s: float = 0.001
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    stall: float = 0.0
    stall_s: float = 1.0
    payload_s: float = 0.0005
    bandwidth: float = 1e9
    host_bandwidth: float = 0.0
    link_bytes: int = 1 << 22
    streams: bool = False


class Network:
    """Decides when each copy of a message arrives.

    The fate of a message is drawn for its link and its kind: one of another kind does not shift it.
    """

    def __init__(self, options: NetworkOptions, draws: Draws) -> None:
        self.options = options
        self._draws = draws
        self.hits: Counter[str] = Counter()
        self._last: dict[Link, float] = {}
        self._queued: dict[Link, list[tuple[float, int]]] = {}
        self._clogged: dict[tuple[NodeId, NodeId], float] = {}
        self._cut: list[tuple[frozenset[NodeId], float]] = []
        self._blackholes: dict[frozenset[NodeId], float] = {}
        self._sends_until: dict[NodeId, float] = {}  # with a bandwidth of hosts
        self._receives: dict[NodeId, list[tuple[float, float]]] = {}

    def clog(self, source: NodeId, target: NodeId, until: float) -> None:
        """Delay all messages of one link until `until`."""
        self._clogged[source, target] = until

    def partition(self, island: frozenset[NodeId], until: float) -> None:
        """Lose all messages between `island` and the other nodes until `until`."""
        self._cut.append((island, until))

    def blackhole(self, one: NodeId, other: NodeId, until: float) -> None:
        """Lose what is sent on the present connection of two nodes until `until`."""
        self._blackholes[frozenset((one, other))] = until

    def reconnected(self, one: NodeId, other: NodeId) -> None:
        """Forget the former connection of two nodes, which have a new one."""
        self._blackholes.pop(frozenset((one, other)), None)
        for link in [each for each in self._last if {one, other} == set(each[:2])]:
            self._last.pop(link, None)
            self._queued.pop(link, None)

    def _cut_until(self, one: NodeId, other: NodeId) -> float:
        between = (until for island, until in self._cut if (one in island) != (other in island))
        return max(between, default=0.0)

    def is_cut(self, now: float, one: NodeId, other: NodeId) -> bool:
        """Return whether no path leads from one node to another."""
        return self._cut_until(one, other) > now

    def carries(self, now: float, one: NodeId, other: NodeId) -> bool:
        """Return whether something is under way between two nodes."""
        between = [link for link in self._queued if {one, other} == set(link[:2])]
        return any(at > now for link in between for at, _ in self._queued[link])

    def connects_s(self, source: NodeId, target: NodeId) -> float:
        """Return how long it takes to connect to a peer that answers."""
        if not self.options.streams:
            return 0.0
        return self._draws["connect", source, target].random() * CONNECT_S

    def heal(self) -> None:
        """End all faults but blackholes, which end with their connections."""
        calm = {"loss": 0.0, "duplicate": 0.0, "reorder": 0.0, "stall": 0.0}
        self.options = msgspec.structs.replace(self.options, **calm)
        self._clogged.clear()
        self._cut.clear()

    def send(
        self,
        now: float,
        source: NodeId,
        target: NodeId,
        nbytes: int,
        kind: str = "",
        connection: str = "",
    ) -> Fate:
        """Return the arrival times of a message sent now (none, one or two), and its faults.

        kind:        the class of the message, or "" if the network has one class only
        connection:  which connection of the two nodes it takes, if there are several
        """
        random = self._draws["message", source, target, kind]
        cut_until = self._cut_until(source, target)
        if not connection and self._blackholes.get(frozenset((source, target)), 0.0) > now:
            return self._fate([], ["blackhole"])
        link = source, target, connection
        if self.options.streams:
            return self._fate(*self._stream(random, now, link, nbytes, cut_until))
        if cut_until > now:
            return self._fate([], ["partition"])
        return self._fate(*self._datagram(random, now, link, nbytes))

    def _datagram(self, random: Random, now: float, link: Link, nbytes: int) -> Fate:
        options = self.options
        if random.random() < options.loss:
            return [], ["loss"]
        queue = [each for each in self._queued.get(link, ()) if each[0] > now]
        if queue and sum([size for _, size in queue]) + nbytes > options.link_bytes:
            return [], ["overflow"]
        at, faults = self._travel(random, now, link, nbytes)
        if random.random() < options.reorder:
            faults.append("reorder")
        else:
            at = max(at, self._last.get(link, 0.0) + 1e-9)
            self._last[link] = at
        arrivals = [at]
        if random.random() < options.duplicate:
            faults.append("duplicate")
            arrivals.append(at + options.delay_s + random.random() * 20 * options.jitter_s)
        self._queued[link] = queue + [(each, nbytes) for each in arrivals]
        return arrivals, faults

    def _stream(
        self, random: Random, now: float, link: Link, nbytes: int, cut_until: float
    ) -> Fate:
        options = self.options
        queue = [each for each in self._queued.get(link, ()) if each[0] > now]
        leaves, held = now, sum([size for _, size in queue])
        for arrives, size in queue:
            if held + nbytes <= options.link_bytes:
                break
            leaves, held = arrives, held - size
        at, faults = self._travel(random, leaves, link, nbytes)
        if leaves > now:
            faults.append("back-pressure")
        pause, sent = RETRANSMIT_S, leaves
        while sent < cut_until or random.random() < options.loss:
            faults.append("partition" if sent < cut_until else "retransmission")
            sent, at = sent + pause, at + pause
            pause = min(2 * pause, RETRANSMIT_MAX_S)
        at = max(at, self._last.get(link, 0.0) + 1e-9)
        self._last[link] = at
        self._queued[link] = [*queue, (at, nbytes)]
        return [at], sorted(set(faults))

    def _travel(
        self, random: Random, now: float, link: Link, nbytes: int
    ) -> tuple[float, list[str]]:
        """Return when a message that leaves now arrives, and its faults: a clogged link."""
        options = self.options
        queued_s = self._queues(now, link, nbytes) if options.host_bandwidth else 0.0
        at = now + queued_s + options.delay_s + random.random() * options.jitter_s
        at += nbytes / options.bandwidth
        clogged = self._clogged.get(link[:2], 0.0)
        return (at + clogged - now, ["clog"]) if clogged > now else (at, [])

    def _queues(self, now: float, link: Link, nbytes: int) -> float:
        """Return how long a message takes at both hosts, behind what they send and receive.

        The receiver reads while the sender sends: two hosts of one bandwidth take no longer than
        one. A message of one packet fits between the packets of a payload, and delays none.
        """
        source, target, _ = link
        takes_s = nbytes / self.options.host_bandwidth
        begins = max(now, self._sends_until.get(source, 0.0))
        self._sends_until[source] = begins + takes_s
        if nbytes <= PACKET_BYTES:
            return begins + takes_s - now
        busy = [each for each in self._receives.get(target, ()) if each[1] > now]
        for start, stop in busy:  # the first time that is long enough and not taken
            if begins + takes_s <= start:
                break
            begins = max(begins, stop)
        self._receives[target] = sorted([*busy, (begins, begins + takes_s)])
        return begins + takes_s - now

    def second_part(
        self, source: NodeId, target: NodeId, kind: str
    ) -> tuple[float, float, list[str]]:
        """Return where a payload is cut, the delay of its second part, and its faults.

        It is cut at a share of its bytes, from 1/8 to 7/8.
        """
        random = self._draws["second part", source, target, kind]
        share = random.randint(1, 7) / 8
        if random.random() < self.options.stall:
            return share, random.random() * self.options.stall_s, self._fate([], ["stall"])[1]
        return share, random.random() * self.options.payload_s, []

    def _fate(self, arrivals: list[float], faults: list[str]) -> Fate:
        self.hits.update(faults)
        return arrivals, faults
