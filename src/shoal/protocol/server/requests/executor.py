"""Execution of admitted requests, and of the operations that change rows.

A request pushes, advances and pulls, in this order. A push is applied at once or with its round. An
advance may close rounds. A pull is answered, or put into the wait queue until the slowest worker
has reached the clock that the consistency rules of its tables ask for.

Every change of rows is an operation: a push, a closed round, a call, and each message that comes
down a chain from its head. Operations are applied in the order of their replicas' versions.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import repeat

from shoal.errors import AccessFailed, InvariantBroken
from shoal.protocol.machine import CopyOnWriteGuard, Effects, Send
from shoal.protocol.messages.reasons import bounded
from shoal.protocol.messages.replication import What
from shoal.protocol.messages.requests import Code, Probe, Reply, Request
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.operations import NEW, Change, Operation
from shoal.protocol.server.notes import PullWaits, Pushed, Served
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.server.requests.long_work import LongWork
from shoal.protocol.server.requests.round_closing import RoundCloser
from shoal.protocol.server.requests.staging import AdmittedRequest, RequestStaging
from shoal.protocol.server.requests.wait_queue import WaitingRequest, WaitQueue, read_clock
from shoal.protocol.server.state.replica import NONE, AppliedPart
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.server.state.rounds import Contribution, PushPart, Rounds
from shoal.protocol.server.state.shard_store import Staged
from shoal.protocol.server.state.state import ServerState
from shoal.protocol.views import NodeId


class Executor:
    """Carries out admitted requests."""

    def __init__(
        self,
        state: ServerState,
        staging: RequestStaging,
        chains: Chains,
        checkpointer: Checkpointer,
        wait_queue: WaitQueue,
        applier: Applier,
        round_closer: RoundCloser,
    ) -> None:
        self.wait_queue = wait_queue
        self._session = state.session
        self._rounds = state.rounds
        self._staging = staging
        self._replicas = state.replicas
        self._clocks = state.clocks
        self._chains = chains
        self._checkpointer = checkpointer
        self._applier = applier
        self._round_closer = round_closer

    # ------------------------------------------------------------------ requests

    def carry_out(self, admitted: AdmittedRequest, out: Effects) -> None:
        log, below = admitted.log, admitted.request.forget_below
        if below > log.forget_below:
            self.forget(log, below)
        problem = self._staging.problem(admitted) if admitted.footprint.keyed else ""
        if admitted.request.sizes and not problem:
            problem = self._staging.undecodable(admitted)
        if problem:
            self.answer(admitted, "refused", out, problem)
            return
        try:
            self._do(admitted, out)
        except AccessFailed as error:
            self.answer(admitted, "refused", out, error.message)

    def forget(self, log: RequestLog, below: int) -> None:
        """Forget a worker's requests below `below`: it has resolved or abandoned them."""
        log.forget(below)
        if self.wait_queue.pulls or self.wait_queue.pushes:
            self.wait_queue.drop(log.incarnation, below)

    def _do(self, admitted: AdmittedRequest, out: Effects) -> None:
        """Push, advance and pull, in this order."""
        request, log = admitted.request, admitted.log
        seq, accepted = request.seq, False
        if log.recheck:  # it may be a resent request, of which other parts wait now
            log.admit_again(seq)
        if request.pushes:
            if late := "" if admitted.footprint.immediate else self.wait_queue.too_late(admitted):
                if request.advance >= 0:
                    self.advance(request.incarnation, request.advance, out)
                self.answer(admitted, "round_closed", out, late)
                return
            accepted = self._push(admitted, out)
        if request.advance >= 0:
            self.advance(request.incarnation, request.advance, out)
            if log.outcomes.get(seq) == "refused":
                return  # its advance has closed its round, and its access method has failed
        if request.pulls:
            if admitted.footprint.calls:
                self._call(admitted, out)
            self._pull(admitted, accepted, out)
        elif not (lacking := log.unreplicated(seq)):
            log.record(seq, "applied")
            self.reply(out, admitted.sender, request, "applied")
        else:
            log.record(seq, "accepted")
            self.wait_queue.add_push(admitted, lacking)
            if accepted:
                self.reply(out, admitted.sender, request, "accepted")

    def _push(self, admitted: AdmittedRequest, out: Effects) -> bool:
        """Apply the push parts, or put them into their round; return whether any part waits."""
        request, log = admitted.request, admitted.log
        at_once = admitted.footprint.immediate or request.assign
        closed = 0 if at_once else self._clocks.of(log.group).closed
        known = request.seq in log.parts
        changes: list[Change] = []
        waiting: dict[int, list[PushPart]] = {}  # by the clock that they wait for
        arrived = () if admitted.streamed else admitted.loads  # a streamed push is in the rows
        rates = request.rates or repeat(None)
        for part, (number, _, _), staged, lr in zip(
            request.pushes, admitted.footprint.pushes, arrived, rates, strict=False
        ):
            replica, pieces = self._replicas[number], [staged]
            if known:  # it was resent, and some of it may be in the rows
                pieces = replica.pieces(staged, log.missing(request.seq, part))
            due = 0 if at_once else self.wait_queue.due(number, request)
            for piece in pieces:
                if due > closed:
                    waiting.setdefault(due, []).append(PushPart(number, piece, lr))
                else:
                    named = part if piece is staged else replica.part_of(piece, part.slots)
                    changes.append(Change(replica, named, lr, piece))
        if changes:
            pushed = -1 if at_once else request.clock
            self._apply(admitted, "write" if request.assign else "push", changes, out, pushed)
        for due, parts in waiting.items():
            opened = [self._replicas[p.number].open_part(p.staged.rows) for p in parts]
            log.wait(request.seq, opened)
            weight = request.weight if due > request.clock else 0.0
            at = request.seq, due - 1, weight, parts, request.clock
            self._rounds.add(Contribution(admitted.sender, log, *at))
        accepted = bool(waiting) or (known and log.is_open(request.seq))
        out.append(Pushed(request, accepted))
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
        """Apply the changes of a request as one operation."""
        log, clock = admitted.log, self._clocks.by_worker[admitted.log.incarnation].closed
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
            updates=admitted.request.updates,
        )
        failed = self._applier.apply(operation, out)
        if failed:
            raise AccessFailed("; ".join(failed.values()))

    def advance(self, worker: int, to: int, out: Effects) -> None:
        """Move a worker's clock, and close the rounds that all workers have passed by that."""
        group = self._clocks.group(worker)
        clocks = self._clocks.of(group)
        before = clocks.closed
        if clocks.advance(worker, to):
            self._clocks.look(group, self._chains.time.now)
            if clocks.closed != before:
                self._round_closer.close(group, out)
                self.look(out)

    def close_due(self, out: Effects) -> None:
        """Close the rounds whose grace window is over."""
        for group in self._clocks.groups():
            if self._clocks.look(group, self._chains.time.now):
                self._round_closer.close(group, out)
                self.look(out)

    def _pull(self, admitted: AdmittedRequest, accepted: bool, out: Effects) -> None:
        """Answer with rows, now or when the slowest worker has reached the clock that is needed."""
        request, pull = admitted.request, self.wait_queue.look(admitted, accepted)
        if self.wait_queue.ready(pull):
            self._staging.encode([admitted])
            self._serve(admitted, out)
            return
        admitted.log.record(request.seq, "waiting")
        self.wait_queue.add_pull(pull)
        out.append(PullWaits(request.incarnation))

    def _serve(self, admitted: AdmittedRequest, out: Effects) -> None:
        buffers = self._staging.read(admitted)
        out.append(Served(admitted.footprint.pulls))
        weight = self._rounds.weight(admitted.log.group, read_clock(admitted.request) - 1)
        updates = self._staging.updates(admitted) if admitted.footprint.counts else -1
        self.answer(admitted, "applied", out, "", buffers, weight, updates)

    def look(self, out: Effects) -> None:
        """Answer the requests that no longer have to wait."""
        pulls = [*self.wait_queue.pulls.values()]
        self._answer_ready([each for each in pulls if not each.admitted.request.pulled], out)
        for push in self.wait_queue.replicated() if self.wait_queue.pushes else ():
            self.wait_queue.leave(push.key)
            self.answer(push.admitted, "applied", out)
        encoded = [each for each in pulls if each.admitted.request.pulled]
        if encoded:
            encoded = [each for each in encoded if self.wait_queue.ready(each)]
            self._staging.encode([each.admitted for each in encoded])
            self._answer_ready(encoded, out)

    def _answer_ready(self, pulls: list[WaitingRequest], out: Effects) -> None:
        """Answer those of some waiting pulls that can be answered; others may have left."""
        for pull in pulls:
            if self.wait_queue.pulls.get(pull.key) is pull and self.wait_queue.ready(pull):
                self.wait_queue.leave(pull.key)
                try:
                    self._serve(pull.admitted, out)
                except AccessFailed as error:
                    self.answer(pull.admitted, "refused", out, error.message)

    def answer(
        self,
        admitted: AdmittedRequest,
        code: Code,
        out: Effects,
        reason: str = "",
        buffers: tuple[memoryview, ...] = (),
        round_weight: float = -1.0,
        updates: int = -1,
    ) -> None:
        """Record the outcome of a request, and reply."""
        request = admitted.request
        admitted.log.record(request.seq, code)
        self.reply(out, admitted.sender, request, code, reason, buffers, round_weight, updates)

    def reply(
        self,
        out: Effects,
        to: NodeId,
        request: Request | Probe,
        code: Code,
        reason: str = "",
        buffers: tuple[memoryview, ...] = (),
        round_weight: float = -1.0,
        updates: int = -1,
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
            bounded(reason) if reason else "",
            clocks.closed,
            round_weight,
            nbytes,
            updates,
        )
        out.append(Send(to, reply, buffers, self._staging.guard))
        if nbytes:
            self.wait_queue.answered(to, nbytes, out)


class Applier:
    """Applies operations, and sends them down the chains.

    copied:  the copies of pushes that the heads of other chains have accepted into rounds
    """

    def __init__(
        self,
        guard: CopyOnWriteGuard,
        chains: Chains,
        checkpointer: Checkpointer,
        long_work: LongWork,
    ) -> None:
        self.copied = Rounds()
        self._guard = guard
        self._chains = chains
        self._checkpointer = checkpointer
        self._long_work = long_work

    def apply(self, operation: Operation, out: Effects) -> dict[int, str]:
        """Apply an operation to the replicas here, record its pushes, and send it down the chains.

        Returns:
            The reason of each refused part, by replica: its access method has failed.

        Raises:
            InvariantBroken: another server has counted other versions for its changes
        """
        replicas = operation.replicas() if operation.round >= 0 or operation.pushed >= 0 else []
        if replicas:
            self._checkpointer.before_operation(operation, replicas, out)
        failed: dict[int, str] = {}
        parts, onward = [], []
        for change in self._changed(operation, failed):
            replica = change.replica
            version = replica.count()
            if change.version not in (NEW, version):
                told = f"version {change.version} of {replica.rows} came at {version - 1}"
                raise InvariantBroken(told)
            parts.append(AppliedPart(change.part, replica, version))
            if replica.following != NONE:
                onward.append(change.counted(version))
        if operation.what == "round":  # a round has every part of a push to a shard
            parts = [each.applied for each in replicas if each.number not in failed]
        for log, seq in operation.logs:
            log.apply(seq, parts)
            for number in failed:
                log.refuse(seq, number)
        if operation.what == "push" and self.copied.open:  # a copy may have waited here
            numbers = [each.replica.number for each in parts]
            for incarnation, seq, _ in operation.origins:
                self.copied.remove(incarnation, seq, numbers)
        if onward:
            operation.keep(onward)
            self._chains.carry(operation, out)
        return failed

    def _changed(self, operation: Operation, failed: dict[int, str]) -> list[Change]:
        """Change the rows, outside of the loop if that takes long; return the changes made."""
        if operation.what == "accept":  # an accepted push changes rows with its round
            return operation.changes
        if self._guard.borrowers and (operation.changes or operation.merges):
            self._guard.recall()
        for change in operation.changes:
            if change.replica.following != NONE:
                for staged in change.all_staged:
                    operation.retain(change.replica, staged)
        for merge in operation.merges:
            if merge.replica.following != NONE:
                for _, _, staged in merge.pushes:
                    operation.retain(merge.replica, staged)
        work = Operation.change_round if operation.what == "round" else _change_rows
        if operation.what == "call" or not self._long_work.running:
            return work(operation, failed)  # a handler may be bound to the loop's thread
        done = partial(work, operation, failed)
        return self._long_work.do(operation.replicas(), operation.nbytes, done)


def _change_rows(operation: Operation, failed: dict[int, str]) -> list[Change]:
    changed = []
    for change in operation.changes:
        try:
            if change.staged is not None:
                _change(operation, change, change.staged)
        except AccessFailed as error:
            failed[change.replica.number] = error.message
        else:
            changed.append(change)
    return changed


def _change(operation: Operation, change: Change, staged: Staged) -> None:
    shard = change.replica.shard
    if operation.what == "push":
        shard.apply(staged, change.lr)
    elif change.part.slots:
        shard.write_state(staged, operation.updates)
    elif operation.what == "write":
        shard.write(staged)
    else:
        with suppress(AccessFailed):  # the answer of a call may be an error
            shard.read_keys(staged)
