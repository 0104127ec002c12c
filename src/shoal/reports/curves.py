"""The learning curves of one run against steps, seconds and bytes, from its event log alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.reports.logged import records

WORKER = re.compile("worker-[0-9]+$")
POINTS = 60  # of a curve of losses, at most
Steps = Sequence[tuple["Point", float]]  # a point for each step, with its samples


@dataclass(frozen=True)
class Point:
    """A figure of a run, and the time when the run had it.

    Attributes:
        step: the step of the figure's worker.
        seconds: the seconds of training, without evaluations.
        bytes: the bytes that have gone through the links of all workers.
        value: the figure.

    Example:
        >>> Point(step=10, seconds=0.5, bytes=4096, value=0.93).value
        0.93
    """

    step: float
    seconds: float
    bytes: float
    value: float


@dataclass
class _Worker:
    """The progress of a worker, as its events say."""

    began: float = 0.0
    evaluating_s: float = 0.0
    seconds: float = 0.0
    bytes: int = 0
    idle_s: float = 0.0
    before: tuple[int, float] = (0, 0.0)  # bytes and idle time of a process that this one replaces

    def begin(self, t: float) -> None:
        """Begin, or go on from where the process was that this one replaces."""
        self.began, self.evaluating_s = t - self.seconds, 0.0
        self.before = self.bytes, self.idle_s

    def training_s(self, t: float) -> float:
        return t - self.began - self.evaluating_s

    def come_to(self, seconds: float, event: Mapping[str, Any]) -> None:
        """Record the figures of an event."""
        self.seconds = seconds
        bytes_before, idle_before = self.before
        moved = event.get("bytes_sent", 0) + event.get("bytes_received", 0)
        self.bytes, self.idle_s = bytes_before + moved, idle_before + event.get("idle_s", 0.0)


@dataclass(frozen=True)
class Curves:
    """The progress of a run, as its events say.

    Attributes:
        loss: the training loss of all workers: means over equal numbers of samples, in the order of
            the seconds.
        loss_by_step: the same against steps: means over steps of like number, of all workers.
        accuracy: the test accuracy of the worker of the lowest rank, the last with the final
            parameters.
        test_loss: the loss of this worker on test data, likewise.
        idle: the share of its time that each worker has waited, by rank.
        staleness: the number of steps, by the number of clocks that they were behind.
        seconds: the seconds of training, until the last worker had its final parameters.
        bytes: the bytes that have gone through the links of all workers.
        weights: the digest of the initial weights; "" if the run has none.
        logged: the figures that a script has recorded with `shoal.log`, of all workers, by name;
            seconds are those of the run, and bytes 0.

    Example:
        >>> found = shoal.reports.load_comparison("shoal-runs/compare-mnist")  # doctest: +SKIP
        >>> run = found.cells[0]  # doctest: +SKIP
        >>> [(point.seconds, point.value) for point in run.curves[0].accuracy]  # doctest: +SKIP
    """

    loss: list[Point] = field(default_factory=list)
    loss_by_step: list[Point] = field(default_factory=list)
    accuracy: list[Point] = field(default_factory=list)
    test_loss: list[Point] = field(default_factory=list)
    idle: dict[int, float] = field(default_factory=dict)
    staleness: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    bytes: int = 0
    weights: str = ""
    logged: dict[str, list[Point]] = field(default_factory=dict)


def curves_of(events: Iterable[Mapping[str, Any]]) -> Curves:
    """Return the learning curves of a run."""
    workers: dict[int, _Worker] = {}
    weights: dict[int, str] = {}
    staleness: Counter[int] = Counter()
    steps: list[tuple[Point, float]] = []  # with the samples of each
    evals: dict[int, list[tuple[Point, Point]]] = {}
    events = sorted(events, key=lambda each: each["t"])
    for event in events:
        kind = event["kind"]
        if kind not in ("begin", "step", "eval", "end") or not WORKER.match(event["node"]):
            continue
        rank = int(event["node"].rpartition("-")[2])
        worker = workers.setdefault(rank, _Worker(event["t"]))
        if kind == "begin":
            worker.begin(event["t"])
            weights.setdefault(rank, event.get("weights", ""))
        elif kind == "end":
            worker.come_to(worker.training_s(event["t"]), event)
        elif kind == "step":
            worker.come_to(worker.training_s(event["t"]), event)
            staleness[round(event.get("staleness") or 0)] += 1
            if event["loss"] is not None:
                at = _at(event, worker.seconds, workers)
                steps.append((Point(*at, event["loss"]), event["samples"]))
        else:
            worker.evaluating_s += event.get("seconds", 0.0)
            at = _at(event, worker.training_s(event["t"]), workers)
            loss = float("nan") if event["loss"] is None else event["loss"]
            both = Point(*at, event["accuracy"]), Point(*at, loss)
            evals.setdefault(rank, []).append(both)
    shown = evals[min(evals)] if evals else []
    return Curves(
        _over_time(steps),
        _by_step(steps),
        [accuracy for accuracy, _ in shown],
        [loss for _, loss in shown],
        {
            rank: max(0.0, worker.idle_s) / worker.seconds
            for rank, worker in sorted(workers.items())
            if worker.seconds > 0
        },
        dict(sorted(staleness.items())),
        max((worker.seconds for worker in workers.values()), default=0.0),
        sum(worker.bytes for worker in workers.values()),
        weights[min(weights)] if weights else "",
        _logged(events),
    )


def _logged(events: Iterable[Mapping[str, Any]]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for _, t, step, figures in records(events):
        for name, value in figures.items():
            found.setdefault(name, []).append(Point(step, t, 0.0, value))
    return found


def _at(
    event: Mapping[str, Any], seconds: float, workers: Mapping[int, _Worker]
) -> tuple[float, float, float]:
    return event["step"], seconds, float(sum(worker.bytes for worker in workers.values()))


def _over_time(steps: Steps) -> list[Point]:
    """Return at most POINTS means over about equal numbers of samples.

    Each is at the mean step and the last time of its samples. Workers are at unlike steps at a
    time, so that these steps may go back.
    """
    whole = sum(samples for _, samples in steps)
    means: list[Point] = []
    group: list[tuple[Point, float]] = []
    passed = 0.0
    for number, each in enumerate(sorted(steps, key=lambda each: each[0].seconds), 1):
        group.append(each)
        passed += each[1]
        if passed * POINTS >= whole * (len(means) + 1) or number == len(steps):
            means += _mean(group)
            group = []
    return means


def _by_step(steps: Steps) -> list[Point]:
    """Return at most POINTS means, each over equally many consecutive steps of all workers."""
    if not steps:
        return []
    first = min(point.step for point, _ in steps)
    span = max(point.step for point, _ in steps) - first + 1
    groups: dict[int, list[tuple[Point, float]]] = {}
    for each in steps:
        place = each[0].step - first
        groups.setdefault(int(place * POINTS // span if span > POINTS else place), []).append(each)
    return [mean for _, group in sorted(groups.items()) for mean in _mean(group)]


def _mean(group: Steps) -> list[Point]:
    """Return the mean of some steps, weighted by their samples; none if they have no samples."""
    weight = sum(samples for _, samples in group)
    if not weight:
        return []
    step, value = (
        sum(getattr(point, name) * samples for point, samples in group) / weight
        for name in ("step", "value")
    )
    seconds, moved = (
        max(getattr(point, name) for point, _ in group) for name in ("seconds", "bytes")
    )
    return [Point(step, seconds, moved, value)]
