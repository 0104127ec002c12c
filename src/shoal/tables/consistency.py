"""Consistency of a table: when a pull is answered, and when a push is applied.

It is plain data, like the specification that contains it: this module needs no torch.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.errors import InvalidValue
from shoal.tables.init import require_one_of

WORKERS_MOST = 1 << 16
GRACE_MOST_S = 86400.0


class Quorum(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The rule by which a round closes without its latest workers.

    Round c of k closes when k workers have finished clock c and `grace_s` seconds have passed since
    then, or when all have finished it. With fewer than k workers left, all of them have to.

    Each server decides this for the fragments that it heads, by its own clock. So a push may be in
    the round on some servers and come too late to others.

    Args:
        k: the number of workers, >= 1.
        grace_s: the seconds that later workers still have, >= 0.

    Raises:
        InvalidValue: a value out of its range.

    Example:
        >>> bsp(Quorum(3, grace_s=0.5)).closes.k
        3

    References:
        Chen et al. 2016, "Revisiting Distributed Synchronous SGD", section 3 (backup workers).
    """

    k: int
    grace_s: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or not 1 <= self.k <= WORKERS_MOST:
            raise InvalidValue(f"a quorum has 1 to {WORKERS_MOST} workers, not {self.k!r}")
        if not isinstance(self.grace_s, int | float) or not 0 <= self.grace_s <= GRACE_MOST_S:
            raise InvalidValue(
                f"the grace window of a quorum has 0 to {GRACE_MOST_S:g} s, not {self.grace_s!r}"
            )


class Cover(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The rule by which a round closes when one worker of each group has finished it.

    The workers of a group push the same values, so that one of them is enough: a round counts the
    push of the lowest rank that is there. A worker in no group is a group of its own; a group whose
    workers have all left is not waited for.

    Args:
        groups: the ranks of each group; no rank twice. Other sequences become tuples.

    Raises:
        InvalidValue: a rank that is negative or in two groups, or an empty group.

    Example:
        >>> bsp(Cover(((0, 1), (2, 3)))).closes.groups
        ((0, 1), (2, 3))

    References:
        Tandon et al. 2017, "Gradient Coding", section 4 (fractional repetition).
    """

    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        groups = tuple(tuple(group) for group in self.groups)  # lists, as people write them
        msgspec.structs.force_setattr(self, "groups", groups)
        ranks = [rank for group in self.groups for rank in group]
        if not self.groups or not all(self.groups):
            raise InvalidValue(f"a cover has groups of one worker or more, not {self.groups}")
        if len(set(ranks)) < len(ranks) or min(ranks) < 0 or len(ranks) > WORKERS_MOST:
            raise InvalidValue(
                f"a cover's groups have different ranks >= 0, at most {WORKERS_MOST}, "
                f"not {self.groups}"
            )


class Consistency(msgspec.Struct, frozen=True, array_like=True):
    """Consistency of a table: when a pull is answered and when a push is applied.

    At clock c, with m the clock of the slowest worker of the group, a pull is answered when::

        bsp     m >= c
        ssp(s)  m >= c - s
        asp     always

    Use `bsp`, `ssp` or `asp` to make one. Where `closes` lets rounds close without some workers, m
    is the number of closed rounds: pulls wait for these, and a push whose round has closed is
    refused (`RoundClosed`).

    Args:
        name: the rule: "bsp", "ssp" or "asp".
        staleness: the bound s in clocks, >= 0; 0 unless the name is "ssp".
        apply_at: the time at which pushes change the rows: on "arrival", or at "round_end", when
            every worker has finished the clock of the push.
        closes: the rule by which a round closes; None if it closes when all workers have finished
            it. All tables of a worker group that go by clocks have the same rule.

    Raises:
        UnknownName: no such name.
        InvalidValue: a staleness, `apply_at` or `closes` that the name does not allow.

    Example:
        >>> Consistency("ssp", 2) == ssp(2)
        True

    References:
        Valiant 1990 (BSP); Ho et al. 2013, section 2 (SSP); Dean et al. 2012, section 4.1 (ASP).
    """

    name: Literal["bsp", "ssp", "asp"] = "asp"
    staleness: int = 0
    apply_at: Literal["arrival", "round_end"] = "arrival"
    closes: Quorum | Cover | None = None

    def __post_init__(self) -> None:
        require_one_of("consistency", self.name, ("bsp", "ssp", "asp"))
        require_one_of("apply_at", self.apply_at, ("arrival", "round_end"))
        if self.staleness < 0:
            raise InvalidValue(f"staleness is a number of clocks >= 0, not {self.staleness}")
        if self.name != "ssp" and self.staleness:
            raise InvalidValue(f"{self.name} has no staleness; use ssp(staleness) for a bound > 0")
        if self.name == "bsp" and self.apply_at != "round_end":
            raise InvalidValue("bsp applies pushes at the end of their round: apply_at='round_end'")
        if self.name == "asp" and self.apply_at != "arrival":
            raise InvalidValue("asp has no rounds: it applies pushes on arrival")
        if self.closes is not None and self.apply_at != "round_end":
            raise InvalidValue("closes is a rule of rounds: it needs apply_at='round_end'")


def bsp(closes: Quorum | Cover | None = None) -> Consistency:
    """Return BSP (bulk synchronous parallel): all workers read the same rows at the same clock.

    A pull at clock c waits until every worker has finished clock c - 1; the pushes of a clock are
    merged and applied together.

    Args:
        closes: the rule by which a round closes, if not when all workers have finished it.

    Returns:
        The consistency.

    Example:
        >>> bsp().apply_at
        'round_end'

    References:
        Valiant 1990, "A bridging model for parallel computation".
    """
    return Consistency("bsp", 0, "round_end", closes)


def ssp(
    staleness: int,
    apply_at: Literal["arrival", "round_end"] = "arrival",
    closes: Quorum | Cover | None = None,
) -> Consistency:
    """Return SSP (stale synchronous parallel).

    A worker is at most `staleness` clocks ahead of the slowest: a pull at clock c sees every push
    of clocks below c - staleness.

    Args:
        staleness: the bound in clocks, >= 0.
        apply_at: the time: "arrival", or "round_end" to apply the pushes of a clock together.
        closes: the rule by which a round closes, if not when all workers have finished it.

    Returns:
        The consistency.

    Raises:
        InvalidValue: the staleness is negative, or `closes` is given and pushes have no rounds.

    Example:
        >>> ssp(2)
        Consistency(name='ssp', staleness=2, apply_at='arrival', closes=None)

    References:
        Ho et al. 2013, section 2 (stale synchronous parallel).
    """
    return Consistency("ssp", staleness, apply_at, closes)


def asp() -> Consistency:
    """Return ASP (asynchronous parallel, eventual consistency).

    Pulls never wait, and pushes are applied on arrival.

    Returns:
        The consistency.

    Example:
        >>> asp().staleness
        0

    References:
        Dean et al. 2012, section 4.1 (Downpour SGD).
    """
    return Consistency("asp", 0, "arrival")
