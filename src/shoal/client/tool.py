"""Tools: processes that ask a run something and are no members of it."""

from __future__ import annotations

import os

from shoal.client.places import scheduler_at, token_at
from shoal.node.node import Node
from shoal.protocol.machine import Machine
from shoal.transport import Identity


def ask_run(machine: Machine, where: str, token: str = "") -> str:
    """Run a tool's machine until it stops, and return the scheduler's address.

    where:  the folder of a run on this machine, or its scheduler's address
    token:  the run's token; read from the run's folder if not given

    Raises:
        DataMissing: no run is under way in that folder
        HandshakeRefused: the scheduler asks for a token, or for another one
    """
    address = scheduler_at(where)
    name = f"tool-{os.getpid()}-{os.urandom(4).hex()}"
    me = Identity(name, "worker", token=token or token_at(where))
    node = Node(machine, me, scheduler=address)
    try:
        node.run()
    finally:
        node.close()
    return address
