"""Texts with reasons, and lists of waits: both bounded, so that every reader accepts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.protocol.limits import LONGEST_MAX, WAITS_MAX
from shoal.protocol.messages.admin import Waits

NAMED = 10  # members or rows that a text names; it gives the number of the others
TEXT_SENT = 4096  # characters of a text with parts from other nodes


class Waiting(msgspec.Struct, frozen=True):
    """A member that waits.

    who:      the name of the waiting member
    what:     the request that waits
    reason:   the reason for the wait
    seconds:  the seconds that it has waited
    kind:     the table and clock of the request, if others may wait for other rows of the table
    """

    who: str
    what: str
    reason: str
    seconds: float
    kind: str = ""


def some_of(names: Sequence[str], of: int = 0) -> str:
    """Return names as text: all of a few, or the first ones and the number of others.

    of: the number of all names, if `names` has only the first ones

    >>> some_of(["worker-0", "worker-1"]), some_of(["a", "b"], of=4)
    ('worker-0, worker-1', 'a, b and 2 others')
    """
    shown = names[:NAMED]
    more = max(of, len(names)) - len(shown)
    return ", ".join(shown) + (f" and {more} other{'s' * (more > 1)}" if more else "")


def bounded(text: str, most: int = TEXT_SENT) -> str:
    """Return a text; the first `most` characters and its length if it is longer.

    >>> bounded("a long reason", 6)
    'a long ... (13 characters)'
    """
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} characters)"


def grouped(waits: Iterable[Waiting]) -> tuple[Waits, ...]:
    """Return waits for a status reply: grouped by kind and reason, the longest first.

    A thousand workers may wait for a single one, each with its own request.
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
