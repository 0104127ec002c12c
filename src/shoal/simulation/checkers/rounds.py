"""Checkers of rounds that close without some workers (`Quorum`)."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import cast

import msgspec

from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.notes import RoundMerged
from shoal.protocol.server.state.replica import NONE, Replica
from shoal.protocol.views import FOREVER, NO_VIEW, ViewId
from shoal.simulation.checkers.history import violated
from shoal.tables.consistency import Quorum
from shoal.tables.dense.shard import DenseShard

Fragment = tuple[str, int]  # table, first row
SLACK_S = 1e-9


class Merged(msgspec.Struct, frozen=True):
    """A round that was merged into a fragment: its clock, its workers, and the version it made."""

    version: int
    clock: int
    workers: set[int]


class ClosedRounds:
    """The rounds that are in the rows of each fragment, as its heads have closed them.

    A head that is replaced may have closed rounds that nobody else has. So records above the
    version that a new head begins with are dropped, and the later closes of a former head as well.
    """

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._merged: dict[Fragment, list[Merged]] = {}
        self._views: dict[Fragment, ViewId] = {}
        # by server, (time, clock that the quorum has passed then), ever and in the current view
        self._passed: dict[int, list[tuple[float, int]]] = {}
        self._since: dict[int, list[tuple[float, int]]] = {}

    def adopted(self, machine: ServerMachine) -> None:
        """Note that a server adopts a view: it may become the head of some fragments."""
        self._since.pop(machine.session.incarnation, None)
        view = machine.session.view_id
        for replica in machine.state.replicas.values():
            if replica.previous == NONE and not replica.group:
                for fragment in _fragments(replica):
                    if view > self._views.get(fragment, NO_VIEW):
                        self._views[fragment] = view
                        merged = self._merged.get(fragment, [])
                        self._merged[fragment] = [m for m in merged if m.version <= replica.version]

    def closed(self, machine: ServerMachine, note: RoundMerged, now: float) -> None:
        """Check `quorum`: a round closes when enough workers have passed it, for long enough.

        `rounds`: each fragment takes each round once, and in order.
        """
        clocks, clock = machine.state.clocks.of(""), note.clock
        self._look(machine, now)
        passed = self._passed[machine.session.incarnation]
        since = min((at for at, reached in passed if reached > clock), default=inf)
        if now < since + self._quorum.grace_s - SLACK_S and clocks.minimum <= clock:
            text = f"closes round {clock} at clocks {list(clocks.items())}"
            text = f"{machine.session.name} {text}, enough since {since:.3f}, now {now:.3f}"
            raise violated("quorum", text)
        for workers, replica, version in note.shards:
            for fragment in _fragments(replica):
                if self._views.get(fragment) != machine.session.view_id:
                    continue
                merged = self._merged[fragment]
                if merged and merged[-1].clock >= clock:
                    text = f"round {clock} of {fragment} after {merged[-1].clock}"
                    raise violated("rounds", f"{machine.session.name} closes {text}")
                merged.append(Merged(version, clock, workers))

    def look(self, machine: ServerMachine, now: float) -> None:
        """Check `held up`: no server keeps a round open for longer than the grace window.

        A server whose next tick is due may still close the round then.
        """
        if machine.frozen or machine.suspended or machine.session.view is None:
            return
        self._look(machine, now)
        if (next_at := machine.deadline()) is not None and next_at <= now:
            return
        closed = machine.state.clocks.of("").closed
        for since, clock in self._since[machine.session.incarnation]:
            if now > since + self._quorum.grace_s + SLACK_S and closed < clock:
                text = f"rounds below {closed}, and enough have passed {clock} since {since:.3f}"
                raise violated("held up", f"{machine.session.name} has closed {text}")

    def _look(self, machine: ServerMachine, now: float) -> None:
        """Note the time at which the quorum has passed a new clock, ever and in this view."""
        clocks = machine.state.clocks.of("")
        at_work = sorted((at for _, at in clocks.items() if at < FOREVER), reverse=True)
        for passed in (self._passed, self._since):
            known = passed.setdefault(machine.session.incarnation, [])
            for clock in at_work[min(self._quorum.k, len(at_work)) - 1 :][:1]:
                if not known or clock > known[-1][1]:
                    known.append((now, clock))

    def of(self, table: str, first: int) -> list[Merged]:
        """Return the rounds in the rows of a fragment."""
        return self._merged.get((table, first), [])


def _fragments(replica: Replica) -> Iterable[Fragment]:
    if replica.shard.spec.kind == "dense":
        shard = cast(DenseShard, replica.shard)
        for part in shard.fragments:
            yield shard.spec.name, part.start
