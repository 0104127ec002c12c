"""Messages as a person reads them."""

import pytest

from shoal.protocol.messages import (
    MESSAGES,
    Frozen,
    Join,
    NewView,
    Part,
    Probe,
    Reply,
    Request,
)
from shoal.protocol.messages.describing import describe
from shoal.protocol.views import FOREVER


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
    assert describe(message) == line


def test_a_view_is_described_by_members_and_reason(rigs):
    view = rigs.view_of(3, reason="worker-1 joined")
    assert describe(NewView(view)) == "NewView 1.3: server-0 worker-0 worker-1 (worker-1 joined)"


def test_every_message_type_has_a_name_of_its_own():
    assert describe(Join("worker-0", "worker", "tcp://x", "x")).startswith("Join worker")
    assert len({message.__name__ for message in MESSAGES}) == len(MESSAGES)
