"""Frozen servers continue in their view when all of them have refused the promised one."""

import pytest
from msgspec.structs import replace

from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Freeze, NewView, RefuseView, ViewRefused
from shoal.protocol.session_options import SessionOptions

AWAY_S = SessionOptions().thaw_s
VIEW, PROMISED = (1, 1), (1, 2)


@pytest.fixture
def chain(rigs):
    """Three servers of one shard, frozen for a view."""
    chain = three(rigs)
    for rank in range(3):
        freeze(chain, rank)
    return chain


def three(rigs):
    chain = rigs.Chain(length=3)
    for rank in range(3):
        chain.tick(rank, 0.0)
    return chain


def freeze(chain, rank, view=PROMISED):
    chain.receive(rank, SCHEDULER, Freeze(view, VIEW))
    assert chain.servers[rank].requests.admission.promised == view


def frozen(chain):
    return [machine.frozen for machine in chain.servers]


def successor(chain, number=PROMISED, **changes):
    return replace(chain.view, term=number[0], number=number[1], **changes)


def views(chain):
    return [machine.session.view_id for machine in chain.servers]


def test_servers_that_have_all_refused_a_view_continue_in_theirs(chain):
    for rank in range(3):
        chain.tick(rank, AWAY_S)
    chain.deliver()
    assert frozen(chain) == [False, False, False]
    assert chain.ask(0, 0, 0, 1, 1, 1, 1) == []
    chain.deliver()
    assert chain.rows(2) == [1, 1, 1, 1]
    assert chain.told[-1][2] == "applied"


def test_nobody_asks_before_the_scheduler_was_silent_for_that_long(chain):
    chain.tick(0, AWAY_S - 0.1)
    assert not [each for each in chain.under_way if isinstance(each.message, RefuseView)]


def test_a_silent_server_keeps_all_frozen(chain):
    for now in (AWAY_S, 10 * AWAY_S, 100 * AWAY_S):
        for rank in (0, 1):
            chain.tick(rank, now)
        chain.under_way = [each for each in chain.under_way if each.to != "server-2"]
        chain.deliver()
    assert frozen(chain) == [True, True, True]


def test_a_server_that_was_not_frozen_refuses_too(rigs):
    chain = three(rigs)
    freeze(chain, 0)
    chain.tick(0, AWAY_S)
    chain.deliver()
    assert frozen(chain) == [False, False, False]
    chain.receive(2, SCHEDULER, Freeze(PROMISED, VIEW))
    assert not chain.servers[2].frozen


def test_a_server_that_has_adopted_the_view_hands_it_over(chain):
    chain.receive(1, SCHEDULER, NewView(successor(chain)))
    for rank in (0, 2):
        chain.tick(rank, AWAY_S)
    chain.deliver()
    assert views(chain) == [PROMISED] * 3
    assert frozen(chain) == [False, False, False]


def test_a_refused_view_is_not_adopted_from_the_scheduler_any_more(chain):
    chain.tick(0, AWAY_S)
    for rank in range(2):
        chain.under_way = [each for each in chain.under_way if each.to != "server-2"]
        chain.deliver()
        chain.receive(rank, SCHEDULER, NewView(successor(chain)))
    assert views(chain)[:2] == [VIEW] * 2
    assert frozen(chain) == [True, True, True]
    chain.receive(2, SCHEDULER, NewView(successor(chain)))  # it was not asked, and adopts it
    chain.tick(0, 2 * AWAY_S)
    chain.tick(1, 2 * AWAY_S)
    chain.deliver()
    assert views(chain) == [PROMISED] * 3


def test_servers_continue_in_the_newest_view_that_one_of_them_has_adopted(rigs):
    """One has adopted 1.2; all of them have promised 1.3."""
    chain = three(rigs)
    chain.receive(1, SCHEDULER, NewView(successor(chain)))
    for rank in range(3):
        freeze(chain, rank, (1, 3))
    for now in (AWAY_S, 2 * AWAY_S):
        for rank in range(3):
            chain.tick(rank, now)
        chain.deliver()
    assert views(chain) == [PROMISED] * 3
    assert frozen(chain) == [False, False, False]


def test_a_server_that_has_left_stays_frozen_until_the_scheduler_ends_it(chain):
    view = successor(chain, servers=chain.view.servers[1:])
    chain.receive(1, SCHEDULER, NewView(view))
    chain.tick(0, AWAY_S)
    chain.deliver()
    assert frozen(chain) == [True, False, True]
    assert not chain.servers[0].session.ended


def test_a_promise_of_a_later_view_is_not_taken_back_by_refusals_of_an_earlier_one(chain):
    chain.tick(0, AWAY_S)
    freeze(chain, 0, (2, 2))  # another scheduler is here
    chain.deliver()
    assert frozen(chain) == [True, True, True]


def test_for_a_server_of_no_view_none_is_refused(rigs):
    chain = three(rigs)
    chain.receive(0, "server-9", RefuseView((1 << 40, 1), VIEW))
    freeze(chain, 0)


def test_a_server_that_others_do_not_know_yet_hands_over_the_view_that_has_it(rigs):
    """The third server is in 1.3, which the others have not adopted; all have promised 1.4."""
    chain = three(rigs)
    [[shard]] = chain.view.placements
    placements = ((replace(shard, chain=shard.chain[:2]),),)
    first = successor(chain, (1, 2), servers=chain.view.servers[:2], placements=placements)
    for rank in (0, 1):
        chain.receive(rank, SCHEDULER, NewView(first))
    latest = successor(chain, (1, 3))
    chain.receive(2, SCHEDULER, NewView(latest))
    for rank in range(3):
        freeze(chain, rank, (1, 4))
    for now in (AWAY_S, 2 * AWAY_S, 3 * AWAY_S):
        chain.tick(2, now)
        chain.deliver()
        for rank in (0, 1):
            chain.tick(rank, now)
        chain.deliver()
    assert views(chain) == [latest.id] * 3
    assert frozen(chain) == [False, False, False]


def test_a_former_answer_does_not_count(chain):
    chain.tick(0, AWAY_S)
    for rank in (1, 2):
        chain.receive(0, f"server-{rank}", ViewRefused((1, 1), VIEW))
        chain.receive(0, f"server-{rank}", ViewRefused(PROMISED, (1, 2)))  # it has adopted more
    assert chain.servers[0].frozen
