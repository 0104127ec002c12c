"""`shoal simulate`: many seeds on all cores, their coverage, and how to replay a failure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import repeat
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from shoal.apps.process_pool import process_pool
from shoal.simulation.coverage import LEAST_SEEDS, LEAST_SEEDS_OF, REQUIRED_COVERAGE
from shoal.simulation.faults.schedule import Fault, fault_of
from shoal.simulation.scenario import Report, simulate


def run_seeds(
    first: int, count: int, jobs: int, trace: bool, console: Console, schedule: Sequence[str] = ()
) -> dict[str, Any]:
    """Simulate seeds [first, first + count), print what they covered, and return the figures.

    schedule:  the faults to inject in turn, as `fault_of` reads them; if empty, each seed draws its
               own

    `coverage` counts, for each fault and phase, the seeds that hit it; with enough seeds, `thin`
    has the counters that too few seeds hit.
    """
    began = time.monotonic()
    seeds = range(first, first + count)
    chosen = [fault_of(each) for each in schedule]
    with _simulated(seeds, jobs, trace, chosen) as running:
        reports = list(track(running, "simulating", count, console=console))
    coverage: Counter[str] = Counter()
    combined = blake2b(digest_size=16)
    for report in reports:
        coverage.update(report.coverage.keys())
        combined.update(report.trace_hash.encode())
    trace_hash = reports[0].trace_hash if count == 1 else combined.hexdigest()
    found = [report for report in reports if report.violation]
    enough = count >= LEAST_SEEDS_OF and not schedule
    thin = {k: coverage[k] for k in REQUIRED_COVERAGE if enough and coverage[k] < LEAST_SEEDS}
    figures = {
        "seeds": count,
        "first_seed": first,
        "violations": [
            {"seed": r.seed, "checker": r.checker, "violation": r.violation} for r in found
        ],
        "trace_hash": trace_hash,
        "events": sum(report.events for report in reports),
        "events_min": min(report.events for report in reports),
        "faults_min": min(report.faults for report in reports),
        "coverage": dict(sorted(coverage.items())),
        "thin": thin,
    }
    if trace:
        for report in reports:
            for line in report.lines:
                console.print(line, highlight=False, markup=False, soft_wrap=True)
    _show(console, figures)
    for report in found:
        console.print(f"[bold red]seed {report.seed}[/]: {report.violation}", highlight=False)
        same = f" --faults {','.join(schedule)}" if schedule else ""
        console.print(f"  replay it:  shoal simulate --seed {report.seed} --trace{same}")
    for name, seeds_hit in thin.items():
        console.print(f"[yellow]thin[/]: {name} in {seeds_hit} seeds, not {LEAST_SEEDS}")
    return {**figures, "wall_s": time.monotonic() - began}


@contextmanager
def _simulated(
    seeds: range, jobs: int, trace: bool, schedule: Sequence[Fault]
) -> Iterator[Iterator[Report]]:
    """Yield the reports of seeds, in order, as they end."""
    torch.set_num_threads(1)
    each = (seeds, repeat(trace), repeat(schedule))
    if jobs == 1 or len(seeds) == 1:
        yield map(simulate, *each)
        return
    with process_pool(jobs) as pool:
        yield pool.map(simulate, *each)


def _show(console: Console, figures: dict[str, Any]) -> None:
    table = Table("fault or event", "seeds", box=None, padding=(0, 2), header_style="bold")
    for name, seeds in figures["coverage"].items():
        table.add_row(name, str(seeds))
    console.print(table)
    console.print(
        f"{figures['seeds']} seeds, {figures['events']:,} events (at least "
        f"{figures['events_min']} events and {figures['faults_min']} faults a seed), "
        f"trace {figures['trace_hash']}"
    )
