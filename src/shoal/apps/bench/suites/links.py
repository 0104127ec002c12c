"""`shoal bench codecs --link RATE`: which codecs pay on a link, with a model.

Steps of two workers and two servers are simulated, with the seconds that a gradient and the codecs
take here and the true bytes of all messages. The ceiling is computing alone, and the peer the best
strategy without a codec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from torch import Tensor

from shoal.apps.bench.rows import Row, beside, quality
from shoal.apps.codec_times import codecs_of, measured_times, times_of
from shoal.apps.train.setup import WorkerSetup, load_dataset, set_up
from shoal.apps.train.simulated import MBIT, measured_batch_s, network_of
from shoal.errors import DataMissing, InvalidValue
from shoal.runs.job import JobSpec
from shoal.simulation.codec_times import CodecTime, CodecTimes
from shoal.simulation.training import SimulatedWorker, simulate_training
from shoal.storage.run_folder import RunFolder

WORKERS = SERVERS = 2
STEPS, WARM_UP = 8, 3
LATENCY_S, LOCAL_LATENCY_S = 0.2e-3, 0.02e-3
PUSHED = ("none", "int:8", "qsgd:4", "onebit", "topk:0.01")
PULLED = ("none", "int:8", "delta:qsgd:4", "delta:onebit")
SUMMED = ("none", "fp16", "int:8", "onebit")
PAYS = 1.05  # times as fast as the best strategy without a codec, to be of use
LINK = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgG])bit(?:/s)?")
UNITS = {"k": 1e-3, "m": 1.0, "g": 1e3}


class Exchanged(NamedTuple):
    """A way to exchange gradients and parameters."""

    strategy: str
    codec: str
    server_codec: str

    @property
    def plain(self) -> bool:
        """Whether nothing is encoded."""
        return self.codec == self.server_codec == "none"

    def __str__(self) -> str:
        codecs = (("push", self.codec), ("pull", self.server_codec))
        given = [f"{way} {codec}" for way, codec in codecs if codec != "none"]
        return ", ".join([self.strategy, *given])


WAYS = (
    *(Exchanged("allreduce", codec, "none") for codec in SUMMED),
    *(Exchanged("sync", codec, pulled) for codec in PUSHED for pulled in PULLED),
)
COUNT = len(WAYS)


def mbit_of(link: str) -> float:
    """Return the Mbit/s of a link; 0 for none.

    Raises:
        InvalidValue: it is no rate.

    >>> mbit_of("100Mbit"), mbit_of("2.5 Gbit/s"), mbit_of("local")
    (100.0, 2500.0, 0.0)
    """
    if link == "local":
        return 0.0
    found = LINK.fullmatch(link.strip())
    if found is None or not float(found[1]):
        raise InvalidValue(f"--link is a rate such as 100Mbit or 1Gbit, or local; not {link!r}")
    return float(found[1]) * UNITS[found[2].lower()]


def rows(
    folder: RunFolder,
    rounds: int,
    link: str = "100Mbit",
    model: str = "",
    data: str = "",
    data_dirs: Sequence[Path] = (),
) -> Iterator[Row]:
    mbit = mbit_of(link)
    job = _job(model, data, data_dirs)
    batch_s = measured_batch_s(job, data_dirs)
    alone = WORKERS * job.worker_batch / batch_s
    used = {str(each): each for way in WAYS for each in codecs_of(_with(job, way))}
    given = job, batch_s, mbit, measured_times(used.values()), data_dirs
    speeds = {way: _samples_a_second(way, *given) for way in WAYS}
    best = max(speed for way, speed in speeds.items() if way.plain)
    for way, speed in speeds.items():
        yield beside(quality(str(way), speed, "samples/s", alone), "best without", best)


def advice(report: Sequence[Row]) -> str:
    """Return which codecs pay, by the rows of a report.

    >>> row = {"name": "sync, push onebit", "value": 3.0, "peer": 2.0, "peer_ratio": 1.5}
    >>> advice([row])
    'sync, push onebit: 1.50 x the samples of the best without a codec'
    >>> advice([{**row, "peer_ratio": 1.01}])
    'none: no codec gives 1.05 x the samples of the best without one'
    """
    best = max(report, key=itemgetter("value"))
    if best["peer_ratio"] < PAYS:
        return f"none: no codec gives {PAYS} x the samples of the best without one"
    return f"{best['name']}: {best['peer_ratio']:.2f} x the samples of the best without a codec"


def _job(model: str, data: str, data_dirs: Sequence[Path]) -> JobSpec:
    """Return the job; without data the images of CIFAR-10 if they are here, else digits."""
    job = JobSpec(data=data or "cifar10", model=model, workers=WORKERS, servers=SERVERS)
    try:
        load_dataset(job, list(data_dirs))
    except DataMissing:
        if data:
            raise
        job = msgspec.structs.replace(job, data="digits")
    return job


def _with(job: JobSpec, way: Exchanged) -> JobSpec:
    return msgspec.structs.replace(job, **way._asdict()).resolved


def _samples_a_second(
    way: Exchanged,
    job: JobSpec,
    batch_s: float,
    mbit: float,
    times: Mapping[str, CodecTime],
    data_dirs: Sequence[Path],
) -> float:
    job = _with(job, way)
    dataset = load_dataset(job, list(data_dirs))
    workers = []
    for rank in range(WORKERS):
        setup = set_up(job, dataset, rank)
        model: Any = _SameGradient(setup)
        workers.append(SimulatedWorker(setup.strategy, model, setup.batches, 1, batch_s))
    codecs = CodecTimes(times_of(job, times), WORKERS)
    network = network_of(LATENCY_S if mbit else LOCAL_LATENCY_S, mbit * MBIT)
    simulate_training(workers, SERVERS, 0, network, STEPS, 1, codecs)
    first, last = (max(worker.times[at] for worker in workers) for at in (WARM_UP - 1, -1))
    return WORKERS * job.worker_batch * (STEPS - WARM_UP) / (last - first)


class _SameGradient:
    """A model whose gradient is computed once: the others take no time here."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._model = setup.model
        self._found: tuple[tuple[float, float], dict[str, Tensor]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def gradient(self, batch: Any) -> tuple[float, float]:
        if self._found is None:
            result = self._model.gradient(batch)
            self._found = result, {name: each.clone() for name, each in self._model.grads.items()}
        result, grads = self._found
        for name, each in grads.items():
            self._model.grads[name].copy_(each)
        return result
