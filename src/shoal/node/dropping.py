"""Drops: messages that a node does not send, as if the network had lost them."""

from __future__ import annotations

import re
from random import Random

from shoal.errors import InvalidValue

_TEXT = re.compile(r"(?P<percent>[0-9]{1,2}(\.[0-9]{1,3})?)(:(?P<seed>[0-9]{1,18}))?")


class Drops:
    """Draws which of a node's messages are dropped: each with the same probability.

    The same seed and name draw the same: whether the first message of a node is dropped, the second
    one, and so on. Which messages these are depends on the run's timing. Greetings and the
    heartbeats of a process are never dropped. A member that asks for no rank has another name each
    time, and draws anew.

    Args:
        share: the probability, below 1.
        seed: the seed of the draws.
        name: the name of the node, so that nodes draw differently.
    """

    def __init__(self, share: float, seed: int = 0, name: str = "") -> None:
        self._share = share
        self._draw = Random(f"{seed} {name}").random

    def next(self) -> bool:
        """Return whether the next message is dropped."""
        return self._draw() < self._share


def drops_of(text: str, name: str = "") -> Drops | None:
    """Return the drops that an option describes: PERCENT or PERCENT:SEED; None if it is empty.

    Raises:
        InvalidValue: the text has another form, or 100 percent and more

    Example:
        >>> drops = drops_of("10:7", "worker-0")
        >>> sum(drops.next() for _ in range(1000))
        110
        >>> drops_of("all")
        Traceback (most recent call last):
            ...
        shoal.errors.InvalidValue: --drop-messages is a percentage below 100, such as 10, not 'all'
    """
    if not text:
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InvalidValue(f"--drop-messages is a percentage below 100, such as 10, not {text!r}")
    share = float(match["percent"]) / 100
    return Drops(share, int(match["seed"] or 0), name) if share else None
