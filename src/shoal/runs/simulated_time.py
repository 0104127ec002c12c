"""The parameters of simulated time. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from shoal.engines.options import option
from shoal.errors import InvalidValue
from shoal.runs.job import JobSpec


class SimulatedTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of simulated time."""

    # fmt: off
    batch_s: Annotated[float, option("Simulated time", "seconds that a worker computes for a batch; 0: measured here", ge=0)] = 0.0
    pace: Annotated[str | float | list[float], option("Simulated time", "how many times as long each worker takes, such as 1,1,1,4; the others 1")] = ""
    turn: Annotated[int, option("Simulated time", "batches after which paces go on to the next worker, so that each is slow in turn; 0: never", ge=0)] = 0
    jitter: Annotated[float, option("Simulated time", "standard deviation of the logarithm of a batch's seconds", ge=0)] = 0.0
    codecs: dict[str, tuple[float, float, float]] = {}  # measured: seconds a value to encode and to decode, and its bytes
    latency_ms: Annotated[float, option("Simulated time", "milliseconds that a message takes, beside its bytes", ge=0)] = 0.2
    # fmt: on

    def __post_init__(self) -> None:
        self.paces(1)

    def paces(self, workers: int) -> list[float]:
        """Return each worker's pace; of more workers, if `pace` has more.

        >>> SimulatedTime(pace="1,4").paces(3), SimulatedTime(pace=[1, 4]).paces(1)
        ([1.0, 4.0, 1.0], [1.0, 4.0])
        """
        match self.pace:
            case "":
                values: Sequence[str | float] = ()
            case str(text):
                values = text.split(",")
            case list(values):
                pass
            case number:
                values = [number]
        try:
            found = [float(each) for each in values]
        except ValueError:
            found = [0.0]
        if any(not 0 < each < float("inf") for each in found):
            raise InvalidValue(f"pace {self.pace!r} is no list of numbers above 0, such as 1,1,4")
        return (found + [1.0] * workers)[: max(workers, len(found))]


def check_simulated(job: JobSpec, options: SimulatedTime) -> None:
    """Refuse a job that the simulator cannot simulate.

    Raises:
        InvalidValue: a part of the job is not simulated.
    """
    for wrong, what in (
        (job.saves or job.resume, "checkpoints"),
        (job.on_worker_loss != "stop" or job.slow_workers != "wait", "the loss of workers"),
        (job.on_timeout != "ask", "time-outs"),
        (job.collective != "ring", "MPI"),
        (job.drop_messages, "lost messages: `shoal simulate` has them"),
    ):
        if wrong:
            raise InvalidValue(f"simulated time goes without {what}")
    if len(options.paces(job.workers)) > job.workers:
        raise InvalidValue(f"pace {options.pace!r} is of more than {job.workers} workers")
