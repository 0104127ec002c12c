"""Interim: sorts the events that come while a handler of the server is suspended.

The state is that of a handler in its middle. An event is handled now if its work is certain to be
short and changes nothing that this handler depends on: requests and operations on small shards that
are not busy, reads, and questions. A pull of busy rows waits for them. All other events are kept,
in order. A kept message counts as still in flight, and so do the messages that have to follow it.
"""

from __future__ import annotations

from collections import deque

from shoal.protocol.machine import Effects, Event, Received, Send, Sink, Ticked
from shoal.protocol.messages.admin import StatusRequest
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.replication import Replicate, ReplicateAck
from shoal.protocol.messages.requests import Computing, Probe, Request
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.notes import HandledMeanwhile, Kept
from shoal.protocol.server.requests.admission import Admission, lacks
from shoal.protocol.server.requests.long_work import LongWork
from shoal.protocol.server.requests.memory import TableMemory
from shoal.protocol.server.requests.staging import AdmittedRequest
from shoal.protocol.session import Session
from shoal.protocol.views import NodeId


class Interim:
    """Sorts the events that come while a handler is suspended.

    kept:     the events that wait
    handled:  whether other messages were handled since the handler began
    """

    def __init__(
        self,
        session: Session,
        long_work: LongWork,
        admission: Admission,
        chains: Chains,
        memory: TableMemory,
    ) -> None:
        self.kept: deque[Event] = deque()
        self.handled = False
        self._session = session
        self._long_work = long_work
        self._admission = admission
        self._chains = chains
        self._memory = memory
        self._senders: set[NodeId] = set()  # whose messages are kept
        self._sender, self._seq = "", 0  # of the request that is being handled

    def begin(self, event: Event) -> None:
        """Prepare for the handler of this event, which may be suspended."""
        self._senders = {each.sender for each in self.kept if isinstance(each, Received)}
        self._sender, self._seq = "", 0
        if isinstance(event, Received):
            self._senders.add(event.sender)
            self._sender = event.sender
            if isinstance(event.message, Request):
                self._seq = event.message.seq
        self.handled = False

    def takes(self, event: Received, out: Effects) -> bool:
        """Return whether to handle a message now; if not, keep it, answer it, or drop it."""
        sender, message, payload = event.sender, event.message, event.payload
        behind = sender in self._senders
        if isinstance(message, Probe) and behind:
            out.append(Send(sender, Computing(self._session.incarnation)))
            return False
        if payload is not None and not payload.whole:
            return not self._revoked(sender, payload)
        if not self._is_short(sender, message, behind):
            self._senders.add(sender)
            self.kept.append(event)
            out.append(Kept(message))
            return False
        self.handled = True
        out.append(HandledMeanwhile(message))
        return True

    def keep(self, event: Event) -> None:
        """Keep an event that is no message."""
        self.kept.append(event)

    def first_before(self, event: Event) -> Event | None:
        """Return the event to handle next, when one comes and others are kept; None if none.

        A short event goes first: the handler of a kept event may be suspended again.
        """
        if isinstance(event, Received):
            sender, payload = event.sender, event.payload
            if payload is not None and not payload.whole:
                return None if self._revoked(sender, payload) else event
            if self._is_short(sender, event.message, sender in self._senders):
                return event
        if not isinstance(event, Ticked):
            self.kept.append(event)
        return self.kept.popleft()

    def _revoked(self, sender: NodeId, payload: Sink) -> bool:
        """Return whether a fragment of a streamed push cannot be applied now; revoke it if so.

        It cannot be kept: the next fragment comes into its memory. The push is sent again.
        """
        admitted: AdmittedRequest = payload.context
        busy = any(number in self._long_work.busy for number, _, _ in admitted.footprint.pushes)
        if busy or sender in self._senders:
            payload.revoke()
        return payload.revoked

    def _is_short(self, sender: NodeId, message: Message, behind: bool) -> bool:
        """Return whether a message may be handled now.

        behind:  whether an earlier message of its sender is kept or being handled
        """
        match message:
            case Probe() | StatusRequest() | ReplicateAck():
                return not behind
            case Request():
                return message.advance < 0 and self._is_short_request(sender, message)
            case Replicate():
                small = self._long_work.is_small
                return not behind and all(map(small, self._chains.named(sender, message)))
        return False

    def _is_short_request(self, sender: NodeId, request: Request) -> bool:
        """Return whether a request pushes to small shards only, and needs no look at memory.

        While rounds are being closed, an operation of their group would announce its new clock.
        """
        log, footprint = self._admission.logs.get(sender), self._admission.footprint(request)
        if log is None or footprint is None or lacks(log, request.follows):
            return False
        if sender == self._sender and request.forget_below > self._seq:
            return False  # it has abandoned the request being handled
        if (request.pushes or footprint.calls) and log.group == self._long_work.closing:
            return False
        replicas = self._chains.replicas
        named = (*footprint.pushes, *footprint.pulls)
        changed = named if footprint.calls else footprint.pushes
        small = all(self._long_work.is_small(replicas[number]) for number, _, _ in changed)
        return small and self._memory.has_room(named)
