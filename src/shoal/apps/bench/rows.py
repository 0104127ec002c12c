"""Rows: figures beside their ceilings, measured by turns in one run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median, quantiles
from time import perf_counter
from typing import Any

WARM_UP = 50

Row = dict[str, Any]
Call = Callable[[], object]
Side = tuple[Call, set[int]]  # the call to measure, and the cores on which its caller may run
During = Callable[[int], AbstractContextManager[object]]
Batches = list[list[float]]  # seconds of each call, batch by batch


def by_turns(
    sides: Sequence[Side],
    count: int,
    rounds: int,
    warm_up: int = WARM_UP,
    during: During = nullcontext,
) -> list[Batches]:
    """Measure each side's call, `count` times in a batch, batch by batch in turns.

    during:  the context of each batch, by the number of its side
    """
    measured: list[Batches] = [[] for _ in sides]
    for call, _ in sides:
        for _ in range(warm_up):
            call()
    for _ in range(rounds):
        for number, ((call, cores), batches) in enumerate(zip(sides, measured, strict=True)):
            with on(cores), during(number):
                batches.append([timed(call) for _ in range(count)])
    return measured


def timed(call: Call) -> float:
    """Return the seconds that a call takes."""
    begin = perf_counter()
    call()
    return perf_counter() - begin


@contextmanager
def on(cores: set[int]) -> Iterator[None]:
    """Run this thread on one of `cores`, in a `with` block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def latency(name: str, ours: Batches, ceiling: Batches, **more: Any) -> Row:
    """Return a row of microseconds a call, the median batch's median; lower is better."""
    return _row(name, ours, microseconds(ours), microseconds(ceiling), "us", "lower", **more)


def beside(row: Row, peer_name: str, peer: float) -> Row:
    """Return a row with the figure of other software, a peer, in the same run."""
    return {**row, "peer_name": peer_name, "peer": peer, "peer_ratio": row["value"] / peer}


def rate(name: str, things: int, unit: str, ours: Batches, ceiling: Batches) -> Row:
    """Return a row of millions of things a second, the median batch's mean; higher is better.

    things:  the number of things in a call
    """
    value, bound = (_a_second(things, side) / 1e6 for side in (ours, ceiling))
    return _row(name, ours, value, bound, unit, "higher")


def throughput(name: str, nbytes: int, ours: Batches, ceiling: Batches) -> Row:
    """Return a row of GB/s (1e9 bytes), the median batch's mean; higher is better."""
    value, bound = gigabytes(nbytes, ours), gigabytes(nbytes, ceiling)
    return _row(name, ours, value, bound, "GB/s", "higher")


def gigabytes(nbytes: int, batches: Batches) -> float:
    """Return the GB/s (1e9 bytes), the median batch's mean."""
    return _a_second(nbytes, batches) / 1e9


def _a_second(things: int, batches: Batches) -> float:
    return median(things * len(batch) / sum(batch) for batch in batches)


def quality(
    name: str, value: float, unit: str, ceiling: float, better: str = "higher", **more: Any
) -> Row:
    """Return a row of a figure and its ceiling, such as how good a model has become."""
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "better": better,
        "p50": None,
        "p99": None,
        "ceiling": ceiling,
        "ratio": value / ceiling,
        "peer": None,
        "peer_ratio": None,
        **more,
    }


def microseconds(batches: Batches) -> float:
    return median(median(batch) for batch in batches) * 1e6


def _row(
    name: str, ours: Batches, value: float, ceiling: float, unit: str, better: str, **more: Any
) -> Row:
    calls = [second * 1e6 for batch in ours for second in batch]
    cuts = quantiles(calls, n=100) if len(calls) > 1 else calls * 99
    return quality(name, value, unit, ceiling, better, p50=cuts[49], p99=cuts[98], **more)
