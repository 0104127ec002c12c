"""Closing of rounds: merge and apply the pushes of a clock when every worker has passed it.

The pushes of a round are merged in rank order and applied as one update. Pushes that waited for a
checkpoint clock are applied after that, one by one, once the rows of that checkpoint are saved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from shoal.protocol.machine import Effects, Note
from shoal.protocol.server.replica import Replica
from shoal.protocol.server.replication.chain import Chains
from shoal.protocol.server.replication.operations import Change, Operation, RoundPushes
from shoal.protocol.server.rounds import Contribution, Rounds
from shoal.tables.spec import Consistency


class RoundCloser:
    """Makes operations of a server's rounds.

    Arguments:
        apply: applies an operation; returns why the parts for some replicas were refused
        refuse: tells a worker why its push was refused
    """

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        chains: Chains,
        rounds: Rounds,
        apply: Callable[[Operation, Effects], dict[int, str]],
        refuse: Callable[[Contribution, str, Effects], None],
    ) -> None:
        self._replicas = replicas
        self._chains = chains
        self._rounds = rounds
        self._apply = apply
        self._refuse = refuse

    def close(self, group: str, clock: int, out: Effects) -> None:
        """Close the round of a clock that every worker of the group has passed."""
        entries = self._rounds.close(group, clock)
        delayed = [entry for entry in entries if any(self._is_single(n) for n, _ in entry.parts)]
        merged = [entry for entry in entries if entry not in delayed]
        if merged:
            # a reader that sees the new clock must also find the delayed pushes in the rows
            reached = clock if delayed else clock + 1
            self._do(self._round(merged, group, clock, reached), merged, out)
            out.append(Note("closed", {"clock": clock, "pushes": len(merged)}))
        for entry in delayed:
            self._do(self._push(entry), [entry], out)

    def _is_single(self, number: int) -> bool:
        rule: Consistency = self._replicas[number].shard.spec.consistency
        return rule.apply_at == "arrival"

    def _do(self, operation: Operation, entries: list[Contribution], out: Effects) -> None:
        failed = self._apply(operation, out)
        for entry in entries if failed else ():
            problems = [failed[number] for number, _ in entry.parts if number in failed]
            if problems:
                self._refuse(entry, "; ".join(problems), out)

    def _round(
        self, entries: list[Contribution], group: str, clock: int, reached: int
    ) -> Operation:
        """Return the operation that merges a round's pushes; workers have reached a clock."""
        pushes = defaultdict(list)
        for entry in entries:
            for number, staged in entry.parts:
                pushes[number].append((entry.weight, entry.lr, staged))
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

    def _push(self, entry: Contribution) -> Operation:
        """Return the operation of a push that waited for a checkpoint clock."""
        changes = []
        for number, staged in entry.parts:
            replica = self._replicas[number]
            changes.append(Change(replica, replica.part_of(staged), entry.lr, staged))
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
