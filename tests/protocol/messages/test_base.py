"""Messages as a person reads them, and the roles that send them."""

import pytest

from shoal.protocol.messages import MESSAGES
from shoal.protocol.messages.admin import StatusRequest
from shoal.protocol.messages.base import SCHEDULER, Part, misplaced
from shoal.protocol.messages.membership import Drain, Frozen, Join, NewView, ViewRefused
from shoal.protocol.messages.requests import Computing, Nudge, Probe, Reply, Request
from shoal.protocol.views import FOREVER

REFUSED = ViewRefused((1, 2), (1, 1))


@pytest.mark.parametrize(
    ("message", "sender", "role", "of"),
    [
        (Drain((1, 2), 2.0), "w", "worker", "scheduler"),
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
        (Drain((1, 2), 2.0), SCHEDULER, None),
        (REFUSED, "s", "server"),
        (REFUSED, "new", None),  # perhaps of a view that is not here yet
        (Computing(1), "w", "worker"),
        (Computing(1), "s", "server"),
        (StatusRequest(), "tool", None),
    ],
)
def test_others_are_let_through(message, sender, role):
    assert misplaced(message, sender, role) == ""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            Request((1, 1), 11, 4, 0, 2, (Part(0, 0, 4, 2),), 3, (Part(1, 0, 9),)),
            "Request #4 push t0[0:4) 2 keys at clock 2 advance to 3 pull t1[0:9)",
        ),
        (Request((1, 1), 11, 5, 0, 3, advance=FOREVER), "Request #5 advance forever"),
        (
            Reply(11, 4, (1, 1), "waiting", "waits for clock 3 of worker-1 (at 2)"),
            "Reply #4 waiting (waits for clock 3 of worker-1 (at 2))",
        ),
        (Reply(11, 4, (1, 1), "applied", payload=32), "Reply #4 applied 32 bytes"),
        (Probe((1, 1), 11, 4, True), "Probe #4 urgent"),
        (Frozen((2, 7), ()), "Frozen for 2.7"),
    ],
)
def test_a_message_is_described_in_one_line(message, line):
    assert message.describe() == line


def test_a_view_is_described_by_members_and_reason(rigs):
    view = rigs.view_of(3, reason="worker-1 joined")
    assert NewView(view).describe() == "NewView 1.3: server-0 worker-0 worker-1 (worker-1 joined)"


def test_every_message_type_has_a_name_of_its_own():
    assert Join("worker-0", "worker", "tcp://x", "x").describe().startswith("Join worker")
    assert len({message.__name__ for message in MESSAGES}) == len(MESSAGES)
