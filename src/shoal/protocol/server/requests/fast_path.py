"""The fast path: requests that need nothing but their shard, in a third of the calls.

Where tables are `asp` and not replicated, most requests push one part to a dense shard, or pull
one, or both. Such a request waits for no clock, round or other server, and no checkpoint is due
before it: the request that ended its clock has had it taken. The fast path recognises it by its
footprint and by the state of the server. It has the same effects, in the same order, and leaves the
same state as `Executor`, by the methods of the owners of that state. All other requests go to the
executor, untouched.
"""

from __future__ import annotations

from shoal.errors import AccessFailed
from shoal.protocol.machine import CopyOnWriteGuard, Effects, EventTrace, Received, Send
from shoal.protocol.messages.requests import Reply, Request
from shoal.protocol.server.notes import Pushed, Served
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.server.requests.executor import Executor
from shoal.protocol.server.requests.long_work import LongWork
from shoal.protocol.server.requests.staging import AdmittedRequest
from shoal.protocol.server.requests.wait_report import WaitReport
from shoal.protocol.server.state.replica import AppliedPart
from shoal.protocol.server.state.state import ServerState
from shoal.protocol.views import NodeId


class FastPath:
    """Carries out the requests that need nothing but their shard.

    taken:  the number of requests so far
    """

    def __init__(
        self,
        state: ServerState,
        admission: Admission,
        long_work: LongWork,
        guard: CopyOnWriteGuard,
        executor: Executor,
        wait_report: WaitReport,
        trace: EventTrace,
    ) -> None:
        self.taken = 0
        self._session = state.session
        self._time = state.time
        self._clocks = state.clocks
        self._rounds = state.rounds
        self._replicas = state.replicas
        self._admission = admission
        self._long_work = long_work
        self._guard = guard
        self._executor = executor
        self._wait_queue = executor.wait_queue
        self._wait_report = wait_report
        self._trace = trace

    def carry_out(self, received: Received, out: Effects) -> bool:
        """Carry out a request that needs nothing but its shard; leave any other one untouched.

        Returns:
            Whether it was carried out. If not, nothing has changed.
        """
        admitted = self._recognised(received)
        if admitted is None:
            return False
        request, footprint, log = admitted.request, admitted.footprint, admitted.log
        self.taken += 1
        self._trace.add((self._time.now, admitted.sender, request))
        if self._session.unanswered.counts:
            self._session.unanswered.heard(admitted.sender)
        if request.forget_below > log.forget_below:
            if self._wait_queue.pushes:
                self._executor.forget(log, request.forget_below)
            else:
                log.forget(request.forget_below)
        parts: tuple[AppliedPart, ...] = ()
        if footprint.pushes:
            replica = self._replicas[footprint.pushes[0][0]]
            if self._guard.borrowers:
                self._guard.recall()
            try:
                replica.shard.apply(admitted.loads[0], request.rates[0] if request.rates else None)
            except AccessFailed as error:
                log.refuse(request.seq, replica.number)
                self._executor.answer(admitted, "refused", out, error.message)
                return True
            parts = (AppliedPart(request.pushes[0], replica, replica.count()),)
            out.append(Pushed(request, False))
        if request.advance >= 0:
            self._executor.advance(request.incarnation, request.advance, out)
        log.finish(request.seq, parts)
        self._answer(admitted, out)
        return True

    def _answer(self, admitted: AdmittedRequest, out: Effects) -> None:
        """Reply, with the rows that are pulled."""
        request, log, pulls = admitted.request, admitted.log, admitted.footprint.pulls
        buffers: tuple[memoryview, ...] = ()
        weight, nbytes = -1.0, 0
        if pulls:
            number, rows, _ = pulls[0]
            buffers = (self._replicas[number].shard.read(rows),)
            nbytes = buffers[0].nbytes
            clock = request.advance if request.advance >= 0 else request.clock  # `read_clock`
            weight = self._rounds.weight(log.group, clock - 1)
            out.append(Served(pulls))
        reply = Reply(
            request.incarnation,
            request.seq,
            self._session.view_id,
            "applied",
            "",
            self._clocks.by_worker[request.incarnation].closed,
            weight,
            nbytes,
        )
        out.append(Send(admitted.sender, reply, buffers, self._guard))
        if nbytes:
            self._wait_queue.answered(admitted.sender, nbytes, out)

    def _recognised(self, received: Received) -> AdmittedRequest | None:
        """Return a request as it was admitted, if it needs nothing but its shard; None if not."""
        request, payload = received.message, received.payload
        assert isinstance(request, Request)
        waiting, long_work = self._wait_queue, self._long_work
        if (
            request.assign
            or waiting.pulls
            or waiting.full
            or self._wait_report.active
            or long_work.suspended
            or (request.advance >= 0 and long_work.possible)  # it may close large rounds
            or self._time.now >= self._clocks.due_at
        ):
            return None
        admitted: AdmittedRequest | None
        if payload is None:
            admitted = self._without_payload(received.sender, request)
        else:
            admitted = None if payload.revoked else payload.context
        if (
            admitted is None
            or not admitted.footprint.simple
            or admitted.footprint.nbytes >= long_work.long_bytes
            or request.seq in admitted.log.parts
            or not self._admission.still_fresh(request, admitted.log, admitted.view)
        ):
            return None
        return admitted

    def _without_payload(self, sender: NodeId, request: Request) -> AdmittedRequest | None:
        """Return a request that pushes nothing, if it is admitted now and is simple."""
        admission = self._admission
        footprint = admission.footprint(request)
        if footprint is None or not footprint.simple or footprint.nbytes:
            return None
        if admission.verdict(sender, request, footprint) != "fresh":
            return None
        log, view = admission.logs[sender], admission.view
        return AdmittedRequest(sender, request, footprint, [], log, view, False)
