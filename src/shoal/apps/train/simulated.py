"""A job in the simulator: real models and data, on simulated workers, servers and links.

It leaves the folder of an ordinary run, whose times are those of the simulated clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch

from shoal.apps.codec_times import times_of
from shoal.apps.train.command import summarise
from shoal.apps.train.progress import Progress
from shoal.apps.train.setup import WorkerSetup, load_dataset, set_up
from shoal.reports.events import write_tables
from shoal.runs.job import JobSpec
from shoal.runs.job_file import dump_job
from shoal.runs.simulated_time import SimulatedTime, check_simulated
from shoal.simulation.codec_times import CodecTime, CodecTimes
from shoal.simulation.network import NetworkOptions
from shoal.simulation.training import SimulatedClient, SimulatedWorker, simulate_training
from shoal.storage.event_log import EventLog
from shoal.storage.run_folder import RunFolder
from shoal.strategies.loop import Hooks

MBIT = 1e6 / 8  # bytes
MEASURED, WARM_UP = 15, 3  # gradients


def simulate_job(
    job: JobSpec,
    options: SimulatedTime,
    data_dirs: Sequence[Path],
    bandwidth_mbit: float = 0.0,
) -> dict[str, Any]:
    """Run a job in the simulator, in this process, and return its summary.

    Args:
        job: the job to train.
        options: the parameters of simulated time; `batch_s` is not 0.
        data_dirs: the folders to search for data sets.
        bandwidth_mbit: the bandwidth of every host, in Mbit/s; 0 for no limit.

    Raises:
        InvalidValue: a part of the job is not simulated (`check_simulated`).
        ShoalError: an error of a worker.
    """
    began = time.time()
    check_simulated(job, options)
    job = job.resolved
    folder = RunFolder.create(Path(job.out), job.title or "simulated")
    folder.write_job(dump_job(job))
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, job.dtype))
    try:
        with torch.random.fork_rng(devices=[]):
            ended_s = _simulate(job, options, folder, data_dirs, bandwidth_mbit)
    finally:
        torch.set_default_dtype(default)
    write_tables(folder)
    summary = summarise(job, folder, began)
    summary |= {"wall_s": ended_s, "simulated": True, "simulated_in_s": time.time() - began}
    folder.write_summary(summary)
    return summary


def measured_batch_s(job: JobSpec, data_dirs: Sequence[Path]) -> float:
    """Return the median seconds that the gradient of a batch takes here, on one thread."""
    before = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, job.dtype))
    try:
        with torch.random.fork_rng(devices=[]):
            setup = set_up(job, load_dataset(job, list(data_dirs)), 0)
            batch = next(setup.batches.epoch(0))
            taken = []
            for _ in range(WARM_UP + MEASURED):
                began = time.perf_counter()
                setup.model.gradient(batch)
                taken.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before[0])
        torch.set_default_dtype(before[1])
    return median(taken[WARM_UP:])


def network_of(latency_s: float, bandwidth: float) -> NetworkOptions:
    """Return a network of hosts with this delay and bandwidth (bytes per second, 0: no limit)."""
    return NetworkOptions(
        delay_s=latency_s,
        jitter_s=0.0,
        payload_s=0.0,
        bandwidth=float("inf"),
        host_bandwidth=bandwidth,
        link_bytes=1 << 50,
    )


def _simulate(
    job: JobSpec,
    options: SimulatedTime,
    folder: RunFolder,
    data_dirs: Sequence[Path],
    bandwidth_mbit: float,
) -> float:
    """Train, and write the events and results; return the time at which the last worker ended."""
    dataset = load_dataset(job, list(data_dirs))
    network = network_of(options.latency_ms / 1000, bandwidth_mbit * MBIT)
    workers, observed = [], []
    for rank in range(job.workers):
        setup = set_up(job, dataset, rank)
        mine = _Observed(setup, folder, rank)
        worker = SimulatedWorker(
            setup.strategy,
            setup.model,
            setup.batches,
            job.epochs,
            _seconds(options, job, rank),
            mine,
        )
        workers.append(worker)
        observed.append(mine)
    try:
        taken = times_of(job, {name: CodecTime(*each) for name, each in options.codecs.items()})
        simulate_training(
            workers,
            job.servers,
            job.seed,
            network,
            job.max_steps,
            job.replicas,
            CodecTimes(taken, job.workers) if taken else None,
        )
        pairs = zip(workers, observed, strict=True)
        results = [mine.finish(worker.steps) for worker, mine in pairs]
    finally:
        for mine in observed:
            mine.close()
    for rank, result in enumerate(results):
        best = results[0]["best_accuracy"]  # from the worker that evaluates
        folder.write_result(rank, {**result, "best_accuracy": best})
    return max(worker.ended_s for worker in workers)


class _Observed:
    """Makes the hooks of a worker once it has joined, and its figures at the end."""

    def __init__(self, setup: WorkerSetup, folder: RunFolder, rank: int) -> None:
        self._setup = setup
        self._folder = folder
        self._rank = rank
        self._log: EventLog | None = None

    def __call__(self, client: SimulatedClient) -> Hooks:
        node = f"worker-{self._rank}"
        self._log = EventLog(self._folder.events, node, 0.0, lambda: client.now)
        first = self._rank == 0  # workers take turns here: one of them evaluates for all
        self._progress = Progress(self._setup, client, self._log, evaluates=first)
        self._progress.begin(self._rank)
        return self._progress

    def finish(self, steps: int) -> dict[str, Any]:
        return self._progress.finish(steps)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def _seconds(options: SimulatedTime, job: JobSpec, rank: int) -> Callable[[int], float]:
    """Return the function that gives the seconds of a worker's batch, by its number."""
    paces = options.paces(job.workers)
    random = Random(f"{job.seed} {rank}")

    def seconds(batch: int) -> float:
        turns = batch // options.turn if options.turn else 0
        pace = paces[(rank - turns) % job.workers]
        return options.batch_s * pace * random.lognormvariate(0.0, options.jitter)

    return seconds
