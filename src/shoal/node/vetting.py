"""What a machine says of a peer's message before it handles it.

Nothing has changed by then. So whatever goes wrong here is the peer's fault, and costs it its
connection; what goes wrong in `handle` is ours, and stops the node.
"""

from __future__ import annotations

from shoal.errors import BadContent, BadLength, InvariantBroken, PeerFault
from shoal.protocol.machine import Arrival, Machine, Received
from shoal.protocol.messages import Message
from shoal.protocol.views import NodeId


def arrival_of(machine: Machine, sender: NodeId, message: Message, nbytes: int) -> Arrival:
    """Where a payload goes.

    Raises:
        PeerFault: the machine raised an error that nobody expected.
    """
    try:
        return machine.arriving(sender, message, nbytes)
    except (InvariantBroken, BadLength):
        raise
    except Exception as error:
        what = f"{type(message).__name__} with {nbytes} bytes"
        raise PeerFault(f"{what}: {type(error).__name__}: {error}") from error


def vet(machine: Machine, received: Received) -> None:
    """
    Raises:
        BadContent: no lawful peer sends the message.
        PeerFault: the machine raised an error that nobody expected.
    """
    try:
        problem = machine.problem_of(received)
    except InvariantBroken:
        raise
    except Exception as error:
        what = f"{type(received.message).__name__}: {type(error).__name__}: {error}"
        raise PeerFault(what) from error
    if problem:
        raise BadContent(f"{type(received.message).__name__}: {problem}")
