"""A tool asks for a checkpoint until the scheduler has answered."""

import pytest

from shoal.protocol.admin.checkpoint_query import AGAIN_S, CheckpointQuery
from shoal.protocol.machine import Discard, Received, Send, Stop, Ticked
from shoal.protocol.messages import (
    SCHEDULER,
    CheckpointPlanned,
    CheckpointRefused,
    CheckpointRequest,
    HeartbeatSeen,
)

ANSWERS = [CheckpointPlanned(1, 40, 40, (("here", "/saved"),)), CheckpointRefused(1, "no worker")]


@pytest.mark.parametrize("answer", ANSWERS)
def test_it_asks_again_until_it_is_answered(answer):
    query = CheckpointQuery(limit_s=3.0)
    asked = [Send(SCHEDULER, CheckpointRequest(1))]
    assert query.handle(Ticked(), 5.0) == asked
    assert query.handle(Received(SCHEDULER, HeartbeatSeen()), 5.0 + AGAIN_S / 2) == []
    assert query.handle(Ticked(), query.deadline()) == asked
    assert query.handle(Received(SCHEDULER, answer), 5.3) == [Stop(None)]
    assert query.answer == answer
    assert isinstance(query.arriving(SCHEDULER, answer, 8), Discard)


def test_it_stops_after_its_limit():
    query = CheckpointQuery(limit_s=3.0)
    query.handle(Ticked(), 5.0)
    assert query.handle(Ticked(), 8.0) == [Stop(None)]
    assert query.answer is None
