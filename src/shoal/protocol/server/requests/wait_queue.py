"""The wait queue: requests that are answered later, and what each waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from operator import attrgetter

import msgspec

from shoal.protocol.consistency import apply_clock, needed
from shoal.protocol.limits import UNREAD_BYTES
from shoal.protocol.machine import AwaitRoom, Effects
from shoal.protocol.messages.reasons import NAMED, some_of
from shoal.protocol.messages.requests import Code, Probe, Request
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.server.requests.long_work import LongWork
from shoal.protocol.server.requests.staging import AdmittedRequest
from shoal.protocol.server.state.replica import AppliedPart, Replica
from shoal.protocol.server.state.state import ServerState
from shoal.protocol.views import Member, NodeId

COMPUTING_S = 5.0  # the time for which a worker counts as computing after it said so


class WaitingRequest(msgspec.Struct, frozen=True, eq=False):
    """A pull that waits for a clock, or a push that waits until all replicas have it.

    clock:  the clock that every worker has to reach; 0 for a push
    since:  the time at which it came
    pulled: the replicas that it pulls from and that go by the clocks of its worker's group
    place:  the place of a push among all that have come
    """

    admitted: AdmittedRequest
    clock: int
    since: float
    pulled: Sequence[Replica] = ()
    place: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return self.admitted.request.incarnation, self.admitted.request.seq


class WaitQueue:
    """The requests that wait at a server, by (incarnation, sequence number).

    pulls:   the pulls that wait for a clock
    pushes:  the pushes that wait until all replicas have them
    full:    the workers that have to read their answers first
    """

    def __init__(
        self,
        state: ServerState,
        chains: Chains,
        checkpointer: Checkpointer,
        long_work: LongWork,
        unread_bytes: int = UNREAD_BYTES,
    ) -> None:
        self.pulls: dict[tuple[int, int], WaitingRequest] = {}
        self.pushes: dict[tuple[int, int], WaitingRequest] = {}
        self._places = count()
        self._in_rounds: list[WaitingRequest] = []  # pushes of which a part is in an open round
        # the other pushes, by a replica that others lack: (version, place, push), a heap
        self._lacked: dict[int, list[tuple[int, int, WaitingRequest]]] = {}
        self._replicas = state.replicas
        self._clocks = state.clocks
        self._workers = state.workers
        self._chains = chains
        self._checkpointer = checkpointer
        self._long_work = long_work
        self._unread_bytes = unread_bytes
        self._answered: dict[NodeId, int] = {}  # bytes of rows, since there was room
        self.full: set[NodeId] = set()
        self._computing: dict[int, float] = {}  # when a worker has last said that it computes

    # ------------------------------------------------------------------ entering and leaving

    def look(self, admitted: AdmittedRequest, accepted: bool) -> WaitingRequest:
        """Return a pull with the clock that it has to wait for.

        The answer also acknowledges the request's own push, so it waits for that round as well.

        accepted:  whether the request's push waits for a round
        """
        request = admitted.request
        clock = read_clock(request)
        need = self._applied_at(admitted) if accepted else 0
        pulled = () if admitted.footprint.prompt else self._own_pulls(admitted)
        for replica in pulled:
            spec = replica.shard.spec  # pushes may wait for a checkpoint clock
            checkpoint_clock = self._checkpointer.checkpoint_clock(spec, request.clock)
            need = max(need, needed(spec.consistency, clock), checkpoint_clock)
        return WaitingRequest(admitted, need, self._chains.time.now, pulled)

    def add_pull(self, pull: WaitingRequest) -> None:
        """Add a pull that waits for a clock."""
        self.pulls[pull.key] = pull

    def add_push(self, admitted: AdmittedRequest, lacking: Sequence[AppliedPart]) -> None:
        """Add a push; it is answered when all replicas have it.

        lacking:  the parts of it that they have not
        """
        waiting = WaitingRequest(admitted, 0, self._chains.time.now, (), next(self._places))
        self.pushes[waiting.key] = waiting
        self._sort(waiting, lacking)

    def _sort(self, push: WaitingRequest, lacking: Sequence[AppliedPart]) -> None:
        """Sort a push by the parts of it that replicas lack."""
        if any(part.version < 0 for part in lacking):
            self._in_rounds.append(push)
        else:
            part = lacking[0]
            heap = self._lacked.setdefault(part.replica.number, [])
            heappush(heap, (part.version, push.place, push))

    def replicated(self) -> list[WaitingRequest]:
        """Return the pushes that all replicas have by now, in the order in which they came.

        Of the pushes that wait for a replica only those are looked at whose version others have.
        """
        look, self._in_rounds = self._in_rounds, []
        for number, heap in self._lacked.items():
            replica = self._replicas.get(number)
            while heap and (replica is None or heap[0][0] <= replica.done):
                look.append(heappop(heap)[2])
        found = []
        for push in look:
            if self.pushes.get(push.key) is not push:
                continue  # it has left
            if lacking := push.admitted.log.unreplicated(push.admitted.request.seq):
                self._sort(push, lacking)
            else:
                found.append(push)
        return sorted(found, key=attrgetter("place"))

    def leave(self, key: tuple[int, int]) -> None:
        """Remove a request."""
        self.pulls.pop(key, None)
        self.pushes.pop(key, None)

    def drop(self, worker: int, below: float = inf) -> None:
        """Remove a worker's requests below `below`: it has left, or needs no answer to them."""
        keys = (*self.pulls, *self.pushes)
        for key in [key for key in keys if key[0] == worker and key[1] < below]:
            self.leave(key)

    def clear(self) -> None:
        """Remove everything, because chains have changed; workers send again to the new servers."""
        for (_, seq), pull in self.pulls.items():
            pull.admitted.log.record(seq, "accepted")
        self.pulls.clear()
        self.pushes.clear()
        self._in_rounds.clear()
        self._lacked.clear()

    # ------------------------------------------------------------------ slow readers

    def answered(self, to: NodeId, nbytes: int, out: Effects) -> None:
        """Count the bytes of rows that a worker is sent.

        Beyond a limit its pulls wait until it has read them: this server would hold them in memory.
        """
        total = self._answered.get(to, 0) + nbytes
        if total > self._unread_bytes and to not in self.full:
            self.full.add(to)
            out.append(AwaitRoom(to))
            total = 0
        self._answered[to] = total

    def has_room(self, worker: NodeId) -> None:
        """Record that a worker has read most of its answers."""
        self.full.discard(worker)

    def forget(self, worker: NodeId) -> None:
        """Forget a worker that has left."""
        self.full.discard(worker)
        self._answered.pop(worker, None)

    # ------------------------------------------------------------------ conditions

    def due(self, number: int, request: Request) -> int:
        """Return the clock that a push to a shard waits for before it is applied; 0 for none."""
        if request.assign:
            return 0
        spec = self._replicas[number].shard.spec
        return apply_clock(spec.consistency, request.clock) or self._checkpointer.checkpoint_clock(
            spec, request.clock
        )

    def too_late(self, admitted: AdmittedRequest) -> str:
        """Return why a push comes too late for the round of one of its parts; empty if it does not.

        A worker pushes to no round that it has passed. Where rounds close without all workers,
        the round may also have closed here, or in rows that were received from another server.
        """
        request, log = admitted.request, admitted.log
        clocks = self._clocks.by_worker[request.incarnation]
        own = clocks[request.incarnation]
        if request.assign or (request.clock >= own and clocks.closes is None):
            return ""
        for (number, _, _), part in zip(admitted.footprint.pushes, request.pushes, strict=True):
            replica = self._replicas[number]
            if replica.shard.spec.consistency.apply_at == "round_end":
                closed = 0 if clocks.closes is None else max(clocks.closed, replica.closed)
                if request.clock < max(own, closed) and log.missing(request.seq, part):
                    over = f"this worker is at clock {own}; round {request.clock} takes no more"
                    return f"round {request.clock} has closed" if request.clock >= own else over
        return ""

    def ready(self, pull: WaitingRequest) -> bool:
        """Return whether a pull can be answered."""
        if self.full and pull.admitted.sender in self.full:
            return False
        if self._long_work.suspended and self._is_changing(pull):
            return False
        log = pull.admitted.log
        if pull.clock:
            closed = self._clocks.of(log.group).closed
            for replica in pull.pulled:
                if self._chains.reached(replica, closed) < pull.clock:
                    return False
            if not pull.pulled and closed < pull.clock:
                return False
        return log.complete(pull.admitted.request.seq)

    def _is_changing(self, pull: WaitingRequest) -> bool:
        """Return whether long work is on the rows of a pull, or closes rounds that it waits for."""
        if pull.clock and self._long_work.closing == pull.admitted.log.group:
            return True
        busy = self._long_work.busy
        return any(number in busy for number, _, _ in pull.admitted.footprint.pulls)

    def _applied_at(self, admitted: AdmittedRequest) -> int:
        """Return the clock that is reached when all of a request's push is applied."""
        pushes = admitted.footprint.pushes
        return max((self.due(number, admitted.request) for number, _, _ in pushes), default=0)

    def _own_pulls(self, admitted: AdmittedRequest) -> list[Replica]:
        """Return the pulled replicas that go by the clocks of the worker's own group.

        Pulls from other groups' tables wait for no clock.
        """
        group = admitted.log.group
        pulled = [self._replicas[number] for number, _, _ in admitted.footprint.pulls]
        return [replica for replica in pulled if replica.group == group]

    # ------------------------------------------------------------------ reasons

    def waiting(self, pushes: bool = False) -> list[tuple[Request, str, float]]:
        """Return (request, reason, since) of every waiting pull, and of pushes if asked for."""
        waiting = {**self.pushes, **self.pulls} if pushes else self.pulls
        return [(each.admitted.request, self.reason(each), each.since) for each in waiting.values()]

    def waits_for(self, request: Request | Probe, code: Code) -> tuple[int, str]:
        """Return the clock that a request with that outcome waits for, or -1, and the reason."""
        key = request.incarnation, request.seq
        pull = self.pulls.get(key)
        if pull is not None:
            return pull.clock, self.reason(pull)
        if code != "accepted":
            return -1, ""
        push, group = self.pushes.get(key), self._clocks.group(request.incarnation)
        clock = self._clocks.of(group).closed + 1
        return clock, self.reason(push) if push else self._absent(group, clock)

    def reason(self, waiting: WaitingRequest) -> str:
        """Return the reason of a wait: the workers or servers that delay the answer."""
        admitted, clock = waiting.admitted, waiting.clock
        own = admitted.log.unreplicated(admitted.request.seq)
        if any(each.version < 0 for each in own):
            clock = max(clock, self._applied_at(admitted))
        return (
            self._absent(admitted.log.group, clock)
            or self._chains.behind(waiting.pulled, clock)
            or self._chains.waits_for(own)
            or self._unread(admitted.sender)
            or ("waits for an update of its rows to end" if self._is_changing(waiting) else "")
        )

    def _unread(self, worker: NodeId) -> str:
        text = f"more than {self._unread_bytes} bytes of answers are on their way to this worker"
        return text if worker in self.full else ""

    def late(self, group: str, clock: int) -> list[Member]:
        """Return the workers of a group that are below `clock`."""
        return [self._workers[worker] for worker in self._clocks.of(group).behind(clock)]

    def computes(self, worker: int) -> list[Member]:
        """Record that a worker computes; if all the slowest do, return the rest of its group."""
        now, clocks = self._chains.time.now, self._clocks.of(self._clocks.group(worker))
        known = {each: at for each, at in self._computing.items() if each in self._workers}
        self._computing = {**known, worker: now}
        slowest = clocks.behind(clocks.closed + 1)
        if any(now > self._computing.get(each, -inf) + COMPUTING_S for each in slowest):
            return []
        group = self._workers[worker].group
        others = [each for each in self._workers if each not in slowest]
        return [self._workers[each] for each in others if self._workers[each].group == group]

    def _absent(self, group: str, clock: int) -> str:
        """Return which workers are below `clock`, as the reason of a wait; empty if none is."""
        behind = self._clocks.of(group).behind(clock)
        if not behind:
            return ""
        late = [f"{self._workers[w].name} (at {self._clocks[w]})" for w in behind[:NAMED]]
        closes = self._clocks.of(group).closes
        enough = "" if closes is None else f", or for {closes}"
        return f"waits for clock {clock} of {some_of(late, of=len(behind))}{enough}"

    def problems(self) -> Iterator[str]:
        """Yield a problem for each waiting pull that could be answered."""
        for pull in self.pulls.values():
            if self.ready(pull):
                yield (
                    f"{pull.admitted.request.describe()} waits although every worker has reached "
                    f"clock {pull.clock}"
                )


def read_clock(request: Request) -> int:
    """Return the clock that a request pulls at: the one that it advances to, if it advances."""
    return request.advance if request.advance >= 0 else request.clock
