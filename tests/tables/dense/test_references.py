"""References: replicas, checkpoints and pieces of a shard have what workers have."""

import msgspec
import numpy as np
import pytest
import torch

from shoal.errors import AccessFailed
from shoal.keys import KeyRange
from shoal.tables.consistency import bsp
from shoal.tables.dense.shard import DenseShard
from shoal.tables.dense.user_shard import UserShard
from shoal.tables.differences import NO_NAME, Differences, Names
from shoal.tables.saved import problem_of
from shoal.tables.sizes import dense_bytes
from shoal.tables.spec import Access, Span, TableSpec

ROWS, FRAGMENT = 2000, 500
SPEC = TableSpec(
    "w",
    ROWS,
    fragment_rows=FRAGMENT,
    consistency=bsp(),
    access=Access("adam", {"lr": 0.1}),
    server_codec="delta:onebit",
)
WHOLE = 4 * FRAGMENT + 16


def shard_of(spec=SPEC, kind=DenseShard):
    return kind(spec, spec.keys)


def a_round(shard, rows=None, seed=0):
    """Merge a round of one push; return what other replicas get of it."""
    rows = rows or shard.held
    staged = shard.stage(rows, -1)
    values = np.random.default_rng(seed).standard_normal(len(rows)).astype(np.float32)
    staged.values.copy_(torch.from_numpy(values)[:, None])
    staged.retained = True
    return shard.merge([(1.0, None, staged)])


def told(shard, rows=None, size=None):
    size = size or Differences(shard.spec).cut(shard.held)[0].nbytes
    rows = rows or shard.held
    return [bytes(each) for each in shard.read_encoded(rows, (size,) * (len(rows) // FRAGMENT))]


def alike(one, other):
    pairs = zip(one.carried(one.held), other.carried(one.held), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def test_a_difference_leads_from_the_reference_before_to_the_next():
    shard, worker = shard_of(), torch.zeros(ROWS)
    a_round(shard)
    first = [Names.of(memoryview(each)) for each in told(shard)]
    for number, each in enumerate(told(shard, size=WHOLE)):
        assert Names.of(memoryview(each)) == (NO_NAME, first[number].after)
        part = slice(number * FRAGMENT, (number + 1) * FRAGMENT)
        worker[part] = torch.frombuffer(bytearray(each[16:]), dtype=torch.float32)
    assert torch.equal(worker, shard.references.values.view(-1))
    a_round(shard, seed=1)
    differences = Differences(SPEC)
    for number, each in enumerate(told(shard)):
        assert Names.of(memoryview(each)).before == first[number].after
        part = slice(number * FRAGMENT, (number + 1) * FRAGMENT)
        [fragment] = differences.cut(shard.fragments[number])
        differences.decode(fragment, memoryview(each), worker[part])
    assert torch.equal(worker, shard.references.values.view(-1))
    assert not torch.equal(worker, shard.rows.view(-1))


def test_only_fragments_that_change_have_a_difference():
    shard = shard_of()
    a_round(shard)
    before = told(shard)
    a_round(shard, KeyRange(FRAGMENT, 2 * FRAGMENT))
    same = [one == other for one, other in zip(before, told(shard), strict=True)]
    assert same == [True, False, True, True]


@pytest.mark.parametrize("rows", [KeyRange(0, ROWS), KeyRange(300, 1700)])
def test_a_replica_that_applies_merged_rounds_has_the_same_references(rows):
    head, other = shard_of(), shard_of()
    for seed in range(3):
        updates = a_round(head, rows, seed)
        loads = []
        for each in updates:
            load = other.stage(each.rows, -1)
            load.values.copy_(each.values)
            loads.append((each.lr, load))
        other.apply_round(loads)
        assert alike(head, other)
        assert told(head) == told(other)


def test_a_snapshot_takes_the_references_along():
    head, joiner = shard_of(), shard_of()
    for seed in range(2):
        a_round(head, seed=seed)
    at, last = 0, False
    while not last:
        piece = head.snapshot(at, 3000)
        staged = joiner.stage_snapshot(piece.rows, -1)
        for view, sent in zip(staged.views, piece.views, strict=True):
            view[:] = sent
        joiner.install(staged)
        at, last = piece.after, piece.last
    assert alike(head, joiner)
    assert head.digest(head.held, None) == joiner.digest(head.held, None)
    nothing = [Names.of(memoryview(each)) for each in told(joiner)]
    assert [each.before for each in nothing] == [NO_NAME] * 4  # so workers take references whole
    assert told(joiner, size=WHOLE) == told(head, size=WHOLE)
    for shard in (head, joiner):
        a_round(shard, seed=5)
    assert told(joiner) == told(head)


def test_other_references_have_another_digest():
    one, other = shard_of(), shard_of()
    for shard in (one, other):
        a_round(shard)
    other.references.values[7] += 1
    assert one.digest(one.fragments[0], None) != other.digest(one.fragments[0], None)
    assert one.digest(one.fragments[1], None) == other.digest(one.fragments[1], None)
    other.references.names[1] += 1
    assert one.digest(one.fragments[1], None) != other.digest(one.fragments[1], None)


def test_pieces_of_a_shard_go_on_with_its_references():
    shard, whole = shard_of(), shard_of()
    for each in (shard, whole):
        a_round(each)
    pieces = shard.split([KeyRange(0, 500), KeyRange(500, 2000)])
    assert [*told(pieces[0]), *told(pieces[1])] == told(whole)
    a_round(whole, KeyRange(500, 2000), seed=3)
    a_round(pieces[1], seed=3)
    assert told(pieces[1]) == told(whole)[1:]


@pytest.mark.parametrize("copied", [False, True])
def test_a_checkpoint_has_the_references(copied):
    shard, resumed = shard_of(), shard_of()
    for seed in range(2):
        a_round(shard, seed=seed)
    state = {name: each.clone() for name, each in shard.state(copied).items()}
    assert problem_of(SPEC, SPEC.keys, state) == ""
    resumed.restore(SPEC.keys, state, True)
    assert alike(shard, resumed)
    for each in (shard, resumed):
        a_round(each, seed=9)
    assert told(shard) == told(resumed)
    part = DenseShard(SPEC, KeyRange(500, 1500))
    part.restore(SPEC.keys, state, True)
    assert torch.equal(part.references.values, state["references"][500:1500])
    assert part.references.names == state["names"][1:3].tolist()


def test_a_checkpoint_without_references_begins_them_anew():
    plain, shard = (
        shard_of(TableSpec("w", ROWS, fragment_rows=FRAGMENT, access=SPEC.access)),
        shard_of(),
    )
    a_round(plain)
    shard.restore(SPEC.keys, plain.state(), True)
    assert torch.equal(shard.references.values, plain.rows)
    assert len({*shard.references.names}) == 4
    plain.restore(SPEC.keys, shard.state(), True)  # and the other way round


@pytest.mark.parametrize("saves", [True, False])
def test_a_checkpoint_of_other_fragments_begins_references_anew(saves):
    """With another access method the fragments may be others as well."""
    other = msgspec.structs.replace(SPEC, fragment_rows=400, access=Access("sum"))
    saved = shard_of(other if saves else msgspec.structs.replace(other, server_codec=""))
    a_round(saved)
    shard = shard_of()
    for rows in (KeyRange(0, 1200), KeyRange(1200, 2000)):
        part = {name: each[rows.start : rows.stop] for name, each in saved.state().items()}
        cells = slice(rows.start // 400, rows.stop // 400)
        part |= {name: saved.state()[name][cells] for name in ("updates", "names") if name in part}
        shard.restore(rows, part, False)
    assert torch.equal(shard.rows, saved.rows)
    assert torch.equal(shard.references.values, saved.rows)


@pytest.mark.parametrize("damage", ["names", "references"])
def test_a_checkpoint_whose_references_do_not_fit_is_refused(damage):
    state = shard_of().state(True)
    for other in (state[damage][:-1], state[damage].to(torch.int16)):
        assert damage in problem_of(SPEC, SPEC.keys, {**state, damage: other})
    del state["names"]
    assert problem_of(SPEC, SPEC.keys, state) == "it has no names"


def test_a_round_that_fails_leaves_the_references():
    def fails(rows, slots, update, step, lr):
        if step:
            raise ValueError("no")
        rows += update

    shard = shard_of(kind=UserShard)
    shard.access.apply = fails
    shard.access.prepared = lambda *given: None
    a_round(shard)
    before, names = told(shard), [*shard.references.names]
    with pytest.raises(AccessFailed, match="raised ValueError: no"):
        a_round(shard, seed=1)
    assert told(shard) == before
    assert shard.references.names == names


def test_layers_without_a_codec_are_exact():
    spans = Span(0, "a", "exact"), Span(300, "b"), Span(450, "c", "exact"), Span(600, "d")
    shard = shard_of(msgspec.structs.replace(SPEC, spans=spans))
    for seed in range(3):
        a_round(shard, seed=seed)
    values, rows = shard.references.values, shard.rows
    for exact in (slice(0, 300), slice(450, 600)):
        assert torch.equal(values[exact], rows[exact])
    for encoded in (slice(300, 450), slice(600, ROWS)):
        assert not torch.equal(values[encoded], rows[encoded])


def test_cut_fragments_have_no_difference():
    shard = shard_of()
    with pytest.raises(AccessFailed, match="of whole fragments"):
        shard.read_encoded(KeyRange(10, 500), (WHOLE,))


def test_small_fragments_travel_as_they_are():
    shard = shard_of(
        TableSpec("w", 20, fragment_rows=5, consistency=bsp(), server_codec="delta:int:8")
    )
    a_round(shard)
    assert shard.read_encoded(KeyRange(0, 5), (20,)) == [shard.rows[:5].numpy().tobytes()]


def test_references_count_as_memory():
    plain = TableSpec("w", ROWS, fragment_rows=FRAGMENT, consistency=bsp())
    assert dense_bytes(SPEC, SPEC.keys, 2) == dense_bytes(plain, SPEC.keys, 2) + 2 * 4 * ROWS
