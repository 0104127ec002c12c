"""The workers of a group, as its collectives see them."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.session import Session
from shoal.protocol.views import Member, View


def members_of(view: View, session: Session) -> tuple[Member, ...]:
    """Return the workers of a session's group, by rank."""
    return tuple(sorted(view.group(session.group), key=lambda member: member.rank))


def unreachable(members: Sequence[Member], what: str) -> str:
    """Return why workers cannot reach each other for `what`; "" if they can."""
    if not members:
        return "this worker is in no view yet"
    deaf = ", ".join(member.name for member in members if not member.address)
    if len(members) == 1 or not deaf:
        return ""
    return (
        f"{what} needs workers that reach each other, and {deaf} could not listen beside its "
        "scheduler's address; its log says why"
    )
