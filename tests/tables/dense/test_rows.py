"""Whole states of rows: written and read with their slots and counts of updates."""

import pytest
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
    whole.counts.set(0, first.updates)
    assert same(whole, first)


def test_the_memory_of_states_is_not_taken_for_that_of_pushes():
    shard = trained(1)
    shard.write_state(staged_state(shard, shard, ALL), 1)
    before = shard.rows.clone()
    shard.write(stage(shard, one(ALL, 3.0)))
    assert (shard.rows == 3.0).all()
    assert not torch.equal(before, shard.rows)
    assert len(shard.stage(ALL, -1).values) == len(ALL)


# --- spans: parameters that are updated apart ------------------------------------------------

SPANS = (0, 3, 4, 9)  # of fragments [0:4), [4:8), [8:10)


def apart():
    """A shard whose spans have had 2, 1, 3 and 2 updates."""
    shard = DenseShard(table(access=ADAM, spans=SPANS), ALL)
    for parts in ([ALL], [KeyRange(0, 3), KeyRange(4, 10)], [KeyRange(4, 9)]):
        shard.merge([(1.0, None, stage(shard, one(rows, 2.0))) for rows in parts])
    assert shard.updates == [2, 1, 3, 3, 2]  # [0:3) [3:4) | [4:8) | [8:9) [9:10)
    return shard


def test_rows_of_a_span_that_is_left_out_stay_as_they_are():
    shard = apart()
    before = shard.state(copied=True)
    shard.apply(stage(shard, one(KeyRange(0, 3), 1.0)), None)
    after = shard.state()
    assert after["updates"].tolist() == [3, 1, 3, 3, 2]
    for name in ("rows", "slot.exp_avg", "slot.exp_avg_sq"):
        changed = (after[name] != before[name]).any(dim=1).nonzero().view(-1).tolist()
        assert changed == [0, 1, 2], name


def test_every_way_out_of_a_shard_takes_the_counts_of_its_spans_along():
    shard = apart()
    pieces = shard.split([KeyRange(0, 4), KeyRange(4, 10)])
    assert [piece.updates for piece in pieces] == [[2, 1], [3, 3, 2]]
    copy, at = DenseShard(shard.spec, ALL), 0
    while at < len(shard.fragments):
        snapshot = shard.snapshot(at, 1)
        staged = copy.stage_snapshot(snapshot.rows, -1)
        Sink(staged.views).fill(memoryview(b"".join(snapshot.views)))
        copy.install(staged)
        at = snapshot.after
    assert same(copy, shard)
    assert copy.digest(ALL, None) == shard.digest(ALL, None)
    restored = DenseShard(shard.spec, KeyRange(4, 10))
    restored.restore(ALL, shard.state(), same=True)
    assert restored.updates == [3, 3, 2]
    assert [shard.most_updates(rows) for rows in (KeyRange(3, 4), ALL)] == [1, 3]


def test_spans_with_other_counts_have_another_digest():
    shard, other = apart(), apart()
    other.counts.assign(0, KeyRange(3, 4), 2)
    assert shard.digest(ALL, None) != other.digest(ALL, None)


def test_a_state_of_other_spans_is_refused():
    shard = DenseShard(table(access=ADAM), ALL)
    with pytest.raises(ValueError, match="5 update counts, not one for each of 3 cells"):
        shard.restore(ALL, apart().state(), same=True)


def test_a_span_of_several_fragments_has_one_count_in_each():
    shard = DenseShard(table(access=ADAM, spans=(0, 2)), ALL)
    shard.apply(stage(shard, one(KeyRange(2, 10), 1.0)), None)
    assert shard.updates == [0, 1, 1, 1]
    shard.write_state(staged_state(shard, apart(), KeyRange(0, 2)), 1)
    assert shard.updates == [1, 1, 1, 1]
    assert not shard.counts.apart
