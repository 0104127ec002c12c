"""Texts that say why, and lists of waits: bounded, so that every reader takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.protocol.limits import LONGEST_MAX, WAITS_MAX
from shoal.protocol.messages.admin import Waits

NAMED = 10  # members or rows that a text names; of the others it gives the number
TEXT_SENT = 4096  # characters of a text that has parts from elsewhere


class Waiting(msgspec.Struct, frozen=True):
    """A member that waits.

    who:      the waiting member's name
    what:     what it has asked for
    reason:   what it waits for
    seconds:  how long it has waited
    kind:     the table and clock of what it has asked for, where others wait for other rows of it
    """

    who: str
    what: str
    reason: str
    seconds: float
    kind: str = ""


def some_of(names: Sequence[str], of: int = 0) -> str:
    """Return names as text: all of a few, or the first ones and the number of others.

    of: how many there are, if `names` has only the first of them

    >>> some_of(["worker-0", "worker-1"]), some_of(["a", "b"], of=4)
    ('worker-0, worker-1', 'a, b and 2 others')
    """
    shown = names[:NAMED]
    more = max(of, len(names)) - len(shown)
    return ", ".join(shown) + (f" and {more} other{'s' * (more > 1)}" if more else "")


def bounded(text: str, most: int = TEXT_SENT) -> str:
    """Return at most so many characters of a text, which may have any length.

    >>> bounded("a long reason", 6)
    'a long ... (13 characters)'
    """
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} characters)"


def grouped(waits: Iterable[Waiting]) -> tuple[Waits, ...]:
    """Return waits as a status tells them: those of one kind and reason together, longest first.

    A thousand workers may wait for one, each with its own request.
    """
    groups: dict[tuple[str, str], list[Waiting]] = {}
    for wait in waits:
        groups.setdefault((wait.kind or wait.what, wait.reason), []).append(wait)
    ordered = sorted(groups.values(), key=lambda members: -max(each.seconds for each in members))
    most = WAITS_MAX if len(ordered) <= WAITS_MAX else WAITS_MAX - 1
    told = [_told(members) for members in ordered[:most]]
    if rest := ordered[most:]:
        count = sum(map(len, rest))
        told.append(Waits("other requests", f"{len(rest)} more kinds of waits", count))
    return tuple(told)


def _told(members: list[Waiting]) -> Waits:
    first = members[0]
    alike = all(each.what == first.what for each in members)
    members.sort(key=lambda wait: -wait.seconds)
    longest = tuple((bounded(each.who), each.seconds) for each in members[:LONGEST_MAX])
    what = first.what if alike else first.kind
    return Waits(bounded(what), bounded(first.reason), len(members), longest)
