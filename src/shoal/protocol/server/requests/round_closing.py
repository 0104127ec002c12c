"""Closing of rounds: merge and apply the pushes of a clock when every worker has passed it.

The pushes of a round are merged in rank order and applied as one update. Pushes that waited for a
checkpoint clock are applied after that, one by one, once the rows of that checkpoint are saved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from shoal.protocol.consistency import cover_group
from shoal.protocol.machine import Effects, Send
from shoal.protocol.messages.requests import Reply
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.operations import Change, Operation, RoundPushes
from shoal.protocol.server.notes import RoundMerged
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.server.requests.long_work import LongWork
from shoal.protocol.server.requests.wait_queue import WaitQueue
from shoal.protocol.server.state.rounds import Contribution
from shoal.protocol.server.state.shard_store import Staged
from shoal.protocol.server.state.state import ServerState
from shoal.protocol.views import FOREVER
from shoal.tables.consistency import Consistency, Cover

Pushes = dict[int, list[tuple[float, float | None, Staged]]]  # by replica: weight, rate, staged


class RoundCloser:
    """Makes operations of a server's rounds.

    Arguments:
        apply: the function that applies an operation and returns why parts were refused, by replica
    """

    def __init__(
        self,
        state: ServerState,
        admission: Admission,
        chains: Chains,
        checkpointer: Checkpointer,
        long_work: LongWork,
        wait_queue: WaitQueue,
        apply: Callable[[Operation, Effects], dict[int, str]],
    ) -> None:
        self._session = state.session
        self._admission = admission
        self._replicas = state.replicas
        self._clocks = state.clocks
        self._chains = chains
        self._checkpointer = checkpointer
        self._long_work = long_work
        self._rounds = state.rounds
        self._wait_queue = wait_queue
        self._apply = apply

    def close(self, group: str, out: Effects) -> None:
        """Close every round that is due by the group's clocks.

        Requests may no longer have to wait after this: the caller calls `Executor.look`.
        """
        closed = self._clocks.of(group).closed
        if closed < FOREVER:
            self._rounds.reach(group, closed)
        self._long_work.begin_closing(group)
        for clock in self._rounds.below(group, closed):
            self._close(group, clock, out)
        self._long_work.end_closing()
        if not group:
            self._checkpointer.reached(out)
        self._chains.tell(group, closed, out)

    def problems(self) -> Iterator[str]:
        """Yield broken invariants: a round that every worker has passed is open."""
        for group in self._clocks.groups():
            closed = self._clocks.of(group).closed
            for clock in self._rounds.below(group, closed):
                yield f"round {clock} is open at clock {closed}"

    def _close(self, group: str, clock: int, out: Effects) -> None:
        entries = self._rounds.close(group, clock)
        delayed = [each for each in entries if any(self._is_single(p.number) for p in each.parts)]
        merged = [entry for entry in entries if entry not in delayed]
        pushes, weight = self._counted(merged, group)
        self._rounds.weigh(group, clock, weight)
        shards = self._by_pushes(merged, group)
        for at, (some, numbers) in enumerate(shards, start=1):
            # a reader that sees the new clock must also find all other pushes in the rows
            reached = clock if delayed or at < len(shards) else clock + 1
            of = {number: pushes[number] for number in numbers}
            self._do(self._round(some, of, group, clock, reached), some, out)
        if merged:
            ruled = self._clocks.of(group).closes is not None
            told = [
                ({entry.log.incarnation for entry in some}, replica, replica.version)
                for some, numbers in (shards if ruled else ())
                for replica in map(self._replicas.__getitem__, numbers)
            ]
            out.append(RoundMerged(clock, len(merged), group, told))
        for entry in delayed:
            self._do(self._push(entry), [entry], out)

    def _by_pushes(
        self, entries: list[Contribution], group: str
    ) -> list[tuple[list[Contribution], list[int]]]:
        """Return the pushes of a round with the replicas that get them, for one operation each.

        An operation records its pushes as applied to all of its replicas. Where rounds close
        without some workers, a push may be in the round of one replica and late for another's.
        """
        if self._clocks.of(group).closes is None:
            numbers = dict.fromkeys(part.number for entry in entries for part in entry.parts)
            return [(entries, sorted(numbers))] if entries else []
        by_replica = defaultdict(list)
        for at, entry in enumerate(entries):
            for number in {part.number: None for part in entry.parts}:
                by_replica[number].append(at)
        together = defaultdict(list)
        for number in sorted(by_replica):
            together[tuple(by_replica[number])].append(number)
        return [([entries[at] for at in some], numbers) for some, numbers in together.items()]

    def _is_single(self, number: int) -> bool:
        rule: Consistency = self._replicas[number].shard.spec.consistency
        return rule.apply_at == "arrival"

    def _do(self, operation: Operation, entries: list[Contribution], out: Effects) -> None:
        failed = self._apply(operation, out)
        for entry in entries if failed else ():
            problems = [failed[p.number] for p in entry.parts if p.number in failed]
            if problems:
                self._refuse(entry, "; ".join(problems), out)

    def _refuse(self, entry: Contribution, reason: str, out: Effects) -> None:
        """Refuse a push that failed when its round was applied, unless its worker has left."""
        log = entry.log
        if self._admission.logs.get(entry.sender) is log:
            self._wait_queue.leave((log.incarnation, entry.seq))
            log.record(entry.seq, "refused")
            reply = Reply(log.incarnation, entry.seq, self._session.view_id, "refused", reason)
            out.append(Send(entry.sender, reply))

    def _round(
        self, entries: list[Contribution], pushes: Pushes, group: str, clock: int, reached: int
    ) -> Operation:
        """Return the operation that merges a round's pushes and announces the clock `reached`."""
        return Operation(
            "round",
            (self._chains.rank,),
            reached,
            [],
            tuple(entry.origin for entry in entries),
            [(entry.log, entry.seq) for entry in entries],
            [RoundPushes(self._replicas[number], pushes[number]) for number in sorted(pushes)],
            clock,
            self._rounds.weight(group, clock),
            group=group,
        )

    def _counted(self, entries: list[Contribution], group: str) -> tuple[Pushes, float]:
        """Return the pushes of a round that count, and their weight.

        All pushes count; under a cover, each replica counts those of one worker of each group.
        """
        closes = self._clocks.of(group).closes
        chosen: dict[tuple[int, int], int] = {}  # by replica and group of a cover: incarnation
        pushes: Pushes = defaultdict(list)
        weight = 0.0
        for entry in entries:
            worker, counts = entry.log.incarnation, False
            copies = cover_group(closes, entry.log.rank) if isinstance(closes, Cover) else worker
            for part in entry.parts:
                if chosen.setdefault((part.number, copies), worker) == worker:
                    pushes[part.number].append((entry.weight, part.lr, part.staged))
                    counts = True
            weight += entry.weight * counts
        return pushes, weight

    def _push(self, entry: Contribution) -> Operation:
        """Return the operation of a push that waited for a checkpoint clock."""
        changes = []
        for part in entry.parts:
            replica = self._replicas[part.number]
            changes.append(Change(replica, replica.part_of(part.staged), part.lr, part.staged))
        return Operation(
            "push",
            (self._chains.rank,),
            entry.clock,
            changes,
            (entry.origin,),
            [(entry.log, entry.seq)],
            round=entry.clock,
            pushed=entry.pushed,
            group=entry.log.group,
        )
