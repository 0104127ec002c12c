"""WorkerFigures: the figures of a worker's work, on a cluster and in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.protocol.worker.machine import WorkerMachine


class WorkerFigures:
    """The work of a worker so far, as its machine counts it."""

    _machine: WorkerMachine

    @property
    def rank(self) -> int:
        """The rank of this worker, which it keeps during the run."""
        return self._machine.session.rank

    @property
    def clock(self) -> int:
        """The number of iterations that this worker has finished."""
        return self._machine.clock

    @property
    def bytes_pushed(self) -> int:
        """The payload bytes sent to servers so far, without resends."""
        return self._machine.bytes_pushed

    @property
    def bytes_pulled(self) -> int:
        """The payload bytes received from servers so far."""
        return self._machine.bytes_pulled

    def codec_figures(self) -> Sequence[Any]:
        """Return what codecs made of a push, by layer; nothing in a simulated run."""
        return ()

    def residuals(self) -> dict[str, Any]:
        """Return what codecs have left out of this worker's pushes; none in a simulated run."""
        return {}

    @property
    def bytes_sent(self) -> int:
        """The payload bytes sent so far, to servers and to other workers."""
        return self._machine.bytes_sent

    @property
    def bytes_received(self) -> int:
        """The payload bytes received so far, from servers and from other workers."""
        return self._machine.bytes_received
