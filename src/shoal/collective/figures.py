"""WorkerFigures: what a worker's machine tells of its work, on a cluster and in the simulator."""

from __future__ import annotations

from shoal.protocol.worker.machine import WorkerMachine


class WorkerFigures:
    """What a worker has done so far, as its machine counts it."""

    _machine: WorkerMachine

    @property
    def rank(self) -> int:
        """This worker's rank, which it keeps during the run."""
        return self._machine.session.rank

    @property
    def clock(self) -> int:
        """Number of iterations that this worker has finished."""
        return self._machine.clock

    @property
    def bytes_pushed(self) -> int:
        """Payload bytes sent to servers so far, without resends."""
        return self._machine.bytes_pushed

    @property
    def bytes_pulled(self) -> int:
        """Payload bytes received from servers so far."""
        return self._machine.bytes_pulled

    @property
    def bytes_sent(self) -> int:
        """Payload bytes sent so far, to servers and to other workers."""
        return self._machine.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Payload bytes received so far, from servers and from other workers."""
        return self._machine.bytes_received
