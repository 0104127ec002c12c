"""Init: the initial values of a table's rows, as a specification has them (without torch).

`tables.initial` computes them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

from shoal.errors import InvalidValue
from shoal.registry import unknown


def require_one_of(kind: str, name: str, known: Collection[str]) -> None:
    """Check a Literal field: msgspec does so when it decodes, not when a caller constructs."""
    if name not in known:
        raise unknown(kind, name, known)


class Init(msgspec.Struct, frozen=True, array_like=True):
    """Initial values of a table's rows.

    Random values are counter-based: element j of row k is a pure function of (seed, k, j), so that
    replicas agree and an evicted row can be created again::

        zeros      theta = 0
        constant   theta = a
        uniform    theta ~ U(a, b)
        normal     theta ~ N(a, b^2)

    Args:
        kind: the kind of values: "zeros", "constant", "uniform" or "normal".
        a: the constant, the lower bound or the mean.
        b: the upper bound or the standard deviation.
        seed: a 64-bit integer.

    Raises:
        UnknownName: no such kind.
        InvalidValue: a or b is no number, or the seed is no 64-bit integer.

    Example:
        >>> Init.normal(std=0.01, seed=7)
        Init(kind='normal', a=0.0, b=0.01, seed=7)
        >>> Init.uniform(-0.5, 0.5) == Init("uniform", -0.5, 0.5)
        True

    References:
        Steele, Lea & Flood 2014, figure 16 (SplitMix64); Salmon et al. 2011 (counter-based
        generators).
    """

    kind: Literal["zeros", "constant", "uniform", "normal"] = "zeros"
    a: float = 0.0
    b: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_one_of("init", self.kind, ("zeros", "constant", "uniform", "normal"))
        for value in (self.a, self.b):
            if not isinstance(value, int | float):
                raise InvalidValue(f"init: a and b are numbers, not {value!r}")
        if not isinstance(self.seed, int) or not -(1 << 63) <= self.seed < 1 << 63:
            raise InvalidValue(f"init: the seed is a 64-bit integer, not {self.seed!r}")

    @classmethod
    def constant(cls, value: float) -> Init:
        """Return an Init whose elements all have this value."""
        return cls("constant", value)

    @classmethod
    def uniform(cls, low: float = 0.0, high: float = 1.0, *, seed: int = 0) -> Init:
        """Return an Init whose elements are drawn uniformly from [low, high)."""
        return cls("uniform", low, high, seed)

    @classmethod
    def normal(cls, mean: float = 0.0, std: float = 1.0, *, seed: int = 0) -> Init:
        """Return an Init whose elements are normal, with this mean and standard deviation."""
        return cls("normal", mean, std, seed)
