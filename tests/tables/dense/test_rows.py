"""Whole states of rows: written and read with their slots and counts of updates."""

import torch

from shoal.keys import KeyRange, split_evenly
from shoal.protocol.machine import Sink
from shoal.tables.dense.shard import DenseShard
from shoal.tables.spec import Access
from tests.tables.dense.pushes import one, stage, table

ALL = KeyRange(0, 10)
ADAM = Access("adam", {"lr": 0.5})


def trained(steps):
    shard = DenseShard(table(access=ADAM), ALL)
    for step in range(steps):
        shard.apply(stage(shard, one(ALL, 1.0 + step)), None)
    return shard


def staged_state(to, of, rows):
    """The state of some rows of a shard, as it comes from the wire."""
    staged = to.stage_state(rows)
    Sink(staged.views).fill(memoryview(b"".join(of.read_state(rows))))
    return staged


def same(one, other):
    return all(torch.equal(mine, other.state()[name]) for name, mine in one.state().items())


def test_a_state_that_is_written_continues_as_where_it_was_read():
    first, second = trained(3), trained(1)
    second.write_state(staged_state(second, first, ALL), first.most_updates(ALL))
    assert second.versions == [2, 2, 2]
    for _ in range(2):
        assert same(first, second)
        for shard in (first, second):
            shard.apply(stage(shard, one(ALL, 2.0)), None)


def test_the_state_of_some_rows_leaves_the_others():
    first, second = trained(3), trained(1)
    before = {name: each.clone() for name, each in second.state().items()}
    some = KeyRange(4, 8)
    second.write_state(staged_state(second, first, some), 3)
    after = second.state()
    for name in ("rows", "slot.exp_avg", "slot.exp_avg_sq"):
        changed = (after[name] != before[name]).any(dim=1).nonzero().view(-1).tolist()
        assert changed == [4, 5, 6, 7], name
    assert second.updates == [1, 3, 1]
    assert [second.most_updates(KeyRange(*rows)) for rows in ((0, 4), (0, 5), (3, 3))] == [1, 3, 0]


def test_the_parts_of_a_state_are_of_their_rows():
    """A server that has some of an assigned state already takes the rest of it."""
    whole, first = DenseShard(table(access=ADAM), ALL), trained(2)
    staged = staged_state(whole, first, ALL)
    for piece in whole.split(split_evenly(ALL.stop, 2)):
        assert len(piece.held) < len(ALL)
        part = piece.part_of(staged, piece.held)
        piece.write_state(part, 2)
        assert piece.updates == [2] * len(piece.fragments)
    whole.updates = first.updates
    assert same(whole, first)


def test_the_memory_of_states_is_not_taken_for_that_of_pushes():
    shard = trained(1)
    shard.write_state(staged_state(shard, shard, ALL), 1)
    before = shard.rows.clone()
    shard.write(stage(shard, one(ALL, 3.0)))
    assert (shard.rows == 3.0).all()
    assert not torch.equal(before, shard.rows)
    assert len(shard.stage(ALL, -1).values) == len(ALL)
