"""FigureLog: what a worker's code records with `shoal.log`, as events of its run.

Each call is one line in the event log, written before the call returns: a worker that fails, or is
killed, has lost none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import isfinite
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any

from shoal.errors import InvalidValue
from shoal.storage.event_log import EventLog
from shoal.storage.run_folder import RunFolder

RESERVED = ("t", "step", "rank", "node", "kind", "group")  # an event's own fields
NAME_CHARACTERS = 200
NAMES_MOST = 1000  # in a call
STEP_BOUND = 1 << 62
EXACT = 1 << 53  # below it every whole number is a float as well

log = logging.getLogger("shoal")


class FigureLog:
    """Records a worker's figures in the event log of its run, from the first call on.

    folder:  the folder of the run; made at the first call if the run has none yet
    node:    the name of the worker
    step:    the step of the first call that does not give one
    """

    def __init__(self, folder: Path, node: str, rank: int, step: int = 0) -> None:
        self._folder = folder
        self._node = node
        self._rank = rank
        self._next_step = step
        self._log: EventLog | None = None

    def write(self, figures: Mapping[str, Any], step: Any = None) -> None:
        """Record numbers by name, those that are not finite as None.

        step:  the step of the numbers; one more than that of the last call if not given

        Raises:
            InvalidValue: a name or a value cannot be recorded; then nothing is
        """
        number = self._next_step if step is None else _step(step)
        found = {_name(name): _number(name, value) for name, value in figures.items()}
        if not 0 < len(found) <= NAMES_MOST:
            raise InvalidValue(
                f"shoal.log takes 1 to {NAMES_MOST} names with a number each, such as loss=0.25, "
                f"not {len(found)}"
            )
        event_log = self._log or self._open()
        event_log.write("logged", rank=self._rank, step=number, figures=found)
        self._next_step = number + 1

    def close(self) -> None:
        """Close the file, which has all that was recorded."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _open(self) -> EventLog:
        try:
            folder, is_new = RunFolder.begun(self._folder)
            self._log = EventLog(folder.events, self._node, folder.started_at())
        except OSError as error:
            raise InvalidValue(
                f"shoal.log cannot write to {self._folder}: {error.strerror}; start the script "
                "where a folder can be made, or under `shoal run --out FOLDER`"
            ) from None
        if is_new:
            log.warning("shoal.log writes to %s: draw it with shoal report", self._folder)
        return self._log


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidValue(f"shoal.log: the name of a figure is a text, not {name!r}")
    if name in RESERVED:
        how = "give step=NUMBER beside the figures" if name == "step" else "use another name"
        raise InvalidValue(f"shoal.log: every event has {name!r}: {how}")
    if not 0 < len(name) <= NAME_CHARACTERS or not name.isprintable() or name != name.strip():
        raise InvalidValue(
            f"shoal.log: {name[:NAME_CHARACTERS]!r} is no name of a figure: it has 1 to "
            f"{NAME_CHARACTERS} printable characters, without blanks around them"
        )
    return name


def _number(name: str, value: Any) -> float | None:
    """Return a figure as the event log has it: a number, or None if it is not finite."""
    kind = type(value)
    if kind is not float and kind is not int:
        value = _plain(name, value)
    if isinstance(value, int) and -EXACT <= value <= EXACT:
        return value
    try:
        value = float(value)
    except OverflowError:
        raise InvalidValue(f"shoal.log: {name} is too large a number for a float") from None
    return value if isfinite(value) else None


def _plain(name: str, value: Any) -> Any:
    """Return a Python number for one of another library, such as a tensor with one element."""
    item = getattr(value, "item", None)
    if callable(item):
        try:
            value = item()
        except (TypeError, ValueError, RuntimeError):
            shape = tuple(getattr(value, "shape", ()))
            raise InvalidValue(
                f"shoal.log: {name} is no number, but a {type(value).__name__} of shape {shape}: "
                "record its mean, or its elements by names of their own"
            ) from None
    if not isinstance(value, int | Real):
        raise InvalidValue(f"shoal.log: {name} is no number, but {value!r:.100}")
    return int(value) if isinstance(value, int) else value


def _step(step: Any) -> int:
    try:
        number = index(step)
    except TypeError:
        number = -1
    if not 0 <= number < STEP_BOUND:
        raise InvalidValue(f"shoal.log: a step is a whole number from 0 on, not {step!r:.100}")
    return number
