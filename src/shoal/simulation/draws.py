"""The random draws of a seed, which do not shift each other."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random


class Draws(dict[Hashable, Random]):
    """The generators of a seed, one for each concern.

    What is drawn for one concern does not depend on what is drawn for another: a new message leaves
    the draws of the others unchanged.

    Attributes:
        seed: the seed.

    Args:
        seed: the seed.
        scope: what the seed is drawn for; two scopes of one seed have nothing in common.

    >>> draws, others = Draws(7), Draws(7)
    >>> _ = others["a new message"].random()
    >>> draws["a message"].random() == others["a message"].random()
    True
    """

    def __init__(self, seed: int, scope: str = "") -> None:
        super().__init__()
        self.seed = seed
        self._of = f"{seed} {scope}"

    def __missing__(self, concern: Hashable) -> Random:
        self[concern] = made = Random(f"{self._of} {concern}")
        return made

    def happens(self, concern: Hashable, share: float) -> bool:
        """Return True in this share of the cases."""
        return self[concern].random() < share
