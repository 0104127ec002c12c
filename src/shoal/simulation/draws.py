"""The random draws of a seed, which do not shift each other."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random


class Draws(dict[Hashable, Random]):
    """The generators of a seed, one for each concern.

    What is drawn for one concern does not depend on what is drawn for another: a message that is
    new, or a fault that is, leaves the others as they were.

    >>> draws, others = Draws(7), Draws(7)
    >>> _ = others["a message that is new"].random()
    >>> draws["a message"].random() == others["a message"].random()
    True
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def __missing__(self, concern: Hashable) -> Random:
        self[concern] = made = Random(f"{self.seed} {concern}")
        return made

    def happens(self, concern: Hashable, share: float) -> bool:
        """Return whether something happens that does so in this share of the cases."""
        return self[concern].random() < share
