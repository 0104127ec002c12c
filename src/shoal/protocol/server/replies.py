"""A server's replies to requests and probes, with the reason if a request waits."""

from __future__ import annotations

from collections import Counter

from shoal.protocol.consistency import Clocks, VectorClock
from shoal.protocol.machine import CopyOnWriteGuard, Effects, Note, Send
from shoal.protocol.messages import Code, Nudge, Probe, Reply, Request
from shoal.protocol.session import Session
from shoal.protocol.views import Member, NodeId


class Replies:
    """Writes a server's replies.

    counters:  how many messages were declined, by kind
    """

    def __init__(
        self, session: Session, clocks: Clocks, workers: dict[int, Member], guard: CopyOnWriteGuard
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._session = session
        self._clocks = clocks
        self._workers = workers
        self._guard = guard

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
        clocks = self._clocks.by_worker.get(request.incarnation)
        if clocks is None:
            clocks = self._clocks.of("")
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
        out.append(Send(to, reply, buffers, self._guard))

    def state(
        self,
        out: Effects,
        to: NodeId,
        request: Request | Probe,
        code: Code,
        waits: int,
        reason: str,
    ) -> None:
        """Reply with the state of a request that waits for the clock `waits`, or for none (-1).

        If a probe is urgent, nudge the workers that the request waits for.
        """
        self.reply(out, to, request, code, reason)
        if isinstance(request, Probe) and request.urgent and waits >= 0:
            for worker in self._clocks_of(request).behind(waits):
                out.append(Send(self._workers[worker].id, Nudge(reason)))

    def acknowledge(
        self, out: Effects, to: NodeId, incarnation: int, seq: int, code: Code, reason: str
    ) -> None:
        """Reply with the outcome of a push whose round is closed."""
        out.append(Send(to, Reply(incarnation, seq, self._session.view_id, code, reason)))

    def _clocks_of(self, request: Request | Probe) -> VectorClock:
        """Return the clocks of the worker's group."""
        return self._clocks.of(self._clocks.group(request.incarnation))

    def absent(self, group: str, clock: int) -> str:
        """Return which workers are below `clock`, as the reason of a wait; empty if none is."""
        late = [
            f"{self._workers[worker].name} (at {self._clocks[worker]})"
            for worker in self._clocks.of(group).behind(clock)
        ]
        return f"waits for clock {clock} of {', '.join(late)}" if late else ""

    def count(self, out: Effects, kind: str, sender: NodeId, what: str) -> None:
        self.counters[kind] += 1
        out.append(Note("declined", {"kind": kind, "sender": sender, "what": what}))
