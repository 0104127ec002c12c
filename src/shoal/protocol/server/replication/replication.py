"""A server's part in replication: its chains, what comes down them, and rows that move."""

from __future__ import annotations

from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import Arrival, Discard, Effects, EventTime, Sink
from shoal.protocol.messages import (
    Drain,
    GroupProgress,
    Replicate,
    ReplicateAck,
    StateChunk,
    Synced,
)
from shoal.protocol.server.admission import Admission
from shoal.protocol.server.checkpointing import Checkpointer
from shoal.protocol.server.executor import Applier, Executor
from shoal.protocol.server.opening import TableMemory
from shoal.protocol.server.replication.chain import Chains
from shoal.protocol.server.replication.drain import Drainer
from shoal.protocol.server.replication.replay import Replayer
from shoal.protocol.server.replication.replicas import Moved
from shoal.protocol.server.replication.scrub import Scrubber
from shoal.protocol.server.replication.takeover import Takeover
from shoal.protocol.server.replication.transfer import StateTransfer
from shoal.protocol.server.request_handler import declined
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId, View, ViewId

RECONNECT_S = 0.01  # before sending again to a server whose connection broke


class Replication:
    """Replicates what a server does, repeats what other servers do, and moves rows.

    chains:          what is under way to other servers
    state_transfer:  rows that are under way to syncing replicas
    """

    def __init__(
        self,
        session: Session,
        admission: Admission,
        clocks: Clocks,
        chains: Chains,
        checkpointer: Checkpointer,
        executor: Executor,
        applier: Applier,
        time: EventTime,
        memory: TableMemory,
    ) -> None:
        self._session = session
        self._admission = admission
        self._clocks = clocks
        self.chains = chains
        self._checkpointer = checkpointer
        self._executor = executor
        self._applier = applier
        self._time = time
        self.replicas = chains.replicas
        self._replayer = Replayer(admission, chains, executor, applier, memory)
        self._takeover = Takeover(
            admission, chains.replicas, clocks, chains, executor.rounds, applier
        )
        self._drainer = Drainer(admission, chains, self._takeover)
        self.state_transfer = StateTransfer(admission, executor.rounds, chains)
        self._scrubber = Scrubber(chains)
        self._synced: tuple[tuple[int, int, int], ...] = ()  # as last reported to the scheduler

    # ------------------------------------------------------------------ messages

    def problem_of(
        self,
        sender: NodeId,
        message: Replicate | ReplicateAck | StateChunk,
        payload: Sink | None,
    ) -> str:
        """Return why no server of this view sends a message; empty if one may. Changes nothing.

        The rest of a message with a payload was looked at before its payload was let in.
        """
        if self._admission.frozen or message.view != self._session.view_id:
            return ""  # it is declined
        if payload is not None and not payload.revoked:
            for load in payload.context:
                if load.keys is not None and (problem := load.problem()):
                    return str(problem)
            return ""
        if isinstance(message, Replicate) and not self._has(message.group):
            return f"no worker group {message.group!r}"
        return self.chains.problem_of(sender, message)

    def arriving(self, sender: NodeId, message: Replicate | StateChunk, nbytes: int) -> Arrival:
        """Return where the payload of another server's message goes."""
        if self._admission.frozen:
            return Discard("frozen")
        if isinstance(message, Replicate) and not self._has(message.group):
            return Discard("of no group")
        return self.chains.arriving(sender, message, nbytes, self._replayer.stage(message))

    def _has(self, group: str) -> bool:
        return not group or group in self._clocks.groups()

    def received(
        self,
        sender: NodeId,
        message: Replicate | ReplicateAck | StateChunk,
        payload: Sink | None,
        out: Effects,
    ) -> None:
        """Handle an operation, an acknowledgement or a chunk of this view from another server."""
        if self._admission.frozen or message.view != self._session.view_id:
            out.append(declined("between servers", sender, type(message).__name__))
            if message.view > self._session.view_id:
                self._session.ask_for_view(message.view, out)
            return
        if isinstance(message, ReplicateAck):
            if self.chains.acknowledged(sender, message, out):
                self._executor.look(out)
            return
        stage = self._replayer.stage(message)
        chunks = False
        for each, replicas, loads in self.chains.received(sender, message, payload, stage, out):
            if isinstance(each, StateChunk):
                chunks = True
                self.state_transfer.install(each, replicas[0], loads, out)
            elif each.what == "check":
                self._scrubber.compare(each, replicas, loads, out)
            else:
                self._replayer.replay(each, replicas, loads, out)
                if self._checkpointer.active:
                    self._checkpointer.reached(out)
        self.chains.answer(out)
        if chunks:
            self.say_synced(out)
        self._executor.look(out)

    def peer_lost(self, node: NodeId) -> None:
        """Send again once a broken connection is back."""
        self.chains.peer_lost(node, self._time.now + RECONNECT_S)

    # ------------------------------------------------------------------ time

    def go_on(self, out: Effects) -> None:
        """Do the work that is due."""
        now = self._time.now
        if now >= self.chains.wakes_at():
            self.chains.tick(out)
        self.state_transfer.go_on(now, out)
        self._scrubber.go_on(now, out)
        self._drainer.say(out)

    def wakes_at(self) -> float:
        return min(
            self.chains.wakes_at(),
            self.state_transfer.wakes_at(),
            self._scrubber.wakes_at(),
            self._drainer.until,
        )

    # ------------------------------------------------------------------ views

    def begin_to_drain(self, message: Drain, out: Effects) -> None:
        """Admit no new requests, because rows are about to move."""
        self._drainer.begin(message, self._time.now, out)

    def end_drain(self) -> None:
        """Admit requests again if no view comes in time."""
        self._drainer.tick(self._time.now)

    def drained(self, view: ViewId) -> bool:
        """Return whether the server is drained for that view."""
        return self._drainer.holds(view)

    def progress(self, group: str) -> GroupProgress:
        """Return how far the replicas of a group's tables have come, for a promise."""
        replicas, rounds = self.chains.of(group), self._executor.rounds
        # rows that were sent here say more than their head's clock, if that had just taken over
        known = [each.reached for each in replicas]
        known += [r.closed for r in replicas if r.shard.spec.consistency.apply_at == "round_end"]
        return GroupProgress(
            group,
            rounds.first_open(group),
            max(known, default=0),
            max((replica.closed for replica in replicas), default=0),
            rounds.waits(group) or self._applier.copied.waits(group),
        )

    def adopt(self, view: View, moved: Moved, out: Effects) -> None:
        """Adopt a view that has moved replicas."""
        self._drainer.end()
        if moved.cut:
            self._takeover.recut(moved.cut)
        self.chains.adopt(view, self._session.rank, out)
        self.state_transfer.adopt()
        self._scrubber.adopt(self._time.now)
        self.chains.greet(out)

    def take_over(self) -> None:
        """Continue the rounds of former heads; the workers of the view are known by now."""
        self._takeover.take_over()

    def say_synced(self, out: Effects) -> None:
        """Tell the scheduler once the syncing replicas here have all their rows."""
        synced = self.state_transfer.synced()
        if synced != self._synced:
            self._synced = synced
            self._session.answered("synced", out)
            if synced:
                question = Synced(self._session.incarnation, synced)
                self._session.ask("synced", 0, question, self._time.now, out)
