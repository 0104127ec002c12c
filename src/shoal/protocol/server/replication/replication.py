"""Replication: a server's chains, the messages that come down them, and rows that move."""

from __future__ import annotations

from shoal.protocol.machine import Arrival, Discard, Effects, Sink
from shoal.protocol.messages.membership import Drain, GroupProgress, Synced
from shoal.protocol.messages.replication import Replicate, ReplicateAck, StateChunk
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.notes import Declined
from shoal.protocol.server.replication.drain import Drainer
from shoal.protocol.server.replication.replay import Replayer
from shoal.protocol.server.replication.scrub import Scrubber
from shoal.protocol.server.replication.takeover import Takeover
from shoal.protocol.server.replication.transfer import StateTransfer
from shoal.protocol.server.requests.requests import Requests
from shoal.protocol.server.state.replicas import Moved
from shoal.protocol.server.state.state import ServerState
from shoal.protocol.views import NodeId, View, ViewId

RECONNECT_S = 0.01  # before sending again to a server whose connection broke


class Replication:
    """Replicates what a server does, repeats what other servers do, and moves rows.

    Attributes:
        state_transfer:  the transfers of rows to and from syncing replicas
    """

    def __init__(self, state: ServerState, chains: Chains, requests: Requests) -> None:
        self._session = state.session
        self._time = state.time
        self._clocks = state.clocks
        self._rounds = state.rounds
        self._chains = chains
        self._requests = requests
        admission, applier = requests.admission, requests.applier
        self._admission = admission
        self._replayer = Replayer(state, chains, requests)
        self._takeover = Takeover(state, admission, chains, applier)
        self._drainer = Drainer(admission, chains, self._takeover)
        self.state_transfer = StateTransfer(admission, state.rounds, chains)
        self._scrubber = Scrubber(chains)
        self._synced: tuple[tuple[int, int, int], ...] = ()  # as last reported to the scheduler

    # ------------------------------------------------------------------ messages

    def problem_of(
        self,
        sender: NodeId,
        message: Replicate | ReplicateAck | StateChunk,
        payload: Sink | None,
    ) -> str:
        """Return the problem of another server's message; empty if it has none.

        This changes nothing. The fields of a message with a payload were checked before the payload
        was admitted.
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
        return self._chains.problem_of(sender, message)

    def arriving(self, sender: NodeId, message: Replicate | StateChunk, nbytes: int) -> Arrival:
        """Return the destination of the payload of another server's message."""
        if self._admission.frozen:
            return Discard("frozen")
        if isinstance(message, Replicate) and not self._has(message.group):
            return Discard("of no group")
        return self._chains.arriving(sender, message, nbytes, self._replayer.stage(message))

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
            out.append(Declined("between servers", sender, type(message).__name__))
            if message.view > self._session.view_id:
                self._session.ask_for_view(message.view, out)
            return
        if isinstance(message, ReplicateAck):
            if self._chains.acknowledged(sender, message, out):
                self._requests.executor.look(out)
            return
        stage = self._replayer.stage(message)
        chunks = False
        for each, replicas, loads in self._chains.received(sender, message, payload, stage, out):
            if isinstance(each, StateChunk):
                chunks = True
                self.state_transfer.install(each, replicas[0], loads, out)
            elif each.what == "check":
                self._scrubber.compare(each, replicas, loads, out)
            else:
                self._replayer.replay(each, replicas, loads, out)
                if self._requests.checkpointer.active:
                    self._requests.checkpointer.reached(out)
        self._chains.answer(out)
        if chunks:
            self.say_synced(out)
        self._requests.executor.look(out)

    def peer_lost(self, node: NodeId) -> None:
        """Resend soon to a server whose connection broke."""
        self._chains.peer_lost(node, self._time.now + RECONNECT_S)

    # ------------------------------------------------------------------ time

    def go_on(self, out: Effects) -> None:
        """Do the work that is due."""
        now = self._time.now
        if now >= self._chains.wakes_at():
            self._chains.tick(out)
        self.state_transfer.go_on(now, out)
        self._scrubber.go_on(now, out)
        self._drainer.say(out)

    def wakes_at(self) -> float:
        return min(
            self._chains.wakes_at(),
            self.state_transfer.wakes_at(),
            self._scrubber.wakes_at(),
            self._drainer.until,
        )

    # ------------------------------------------------------------------ views

    def begin_to_drain(self, message: Drain, out: Effects) -> None:
        """Admit no new requests, because rows are about to move."""
        self._drainer.begin(message, self._time.now, out)

    def end_drain(self) -> None:
        """Admit requests again if no view has come in time."""
        self._drainer.tick(self._time.now)

    def drained(self, view: ViewId) -> bool:
        """Return whether the server is drained for that view."""
        return self._drainer.holds(view)

    def progress(self, group: str) -> GroupProgress:
        """Return how far the replicas of a group's tables have come, for a promise."""
        replicas, rounds = self._chains.of(group), self._rounds
        # rows that were sent here may be ahead of the clock of a head that had just taken over
        known = [each.reached for each in replicas]
        known += [r.closed for r in replicas if r.shard.spec.consistency.apply_at == "round_end"]
        return GroupProgress(
            group,
            rounds.first_open(group),
            max(known, default=0),
            max((replica.closed for replica in replicas), default=0),
            rounds.waits(group) or self._requests.applier.copied.waits(group),
        )

    def adopt(self, view: View, moved: Moved, out: Effects) -> None:
        """Adopt a view that has moved replicas."""
        self._drainer.end()
        if moved.cut:
            self._takeover.recut(moved.cut)
        self._chains.adopt(view, self._session.rank, out)
        self.state_transfer.adopt()
        self._scrubber.adopt(self._time.now)
        self._chains.greet(out)

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
