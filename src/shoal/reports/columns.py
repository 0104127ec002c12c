"""The columns of a comparison's table: where each figure comes from, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from shoal.reports.curves import Curves
from shoal.reports.events import Run
from shoal.reports.numbers import decimal_bytes, percent, seconds, significant

Best = Callable[[Sequence[float]], float]
Figure = Callable[[Run, Curves, float], float | None]  # of a run, its curves, and a threshold


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        name: the name in rows.
        title: the title on a page; of `time_to` with the threshold of accuracy.
        short: the title on a terminal; "" for a column that only a page has.
        shown: the function that shows a value as text.
        best: the function that finds the best value, `min` or `max`; None if no value is best.
        of: the function that finds the value of a run; None for a run without it.
    """

    name: str
    title: str
    short: str
    shown: Callable[[float], str]
    best: Best | None
    of: Figure


def time_to(curves: Curves, threshold: float) -> float:
    """Return the seconds of training until the accuracy was a threshold; all if it never was."""
    return next((p.seconds for p in curves.accuracy if p.value >= threshold), curves.seconds)


def _accuracy(run: Run, curves: Curves, threshold: float) -> float | None:
    return curves.accuracy[-1].value if curves.accuracy else None


def _test_loss(run: Run, curves: Curves, threshold: float) -> float | None:
    return curves.test_loss[-1].value if curves.test_loss else None


def _time_to(run: Run, curves: Curves, threshold: float) -> float | None:
    return time_to(curves, threshold) if threshold else None


def _seconds(run: Run, curves: Curves, threshold: float) -> float | None:
    return curves.seconds or None


def _bytes(run: Run, curves: Curves, threshold: float) -> float | None:
    return float(curves.bytes) if curves.seconds else None


def _idle(run: Run, curves: Curves, threshold: float) -> float | None:
    return fmean(curves.idle.values()) if curves.idle else None


def _staleness(run: Run, curves: Curves, threshold: float) -> float | None:
    counts = curves.staleness
    if not counts:
        return None
    return sum(value * count for value, count in counts.items()) / sum(counts.values())


def _in_summary(*names: str) -> Figure:
    """Return the function that finds a number in the summary, below each of the names in turn."""

    def found(run: Run, curves: Curves, threshold: float) -> float | None:
        value: object = run.summary
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return float(value) if isinstance(value, int | float) else None

    return found


def _moved(run: Run, curves: Curves, threshold: float) -> float | None:
    both = [_in_summary(name)(run, curves, threshold) for name in ("bytes_pushed", "bytes_pulled")]
    known = [each for each in both if each is not None]
    return sum(known) if len(known) == len(both) else None


LOG_LOSS = _in_summary("test", "log_loss")
PROGRESSIVE = _in_summary("progressive", "log_loss")
ANALOGIES = _in_summary("analogies", "accuracy")
SPEARMAN = _in_summary("similarities", "spearman")
MOVED = Column("bytes", "bytes pushed and pulled", "bytes", decimal_bytes, min, _moved)
TIME_TO = "time to accuracy {threshold:.1%}", "to {threshold:.1%}"
COLUMNS_OF = {  # by application
    "": (
        Column("accuracy", "test accuracy", "accuracy", percent, max, _accuracy),
        Column("loss", "test loss", "", significant, min, _test_loss),
        Column("time_to", *TIME_TO, seconds, min, _time_to),
        Column("seconds", "training time", "training", seconds, min, _seconds),
        Column("bytes", "bytes", "bytes", decimal_bytes, min, _bytes),
        Column("idle", "idle", "idle", percent, min, _idle),
        Column("staleness", "staleness", "stale", significant, None, _staleness),
    ),
    "ctr": (
        Column("auc", "test AUC", "AUC", significant, max, _in_summary("test", "auc")),
        Column("log_loss", "test log loss", "log loss", significant, min, LOG_LOSS),
        Column("progressive", "progressive log loss", "", significant, min, PROGRESSIVE),
        Column("rows_per_s", "rows/s", "rows/s", significant, max, _in_summary("rows_per_s")),
        Column("seconds", "training time", "training", seconds, min, _in_summary("train_s")),
        MOVED,
    ),
    "word2vec": (
        Column("analogies", "analogies", "analogies", percent, max, ANALOGIES),
        Column("similarities", "similarities", "Spearman", significant, max, SPEARMAN),
        Column("words_per_s", "words/s", "words/s", significant, max, _in_summary("words_per_s")),
        Column("seconds", "time with start-up", "time", seconds, min, _in_summary("wall_s")),
        MOVED,
    ),
}
TABLE_NOTES = {  # by application
    "": "Times are of training: evaluations are left out. Bytes are those that have gone through "
    "the workers' links.",
    "ctr": "Bytes are those of pushes and pulls; the time of training has the scores of --valid.",
    "word2vec": "Bytes are those of pushes and pulls; times are of the whole run.",
}
