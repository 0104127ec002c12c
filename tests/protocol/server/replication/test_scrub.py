"""Replicas that look whether they have the same rows."""

import pytest

from shoal.protocol.machine import Note
from shoal.protocol.messages.replication import Replicate


@pytest.fixture
def chain(rigs):
    return rigs.Chain()


EARLY, LATER = 5.5, 11.0  # a check is due


def compared(chain, now):
    """What a head's check finds on each server that is asked."""
    found = []
    keep = chain._keep

    def noted(at, effects):
        notes = [e for e in effects if isinstance(e, Note) and e.kind in ("compared", "differs")]
        found.extend((at, each.kind) for each in notes)
        keep(at, effects)

    chain._keep = noted
    chain.tick(0, now)
    chain.deliver()
    chain._keep = keep
    return found


@pytest.mark.parametrize("length", [2, 3])
def test_replicas_look_whether_they_have_what_the_head_has(rigs, length):
    chain = rigs.Chain(length=length)
    chain.ask(0, 0, 0, 1, 2, 3, 4)
    chain.deliver()
    assert compared(chain, EARLY) == [(rank, "compared") for rank in range(1, length)]
    assert all(server.chains.idle for server in chain.servers)  # or no rows could move
    chain.servers[length - 1].state.replicas[0].shard.rows[2] += 1
    expected = [(rank, "compared") for rank in range(1, length - 1)]
    assert compared(chain, LATER) == [*expected, (length - 1, "differs")]


def test_a_check_comes_between_the_changes(chain):
    """It is of the version that the head has, whatever has been done since."""
    chain.ask(0, 0, 0, 1, 2, 3, 4)
    chain.deliver()
    chain.tick(0, EARLY)
    chain.ask(0, 0, 1, 5, 6, 7, 8)
    kinds = [message.what for _, _, message, _ in chain.under_way if isinstance(message, Replicate)]
    assert kinds == ["check", "push"]
    found = []
    keep = chain._keep
    chain._keep = lambda at, effects: (
        found.extend(e.kind for e in effects if isinstance(e, Note)),
        keep(at, effects),
    )
    chain.under_way.reverse()
    chain.deliver()
    assert found.count("compared") == 1
    assert "differs" not in found
    assert chain.rows(1) == [6, 8, 10, 12]


def test_who_is_alone_compares_nothing(rigs):
    chain = rigs.Chain(length=1)
    chain.ask(0, 0, 0, 1, 2, 3, 4)
    chain.tick(0, 1e6)
    assert not chain.under_way


def test_a_check_that_was_not_answered_ends_with_its_view(chain):
    chain.ask(0, 0, 0, 1, 2, 3, 4)
    chain.deliver()
    chain.tick(0, EARLY)
    assert not chain.servers[0].chains.idle
    chain.without(1)
    assert chain.servers[0].chains.idle
