"""The runs of a comparison: one after the other on real processes, or several in the simulator."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal.apps.compare.applications import application_of
from shoal.apps.process_pool import process_pool
from shoal.apps.train.simulated import measured_batch_s, simulate_job
from shoal.engines.base import Engine
from shoal.engines.hosts import Hosts, HostsEngine, check_hosts
from shoal.errors import InvalidValue, ShoalError
from shoal.runs.application import Application
from shoal.runs.grid import Cell, Comparison
from shoal.runs.job import JobSpec
from shoal.runs.options import RunOptions
from shoal.runs.run import run_here
from shoal.runs.simulated_time import SimulatedTime
from shoal.storage.comparison_folder import ComparisonFolder


@dataclass(frozen=True)
class CellRun:
    """One run of a comparison."""

    cell: Cell
    seed: int
    out: Path
    kind: str
    simulation: SimulatedTime

    @property
    def name(self) -> str:
        return f"{self.cell.name}, seed {self.seed}"

    def application(self, data_dirs: Sequence[Path]) -> Application[Any]:
        """Return what is run; a new one each time, as it may hold its data."""
        return application_of(self.kind, self.cell, self.seed, self.out, data_dirs)


def run_of(
    comparison: Comparison,
    folder: ComparisonFolder,
    cell: Cell,
    seed: int,
) -> CellRun:
    """Return the run of a cell with one of the seeds, in its place in the comparison's folder."""
    out = folder.runs(cell.folder, seed)
    simulation = comparison.simulation
    if comparison.simulated and not simulation.batch_s:
        key = _key(cell.job(seed, str(out)))
        batch_s = comparison.measured.get(key)
        if batch_s is None:
            raise InvalidValue(f"{folder.comparison} has no seconds a batch of {key!r}")
        simulation = msgspec.structs.replace(simulation, batch_s=batch_s)
    if comparison.simulated and not simulation.codecs:
        simulation = msgspec.structs.replace(simulation, codecs=comparison.codecs)
    return CellRun(cell, seed, out, comparison.application, simulation)


# ---------------------------------------------------------------------------- real processes


def on_processes(runs: Sequence[CellRun], data_dirs: Sequence[Path]) -> Generator[tuple[str, str]]:
    """Do one run after the other; yield the name of each, and its error."""
    for run in runs:
        error = ""
        try:
            with ExitStack() as stack:
                application, engine = run.application(data_dirs), None
                if run.cell.bandwidth:
                    engine = _limited(stack, application.spec, run.cell.bandwidth)
                run_here(application, engine=engine)
        except ShoalError as failed:
            error = failed.message
        yield run.name, error


def _limited(stack: ExitStack, job: RunOptions, bandwidth: float) -> Engine:
    """Set up hosts with links of the cell's bandwidth, and return their engine."""
    servers = job.servers if job.uses_servers else 0
    names = [
        "scheduler",
        *(f"server-{rank}" for rank in range(servers)),
        *(f"worker-{rank}" for rank in range(job.workers)),
    ]
    hosts = stack.enter_context(Hosts(names))
    for name in names:
        hosts.slow(name, bandwidth)
    return HostsEngine(hosts)


def check_limited(job: JobSpec) -> None:
    check_hosts("links with a bandwidth (without --simulated)")
    if job.transport != "unix":
        raise InvalidValue(
            "links with a bandwidth are between hosts of their own: leave out --transport"
        )


# ---------------------------------------------------------------------------- simulated time


def simulated(
    runs: Sequence[CellRun], data_dirs: Sequence[Path], jobs: int
) -> Generator[tuple[str, str]]:
    """Simulate several runs at a time; yield the name of each, and its error, as it ends."""
    with process_pool(jobs) as pool:
        futures: dict[Future[str], CellRun] = {
            pool.submit(_simulate, run, data_dirs): run for run in runs
        }
        for future in as_completed(futures):
            try:
                error = future.result()
            except BrokenProcessPool:
                error = "a process of the simulation was killed, perhaps for want of memory"
            yield futures[future].name, error


def _simulate(run: CellRun, data_dirs: Sequence[Path]) -> str:
    try:
        simulate_job(run.application(data_dirs).spec, run.simulation, data_dirs, run.cell.bandwidth)
    except ShoalError as error:
        return error.message
    except Exception as error:  # from the user's model, data or strategy
        return f"{type(error).__name__}: {error}"
    return ""


def measured(
    cells: Sequence[Cell], data_dirs: Sequence[Path], known: Mapping[str, float]
) -> dict[str, float]:
    """Return the seconds of a batch for each model and size: those `known`, or measured here."""
    found = dict(known)
    for cell in cells:
        job = cell.job(0, "")
        if _key(job) not in found:
            try:
                found[_key(job)] = measured_batch_s(job, data_dirs)
            except ShoalError:
                raise
            except Exception as error:  # from the user's model
                raise InvalidValue(
                    f"cell {cell.name!r}: no gradient of a batch: {type(error).__name__}: {error}"
                ) from error
    return found


def _key(job: JobSpec) -> str:
    """Return a text of what decides how long a batch takes: model, batch size and dtype."""
    model = f"layers {job.layers}" if job.layers else job.model or "usual model"
    return f"{model}, batches of {job.worker_batch}, {job.dtype}"
