"""Who sends which message."""

import pytest

from shoal.protocol.messages import SCHEDULER, Computing, Drain, Nudge, StatusRequest, ViewRefused
from shoal.protocol.messages.senders import misplaced

REFUSED = ViewRefused((1, 2), (1, 1))


@pytest.mark.parametrize(
    ("message", "sender", "role", "of"),
    [
        (Drain((1, 2)), "w", "worker", "scheduler"),
        (REFUSED, "w", "worker", "server"),
        (REFUSED, SCHEDULER, None, "server"),
        (Nudge("x"), "w", "worker", "server"),
    ],
)
def test_a_message_of_another_role_is_refused(message, sender, role, of):
    assert f"{of} nodes alone" in misplaced(message, sender, role)


@pytest.mark.parametrize(
    ("message", "sender", "role"),
    [
        (Drain((1, 2)), SCHEDULER, None),
        (REFUSED, "s", "server"),
        (REFUSED, "new", None),  # perhaps of a view that is not here yet
        (Computing(1), "w", "worker"),
        (Computing(1), "s", "server"),
        (StatusRequest(), "tool", None),
    ],
)
def test_others_are_let_through(message, sender, role):
    assert misplaced(message, sender, role) == ""
