"""`payload`: what a machine uses of a payload is what was sent.

Buffers are lent to a message until it has arrived. A sender that takes them back earlier has to
detach them, or to close the connection; otherwise the message brings what they hold later.
"""

from __future__ import annotations

from collections.abc import Hashable

from shoal.protocol.machine import Machine
from shoal.protocol.messages.base import Message
from shoal.protocol.messages.replication import Replicate, StateChunk
from shoal.protocol.messages.requests import Reply, Request
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.views import NodeId
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation.checkers.history import Violation, violated


def evidence(machine: Machine, sender: NodeId, message: Message) -> Hashable:
    """Return the state of a machine that changes when it uses a payload; None if there is none."""
    if isinstance(machine, WorkerMachine):
        return machine.bytes_pulled if isinstance(message, Reply) else None
    if not isinstance(machine, ServerMachine):
        return None
    if isinstance(message, Replicate | StateChunk):
        return machine.session.view_id, machine.chains.taken(sender)
    log = machine.requests.admission.logs.get(sender)
    if log is None or not isinstance(message, Request):
        return None
    code = log.outcomes.get(message.seq)
    used = code if code in ("applied", "accepted", "waiting") else None
    return used, len(log.parts.get(message.seq, ()))


def changed_payload(sender: NodeId, to: NodeId, message: Message) -> Violation:
    """Return the violation of a node that has used a payload which changed on its way."""
    return violated("payload", f"{to} uses {message.describe()} of {sender}, which has changed")
