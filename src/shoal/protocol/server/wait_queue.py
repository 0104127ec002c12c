"""Parking: requests that are answered later, which clock each waits for, and whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from shoal.protocol.consistency import Clocks, apply_clock, needed
from shoal.protocol.messages import Code, Probe, Request
from shoal.protocol.messages.describing import describe
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replies import Replies
from shoal.protocol.server.request_log import RequestLog
from shoal.protocol.server.shard_store import ShardStore
from shoal.protocol.server.staging import AdmittedRequest


class WaitingRequest(msgspec.Struct, frozen=True, eq=False):
    """A pull that waits until every worker has reached `clock`; or a push that others lack, at 0.

    since: when it came
    """

    admitted: AdmittedRequest
    clock: int
    since: float

    @property
    def key(self) -> tuple[int, int]:
        return self.admitted.request.incarnation, self.admitted.request.seq


class WaitQueue:
    """Who waits at a server.

    pulls:   that wait for a clock, by request id
    pushes:  that other servers are to have as well
    """

    def __init__(
        self,
        admission: Admission,
        shards: Mapping[int, ShardStore],
        clocks: Clocks,
        replies: Replies,
        replication: Replication,
        checkpointer: Checkpointer,
    ) -> None:
        self.pulls: dict[tuple[int, int], WaitingRequest] = {}
        self.pushes: dict[tuple[int, int], WaitingRequest] = {}
        self._admission = admission
        self._shards = shards
        self._clocks = clocks
        self._replies = replies
        self._replication = replication
        self._checkpointer = checkpointer

    # ------------------------------------------------------------------ who waits

    def look(self, admitted: AdmittedRequest, accepted: bool) -> WaitingRequest:
        """What a pull waits for, if it is to wait.

        The answer acknowledges the request's own push too, so it also waits for that round.

        accepted:  its push waits for one
        """
        request = admitted.request
        clock = read_clock(request)
        need = self._applied_at(admitted) if accepted else 0
        for number in self._own_pulls(admitted):
            spec = self._shards[number].spec  # its own pushes may wait for a marker
            checkpoint_clock = self._checkpointer.checkpoint_clock(spec, request.clock)
            need = max(need, needed(spec.consistency, clock), checkpoint_clock)
        return WaitingRequest(admitted, need, self._replication.time.now)

    def add_pull(self, pull: WaitingRequest) -> None:
        """It is to wait."""
        self.pulls[pull.key] = pull

    def add_push(self, admitted: AdmittedRequest) -> None:
        """A push that is not settled: it may be asked for, and is answered once it is."""
        parked = WaitingRequest(admitted, 0, self._replication.time.now)
        self.pushes[parked.key] = parked

    def leave(self, key: tuple[int, int]) -> None:
        """Nobody waits for that request's answer any more."""
        self.pulls.pop(key, None)
        self.pushes.pop(key, None)

    def drop_worker(self, worker: int) -> None:
        """It has gone."""
        self._drop([key for key in (*self.pulls, *self.pushes) if key[0] == worker])

    def forget(self, log: RequestLog) -> None:
        """What its worker has given up is not answered any more."""
        worker, below = log.incarnation, log.forget_below
        keys = (*self.pulls, *self.pushes)
        self._drop([key for key in keys if key[0] == worker and key[1] < below])

    def clear(self) -> None:
        """Other servers have some of the rows now: whoever waits asks again, of the new ones."""
        for (_, seq), parked in self.pulls.items():
            parked.admitted.log.record(seq, "accepted")
        self.pulls.clear()
        self.pushes.clear()

    def _drop(self, keys: list[tuple[int, int]]) -> None:
        for key in keys:
            self.leave(key)

    # ------------------------------------------------------------------ when it ends

    def due(self, number: int, request: Request) -> int:
        """The clock that is to be reached before a push is in a shard's rows; 0 for at once."""
        if request.assign:
            return 0
        spec = self._shards[number].spec
        return apply_clock(spec.consistency, request.clock) or self._checkpointer.checkpoint_clock(
            spec, request.clock
        )

    def ready(self, pull: WaitingRequest) -> bool:
        """Whether it can be answered."""
        if pull.clock > self._reached(pull.admitted):
            return False
        return pull.admitted.log.complete(pull.admitted.request.seq)

    def _reached(self, admitted: AdmittedRequest) -> int:
        """The clock that the rows which a request pulls have come to."""
        minimum = self._clocks.of(admitted.log.group).minimum
        if not self._admission.replicated:
            return minimum
        reached = [self._replication.reached(n, minimum) for n in self._own_pulls(admitted)]
        return min(reached, default=minimum)

    def _applied_at(self, admitted: AdmittedRequest) -> int:
        """The clock that is to be reached before all of its push is in the rows."""
        pushes = admitted.footprint.pushes
        return max((self.due(number, admitted.request) for number, _, _ in pushes), default=0)

    def _own_pulls(self, admitted: AdmittedRequest) -> list[int]:
        """The shards that it pulls from which go by its worker's clocks: of others it takes what
        there is."""
        pulls, replicas = admitted.footprint.pulls, self._replication.replicas
        return [n for n, _, _ in pulls if replicas[n].group == admitted.log.group]

    # ------------------------------------------------------------------ for whom

    def waiting(self, pushes: bool = False) -> list[tuple[Request, str, float]]:
        """(request, reason, since when) of everything parked; also of pushes, if asked for."""
        waiting = {**self.pushes, **self.pulls} if pushes else self.pulls
        return [(each.admitted.request, self.reason(each), each.since) for each in waiting.values()]

    def waits_for(self, request: Request | Probe, code: Code) -> tuple[int, str]:
        """The clock that a request of that code waits for, or -1, and whom it waits for."""
        key = request.incarnation, request.seq
        pull = self.pulls.get(key)
        if pull is not None:
            return pull.clock, self.reason(pull)
        if code != "accepted":
            return -1, ""
        push, group = self.pushes.get(key), self._clocks.group(request.incarnation)
        clock = self._clocks.of(group).minimum + 1
        return clock, self.reason(push) if push else self._replies.absent(group, clock)

    def reason(self, parked: WaitingRequest) -> str:
        """Who keeps it from being answered."""
        admitted, clock = parked.admitted, parked.clock
        own = [each for each in admitted.log.parts.get(admitted.request.seq, ()) if not each.done]
        if any(each.version < 0 for each in own):
            clock = max(clock, self._applied_at(admitted))
        return (
            self._replies.absent(admitted.log.group, clock)
            or self._replication.behind(self._own_pulls(admitted), clock)
            or self._replication.waits_for(own)
        )

    def problems(self) -> Iterator[str]:
        """Every parked pull has a reason that is still true."""
        for pull in self.pulls.values():
            if self.ready(pull):
                yield (
                    f"{describe(pull.admitted.request)} waits although every worker has reached "
                    f"clock {pull.clock}"
                )


def read_clock(request: Request) -> int:
    """The clock that its pull is of: the one that it advances to."""
    return request.advance if request.advance >= 0 else request.clock
