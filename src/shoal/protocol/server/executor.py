"""Execution of admitted requests.

A request pushes, advances and pulls, in this order. A push is applied at once or with its round. An
advance may close rounds. A pull is answered, or put into the wait queue until the slowest worker
has reached the clock that the consistency rules of its tables ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shoal.errors import AccessFailed
from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import Effects, Note, Send
from shoal.protocol.messages import Code, Probe, Reply, Request, What
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.applier import Applier
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.server.long_work.coroutine import LongWork
from shoal.protocol.server.replica import Replica
from shoal.protocol.server.replication.chain import Chains
from shoal.protocol.server.replication.operations import Change, Operation
from shoal.protocol.server.request_log import RequestLog
from shoal.protocol.server.round_closing import RoundCloser
from shoal.protocol.server.rounds import Contribution, Rounds
from shoal.protocol.server.shard_store import Staged
from shoal.protocol.server.staging import AdmittedRequest, RequestStaging
from shoal.protocol.server.wait_queue import WaitQueue, read_clock
from shoal.protocol.session import Session
from shoal.protocol.views import FOREVER, NodeId


class Executor:
    """Carries out the requests that admission has taken.

    rounds:  the pushes that wait for rounds here
    """

    def __init__(
        self,
        session: Session,
        rounds: Rounds,
        admission: Admission,
        staging: RequestStaging,
        replicas: Mapping[int, Replica],
        clocks: Clocks,
        chains: Chains,
        checkpointer: Checkpointer,
        wait_queue: WaitQueue,
        applier: Applier,
        long_work: LongWork,
    ) -> None:
        self.rounds = rounds
        self.wait_queue = wait_queue
        self._session = session
        self._admission = admission
        self._staging = staging
        self._replicas = replicas
        self._clocks = clocks
        self._chains = chains
        self._checkpointer = checkpointer
        self._applier = applier
        self._long_work = long_work
        self._round_closer = RoundCloser(
            replicas, chains, self.rounds, applier.apply, self._refuse_push
        )

    # ------------------------------------------------------------------ requests

    def carry_out(self, admitted: AdmittedRequest, out: Effects) -> None:
        log, below = admitted.log, admitted.request.forget_below
        if below > log.forget_below:
            self.forget(log, below)
        if problem := self._staging.problem(admitted) if admitted.footprint.keyed else "":
            self._answer(admitted, "refused", out, problem)
            return
        try:
            self._do(admitted, out)
        except AccessFailed as error:
            self._answer(admitted, "refused", out, error.message)

    def forget(self, log: RequestLog, below: int) -> None:
        """Forget a worker's requests below `below`: it has resolved them or given them up."""
        log.forget(below)
        if self.wait_queue.pulls or self.wait_queue.pushes:
            self.wait_queue.drop(log.incarnation, below)

    def drop_worker(self, worker: int, last_clock: int) -> None:
        """Remove a worker that has left; its pushes count in the rounds below its last clock."""
        self.rounds.drop(worker, last_clock)
        self.wait_queue.drop(worker)

    def problems(self) -> Iterator[str]:
        """Yield broken invariants: a closed round that is kept, a pull that waits for no reason."""
        yield from self.wait_queue.problems()
        for group in self._clocks.groups():
            minimum = self._clocks.of(group).minimum
            for clock in self.rounds.below(group, minimum):
                yield f"round {clock} is open at clock {minimum}"

    def _do(self, admitted: AdmittedRequest, out: Effects) -> None:
        """Push, advance and pull, in this order."""
        request, log = admitted.request, admitted.log
        seq, accepted = request.seq, False
        if log.recheck:  # the request may come again, with other parts waiting
            log.admit_again(seq)
        if request.pushes:
            if not admitted.footprint.immediate and self._comes_late(admitted):
                reached = self._clocks[request.incarnation]
                reason = f"this worker is at clock {reached}; round {request.clock} takes no more"
                self._answer(admitted, "round_closed", out, reason)
                return
            accepted = self._push(admitted, out)
        if request.advance >= 0:
            self._advance(request.incarnation, request.advance, out)
            if log.outcomes.get(seq) == "refused":
                return  # its advance has closed its round, where its method has failed
        if request.pulls:
            if admitted.footprint.calls:
                self._call(admitted, out)
            self._pull(admitted, accepted, out)
        elif log.complete(seq):
            log.record(seq, "applied")
            self.reply(out, admitted.sender, request, "applied")
        else:
            log.record(seq, "accepted")
            self.wait_queue.add_push(admitted)
            if accepted:
                self.reply(out, admitted.sender, request, "accepted")

    def _push(self, admitted: AdmittedRequest, out: Effects) -> bool:
        """Apply the push parts, or put them into their round; return whether any part waits."""
        request, log = admitted.request, admitted.log
        at_once = admitted.footprint.immediate or request.assign
        minimum = 0 if at_once else self._clocks.of(log.group).minimum
        known = request.seq in log.parts
        changes: list[Change] = []
        waiting: dict[int, list[tuple[Replica, Staged]]] = {}  # by the clock that they wait for
        arrived = () if admitted.streamed else admitted.loads  # or it is in the rows
        for part, (number, _, _), staged in zip(
            request.pushes, admitted.footprint.pushes, arrived, strict=False
        ):
            replica, pieces = self._replicas[number], [staged]
            if known:  # it has come again, and some of it may be in the rows
                pieces = replica.pieces(staged, log.missing(request.seq, part))
            due = 0 if at_once else self.wait_queue.due(number, request)
            for piece in pieces:
                if due > minimum:
                    waiting.setdefault(due, []).append((replica, piece))
                else:
                    named = part if piece is staged else replica.part_of(piece)
                    changes.append(Change(replica, named, request.lr, piece))
        if changes:
            pushed = -1 if at_once else request.clock
            self._apply(admitted, "write" if request.assign else "push", changes, out, pushed)
        for due, parts in waiting.items():
            log.wait(request.seq, [replica.open_part(staged.rows) for replica, staged in parts])
            weight = request.weight if due > request.clock else 0.0
            entry = Contribution(
                admitted.sender,
                log,
                request.seq,
                due - 1,
                weight,
                request.lr,
                [(replica.number, staged) for replica, staged in parts],
                request.clock,
            )
            self.rounds.add(entry)
        accepted = bool(waiting) or (known and log.is_open(request.seq))
        out.append(Note("pushed", {"request": request, "accepted": accepted}))
        return accepted

    def _call(self, admitted: AdmittedRequest, out: Effects) -> None:
        """Carry out the calls of custom tables, whose shards remember the answers."""
        request, footprint = admitted.request, admitted.footprint
        keyed = iter(admitted.loads[len(request.pushes) :])
        changes = []
        for (number, _, keys), part in zip(footprint.pulls, request.pulls, strict=True):
            staged = next(keyed) if keys >= 0 else None
            replica = self._replicas[number]
            if staged is None or replica.shard.spec.kind != "custom":
                continue
            if admitted.log.missing(request.seq, part):
                changes.append(Change(replica, part, None, staged))
        if changes:
            self._apply(admitted, "call", changes, out)

    def _apply(
        self,
        admitted: AdmittedRequest,
        what: What,
        changes: list[Change],
        out: Effects,
        pushed: int = -1,
    ) -> None:
        """Apply what a request changes."""
        log, clock = admitted.log, self._clocks.by_worker[admitted.log.incarnation].minimum
        operation = Operation(
            what,
            (self._chains.rank,),
            clock,
            changes,
            ((log.incarnation, admitted.request.seq, log.forget_below),),
            ((log, admitted.request.seq),),
            round=self._checkpointer.latest(clock) - 1 if self._checkpointer.active else -1,
            pushed=pushed,
            group=log.group,
        )
        failed = self._applier.apply(operation, out)
        if failed:
            raise AccessFailed("; ".join(failed.values()))

    def _comes_late(self, admitted: AdmittedRequest) -> bool:
        """Return whether a part is for a round that this worker has passed, and is not in it."""
        request, log = admitted.request, admitted.log
        over = request.clock < self._clocks[request.incarnation]
        return (over and not request.assign) and any(
            self._replicas[number].shard.spec.consistency.apply_at == "round_end"
            and log.missing(request.seq, part)
            for (number, _, _), part in zip(admitted.footprint.pushes, request.pushes, strict=True)
        )

    def _advance(self, worker: int, to: int, out: Effects) -> None:
        group = self._clocks.group(worker)
        clocks = self._clocks.of(group)
        before = clocks.minimum
        if clocks.advance(worker, to) and clocks.minimum != before:
            self.close_rounds(group, out)
            self.look(out)

    def _pull(self, admitted: AdmittedRequest, accepted: bool, out: Effects) -> None:
        """Answer with rows, now or when the slowest worker has reached the clock that is needed."""
        request, pull = admitted.request, self.wait_queue.look(admitted, accepted)
        if self.wait_queue.ready(pull):
            self._serve(admitted, out)
            return
        admitted.log.record(request.seq, "waiting")
        self.wait_queue.add_pull(pull)
        out.append(Note("waiting", {"worker": request.incarnation}))

    def _serve(self, admitted: AdmittedRequest, out: Effects) -> None:
        buffers = self._staging.read(admitted)
        out.append(Note("served", {"pulls": admitted.footprint.pulls}))
        weight = self.rounds.weight(admitted.log.group, read_clock(admitted.request) - 1)
        self._answer(admitted, "applied", out, "", buffers, weight)

    def look(self, out: Effects) -> None:
        """Answer the requests that no longer have to wait."""
        for key, pull in list(self.wait_queue.pulls.items()):
            if self.wait_queue.ready(pull):
                self.wait_queue.leave(key)
                try:
                    self._serve(pull.admitted, out)
                except AccessFailed as error:
                    self._answer(pull.admitted, "refused", out, error.message)
        for key, push in list(self.wait_queue.pushes.items()):
            if push.admitted.log.complete(key[1]):
                self.wait_queue.leave(key)
                self._answer(push.admitted, "applied", out)

    def _refuse_push(self, entry: Contribution, reason: str, out: Effects) -> None:
        """Refuse a push whose round has closed, unless its worker has left."""
        log = entry.log
        if self._admission.logs.get(entry.sender) is log:
            self.wait_queue.leave((log.incarnation, entry.seq))
            log.record(entry.seq, "refused")
            reply = Reply(log.incarnation, entry.seq, self._session.view_id, "refused", reason)
            out.append(Send(entry.sender, reply))

    def _answer(
        self,
        admitted: AdmittedRequest,
        code: Code,
        out: Effects,
        reason: str = "",
        buffers: tuple[memoryview, ...] = (),
        round_weight: float = -1.0,
    ) -> None:
        """Record the outcome of a request, and reply."""
        request = admitted.request
        admitted.log.record(request.seq, code)
        self.reply(out, admitted.sender, request, code, reason, buffers, round_weight)

    def reply(
        self,
        out: Effects,
        to: NodeId,
        request: Request | Probe,
        code: Code,
        reason: str = "",
        buffers: tuple[memoryview, ...] = (),
        round_weight: float = -1.0,
    ) -> None:
        """Reply to a worker, with the rows in `buffers`."""
        clocks = self._clocks.by_worker.get(request.incarnation)
        clocks = self._clocks.of("") if clocks is None else clocks
        nbytes = 0
        for buffer in buffers:
            nbytes += buffer.nbytes
        reply = Reply(
            request.incarnation,
            request.seq,
            self._session.view_id,
            code,
            reason,
            clocks.minimum,
            round_weight,
            nbytes,
        )
        out.append(Send(to, reply, buffers, self._staging.guard))
        if nbytes:
            self.wait_queue.answered(to, nbytes, out)

    # ------------------------------------------------------------------ operations

    def close_rounds(self, group: str, out: Effects) -> None:
        """Close every round below the group's slowest clock. The caller calls `look` after this."""
        minimum = self._clocks.of(group).minimum
        if minimum < FOREVER:
            self.rounds.reach(group, minimum)
        self._long_work.begin_closing(group)
        for clock in self.rounds.below(group, minimum):
            self._round_closer.close(group, clock, out)
        self._long_work.end_closing()
        if not group:
            self._checkpointer.reached(out)
        self._chains.tell(group, minimum, out)
