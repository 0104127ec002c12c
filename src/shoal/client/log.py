"""`shoal.log`: figures of a user's own training loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.client.context import current
from shoal.errors import InvalidValue


def log(
    figures: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any
) -> None:
    """Record figures of this worker, such as its loss, in the event log of its run.

    `shoal report RUN` draws a curve for each name, and `shoal.load_run(RUN).logged` has them as
    tables. A call takes some microseconds, and its line is written when it returns. Without
    `shoal run` the run's folder, `context.run_dir`, is made at the first call.

    Args:
        figures: the numbers by name, for names that are no keywords, such as "valid/loss".
        step: the step of the figures, on the x axis. If not given, one more than the step of the
            last call; in the first call `context.began_at`, where a resumed run goes on.
        named: the numbers by name. A tensor or an array with one element is a number. A number
            that is not finite is recorded, and left out of curves.

    Raises:
        UsageError: this process has not joined a run (`shoal.init`), has left it, or is a fork of
            one that has joined.
        InvalidValue: a value that is no number, a step that is no whole number from 0 on, no name
            or more than 1,000, or a name that is given twice, is not 1 to 200 printable characters
            without blanks around them, or is one of t, step, rank, node, kind and group, which
            every event has. Nothing of the call is recorded then.

    Example:
        >>> import shoal
        >>> context = shoal.init()
        >>> for step in range(3):  # doctest: +SKIP
        ...     shoal.log({"valid/loss": 1 / (step + 1)}, loss=2 / (step + 1), step=step)
    """
    if figures is not None and (twice := figures.keys() & named.keys()):
        raise InvalidValue(f"shoal.log: {sorted(twice)[0]} is given twice")
    current().figure_log.write(named if figures is None else {**figures, **named}, step)
