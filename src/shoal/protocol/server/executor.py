"""Execution of admitted requests on a server's shards and clocks.

A request pushes, advances and pulls, in this order. A push is applied at once or with its round. An
advance may close rounds. A pull is answered, or put into the wait queue until the slowest worker
has reached the clock that the consistency rules of its tables ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from shoal.errors import AccessFailed
from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import Effects, Note
from shoal.protocol.messages import Code
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.link import What
from shoal.protocol.server.replication.operations import OperationBuilder
from shoal.protocol.server.replies import Replies
from shoal.protocol.server.round_closing import RoundCloser
from shoal.protocol.server.rounds import Contribution, Rounds
from shoal.protocol.server.shard_store import ShardStore, Staged
from shoal.protocol.server.staging import AdmittedRequest, RequestStaging
from shoal.protocol.server.wait_queue import WaitQueue, read_clock
from shoal.protocol.views import FOREVER


class Executor:
    """Carries out the requests that admission has taken."""

    def __init__(
        self,
        admission: Admission,
        staging: RequestStaging,
        shards: dict[int, ShardStore],
        clocks: Clocks,
        replies: Replies,
        replication: Replication,
        checkpointer: Checkpointer,
    ) -> None:
        self.rounds = Rounds()
        self.checkpointer = checkpointer
        self.wait_queue = WaitQueue(admission, shards, clocks, replies, replication, checkpointer)
        self._replication = replication
        self._admission = admission
        self._staging = staging
        self._shards = shards
        self._clocks = clocks
        self._replies = replies
        self._round_closer = RoundCloser(
            admission,
            staging,
            shards,
            replies,
            replication,
            checkpointer,
            self.rounds,
            self.wait_queue,
        )

    def carry_out(self, admitted: AdmittedRequest, out: Effects) -> None:
        """Carry out a request, or refuse it."""
        log, below = admitted.log, admitted.request.forget_below
        if below > log.forget_below:
            log.forget(below)
            if self.wait_queue.pulls or self.wait_queue.pushes:
                self.wait_queue.forget(log)
        for load in admitted.loads:
            problem = load.problem() if load.keys is not None else ""
            if problem:
                self._refuse(admitted, problem, out)
                return
        try:
            self._do(admitted, out)
        except AccessFailed as error:
            self._refuse(admitted, error.message, out)

    def drop_worker(self, worker: int, last_clock: int) -> None:
        """Remove a worker that has left; its pushes count in the rounds below its last clock."""
        self.rounds.drop(worker, last_clock)
        self.wait_queue.drop_worker(worker)

    def problems(self) -> Iterator[str]:
        """Yield broken invariants: a closed round that is kept, a pull that waits for no reason."""
        yield from self.wait_queue.problems()
        for group in self._clocks.groups():
            minimum = self._clocks.of(group).minimum
            for clock in self.rounds.below(group, minimum):
                yield f"round {clock} is open at clock {minimum}"

    # ------------------------------------------------------------------ requests

    def _refuse(self, admitted: AdmittedRequest, reason: str, out: Effects) -> None:
        admitted.log.record(admitted.request.seq, "refused")
        self._replies.reply(out, admitted.sender, admitted.request, "refused", reason)

    def _do(self, admitted: AdmittedRequest, out: Effects) -> None:
        """Push, advance and pull, in this order."""
        request, log, accepted = admitted.request, admitted.log, False
        if self._admission.replicated:  # the request may come again, with other parts waiting
            log.admit_again(request.seq)
            if self.wait_queue.pulls or self.wait_queue.pushes:
                self.wait_queue.leave((request.incarnation, request.seq))
        if request.pushes:
            if not admitted.footprint.immediate and self._comes_late(admitted):
                self._close_out(admitted, out)
                return
            accepted = self._push(admitted, out)
        if request.advance >= 0:
            self._advance(request.incarnation, request.advance, out)
        if request.pulls:
            self._call(admitted, out)
            self._pull(admitted, accepted, out)
        elif not accepted and log.complete(request.seq):
            log.record(request.seq, "applied")
            self._replies.reply(out, admitted.sender, request, "applied")
        elif not accepted:
            log.record(request.seq, "accepted")
            self.wait_queue.add_push(admitted)
        elif log.outcomes[request.seq] == "accepted":  # and its own advance did not close the round
            self._replies.reply(out, admitted.sender, request, "accepted")

    def _close_out(self, admitted: AdmittedRequest, out: Effects) -> None:
        """Refuse a push for a round that takes no more pushes from this worker."""
        request = admitted.request
        reached = self._clocks[request.incarnation]
        admitted.log.record(request.seq, "round_closed")
        reason = f"this worker is at clock {reached}; round {request.clock} takes no more"
        self._replies.reply(out, admitted.sender, request, "round_closed", reason)

    def _push(self, admitted: AdmittedRequest, out: Effects) -> bool:
        """Apply the push parts, or put them into their round; return whether any part waits."""
        request, log = admitted.request, admitted.log
        kept: dict[int, list[tuple[int, Staged]]] = {}  # by the clock they wait for
        builder = (
            OperationBuilder(self._replication, self._shards)
            if self._admission.replicated
            else None
        )
        at_once = admitted.footprint.immediate or request.assign
        minimum = 0 if at_once else self._clocks.of(log.group).minimum
        if self._staging.guard.borrowers:
            self._staging.guard.recall()
        try:
            for at, ((number, _, _), staged) in enumerate(
                zip(admitted.footprint.pushes, admitted.loads, strict=False)
            ):
                shard = self._shards[number]
                if builder is not None and log.covers(request.seq, request.pushes[at]):
                    shard.release(staged)
                elif not at_once and (due := self.wait_queue.due(number, request)) > minimum:
                    kept.setdefault(due, []).append((number, staged))
                    if builder is not None:
                        builder.in_round(number, request.pushes[at])
                else:
                    if not at_once:
                        self.checkpointer.past(number, request.clock)
                    if builder is not None:
                        builder.about_to(number, staged)
                    if request.assign:
                        shard.write(staged)
                    elif not admitted.streamed:
                        shard.apply(staged, request.lr)
                    if builder is not None:
                        builder.changed(number, request.pushes[at], request.lr, tuple(staged.views))
        finally:
            if builder is not None:
                self._carry(admitted, builder, out, "write" if request.assign else "push")
        accepted = bool(kept) or log.is_open(request.seq)
        code: Code = "accepted" if accepted else "applied"
        if request.pulls:
            code = "waiting"  # the answer with the rows acknowledges the push as well
        log.record(request.seq, code)
        out.append(Note("pushed", {"request": request, "code": code}))
        for due, parts in kept.items():
            weight = request.weight if due > request.clock else 0.0
            entry = Contribution(
                admitted.sender,
                log,
                request.seq,
                due - 1,
                weight,
                request.lr,
                parts,
                request.clock,
            )
            self.rounds.add(entry)
        if accepted and builder is not None:
            self.wait_queue.add_push(admitted)
        return accepted

    def _call(self, admitted: AdmittedRequest, out: Effects) -> None:
        """Carry out the calls of custom tables, here and on the other servers of their chains.

        The handler's shard remembers the answer; it is sent when all replicas have done the call.
        """
        if not self._admission.replicated:
            return  # each call is carried out when it is answered
        request, log = admitted.request, admitted.log
        if all(self._shards[n].spec.kind != "custom" for n, _, _ in admitted.footprint.pulls):
            return
        builder = OperationBuilder(self._replication, self._shards)
        keyed = iter(admitted.loads[len(request.pushes) :])
        for (number, _, keys), part in zip(admitted.footprint.pulls, request.pulls, strict=True):
            staged = next(keyed) if keys >= 0 else None
            shard = self._shards[number]
            if staged is None or shard.spec.kind != "custom" or log.covers(request.seq, part):
                continue
            builder.about_to(number, staged)
            with suppress(AccessFailed):  # the error is the answer
                shard.read_keys(staged)
            builder.changed(number, part, None, tuple(staged.views))
        self._carry(admitted, builder, out, "call")

    def _carry(
        self, admitted: AdmittedRequest, builder: OperationBuilder, out: Effects, what: What
    ) -> None:
        """Replicate what a push or a call has changed here."""
        request, log = admitted.request, admitted.log
        log.add_parts(request.seq, builder.parts_of_push)
        if builder.changes:
            origin = request.incarnation, request.seq, log.forget_below
            clock = self._clocks.by_worker[log.incarnation].minimum
            before = self.checkpointer.latest(clock) - 1 if self.checkpointer.active else -1
            operation = builder.operation(
                what, log.group, clock, (origin,), before, pushed=request.clock
            )
            self._replication.carry(operation, out)

    def _comes_late(self, admitted: AdmittedRequest) -> bool:
        """Return whether a part is for a round that this worker has passed, and is not in it."""
        request, log = admitted.request, admitted.log
        over = request.clock < self._clocks[request.incarnation]
        return (over and not request.assign) and any(
            self._shards[number].spec.consistency.apply_at == "round_end"
            and log.covers(request.seq, part) is None
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
        reason = self.wait_queue.reason(pull)
        out.append(Note("waiting", {"worker": request.incarnation, "reason": reason}))

    def _serve(self, admitted: AdmittedRequest, out: Effects) -> None:
        request, buffers = admitted.request, self._staging.read(admitted)
        if self._admission.replicated:
            out.append(Note("served", {"replicas": [n for n, _, _ in admitted.footprint.pulls]}))
        admitted.log.record(request.seq, "applied")
        weight = self.rounds.weight(admitted.log.group, read_clock(request) - 1)
        self._replies.reply(out, admitted.sender, request, "applied", "", buffers, weight)

    # ------------------------------------------------------------------ rounds

    def close_rounds(self, group: str, out: Effects) -> None:
        """Close every round below the group's slowest clock. The caller calls `look` after this."""
        minimum = self._clocks.of(group).minimum
        if minimum < FOREVER:
            self.rounds.reach(group, minimum)
        for clock in self.rounds.below(group, minimum):
            self._round_closer.close(group, clock, out)
        if not group:
            self.checkpointer.reached(out)
        if self._admission.replicated:
            self._replication.tell(group, minimum, out)

    def look(self, out: Effects) -> None:
        """Answer the requests that no longer have to wait."""
        for key, pull in list(self.wait_queue.pulls.items()):
            if self.wait_queue.ready(pull):
                self.wait_queue.leave(key)
                try:
                    self._serve(pull.admitted, out)
                except AccessFailed as error:
                    self._refuse(pull.admitted, error.message, out)
        for key, push in list(self.wait_queue.pushes.items()):
            admitted = push.admitted
            if key not in self.wait_queue.pulls and admitted.log.complete(key[1]):
                self.wait_queue.leave(key)
                admitted.log.record(key[1], "applied")
                self._replies.acknowledge(out, admitted.sender, *key, "applied", "")
