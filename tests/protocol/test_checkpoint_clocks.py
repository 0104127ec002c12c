"""Which clocks have a checkpoint: every so many, or those that views name."""

import pytest
from msgspec.structs import replace

from shoal.protocol.checkpoint_clocks import CheckpointClocks
from shoal.protocol.machine import Received, Send
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Freeze, NewView
from shoal.protocol.views import FOREVER, View
from shoal.tables.consistency import bsp, ssp
from shoal.tables.spec import TableSpec

VIEW = View(1, 1, (), (), (TableSpec("w", 8, consistency=bsp()),))


def test_checkpoint_clocks_are_named_by_views_or_every_n_clocks():
    checkpoint_clocks = CheckpointClocks()
    assert not checkpoint_clocks
    assert (checkpoint_clocks.latest(100), checkpoint_clocks.following(0)) == (0, FOREVER)
    checkpoint_clocks.adopt(replace(VIEW, checkpoint_clocks=(7, 30)))
    assert [checkpoint_clocks.latest(at) for at in (6, 7, 29, 30, FOREVER)] == [0, 7, 7, 30, 0]
    assert [checkpoint_clocks.following(at) for at in (0, 7, 30)] == [7, 30, FOREVER]
    assert [at for at in range(40) if checkpoint_clocks.at(at)] == [7, 30]
    both = CheckpointClocks(10)
    both.adopt(replace(VIEW, checkpoint_clocks=(7,)))
    assert [at for at in range(35) if both.at(at)] == [7, 10, 20, 30]
    assert [both.following(at) for at in (0, 7, 10)] == [7, 10, 20]


@pytest.mark.parametrize("length", [1, 2])
def test_a_push_ahead_of_a_named_clock_is_not_in_its_checkpoint(rigs, length):
    chain = rigs.Chain(ssp(2), length=length)
    chain.ask(0, 0, 0, 1, 1, 1, 1, clock=7)
    chain.deliver()
    for server in chain.servers:
        effects = server.handle(Received(SCHEDULER, Freeze((1, 9))), 0.0)
        [promise] = [each.message for each in effects if isinstance(each, Send)]
        assert promise.standing("").closed == 8
    chain.view = replace(chain.view, number=9, checkpoint_clocks=(6, 12))
    for rank in range(length):
        chain.receive(rank, SCHEDULER, NewView(chain.view))
    for worker in (0, 1):
        chain.ask(0, worker, 1, advance=12)
    chain.deliver()
    assert [(clock, rows) for _, _, clock, rows in chain.saved] == [(12, [1] * 4)]
