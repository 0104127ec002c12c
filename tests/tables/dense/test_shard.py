"""DenseShard against the plain table, and by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.tables.dense.rows import DTYPES
from shoal.tables.dense.shard import DenseShard
from shoal.tables.spec import Access, TableSpec
from tests.tables.dense.plain_table import PlainTable, programs
from tests.tables.dense.pushes import (
    WIDTH,
    Push,
    column,
    decoded,
    one,
    send,
    send_round,
    some,
    stage,
    staged_keys,
    table,
)

# --- any program, against the oracle ---------------------------------------------------------

INTEGERS = ("int32", "int64", "uint8")
EPS = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
METHODS = [
    *((Access(name), dtype, "sum") for name in ("sum", "assign") for dtype in DTYPES),
    *(
        (Access("sgd", {"lr": 0.5}), dtype, merge)
        for dtype in ("float16", "bfloat16", "float32", "float64")
        for merge in ("sum", "mean")
    ),
    (Access("sum"), "float64", "mean"),
    (Access("sgd", {"lr": 0.5}), "float64", "median"),
    (Access("sgd", {"lr": 0.5}), "float32", "trimmed_mean"),
    (Access("adam", {"lr": 0.5}), "float64", "mean"),
    (Access("adam", {"lr": 0.5}), "float32", "sum"),
]


@pytest.mark.parametrize(
    ("access", "dtype", "merge"),
    METHODS,
    ids=[f"{access.name}-{dtype}-{merge}" for access, dtype, merge in METHODS],
)
@settings(max_examples=40, deadline=None)
@given(programs())
def test_equals_the_plain_table(access, dtype, merge, program):
    """Every operation in any order: rows, versions, and both ways to read. Exact for integers."""
    rows, fragment_rows, spans, held, operations = program
    spec = table(rows, fragment_rows, access, dtype, merge, spans=spans)
    shard, plain = DenseShard(spec, held), PlainTable(spec, held)
    for name, what in operations:
        if name == "merge":
            send_round(shard, what)
            plain.merge(what)
        else:
            send(shard, name, what)
            getattr(plain, name)(what)
        expected = np.stack([plain.rows[key] for key in range(held.start, held.stop)])
        whole = decoded(shard, shard.read(held))
        if dtype in INTEGERS:
            assert whole == expected.tolist()
        else:
            scale = max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(whole, expected, rtol=0, atol=EPS[dtype] * scale)
        assert shard.versions == list(plain.versions.values())
        assert shard.updates == list(plain.updates.values())
        chosen = list(range(held.start, held.stop, 2))
        data = shard.read_keys(staged_keys(shard, held, chosen))
        assert decoded(shard, data) == [whole[key - held.start] for key in chosen]


# --- by hand ---------------------------------------------------------------------------------


def test_a_whole_push_reaches_every_fragment():
    shard = DenseShard(table(), KeyRange(0, 10))
    assert shard.fragments == [KeyRange(0, 4), KeyRange(4, 8), KeyRange(8, 10)]
    shard.apply(stage(shard, one(KeyRange(0, 10), 2.0)), None)
    assert column(shard) == [3.0] * 10
    assert shard.versions == [1, 1, 1]


def test_a_push_may_begin_and_end_inside_fragments():
    shard = DenseShard(table(), KeyRange(4, 10))
    values = [[k, -k] for k in range(5, 9)]
    shard.apply(stage(shard, Push(KeyRange(5, 9), None, values)), None)
    assert shard.rows.tolist() == [[1, 1], *([1 + k, 1 - k] for k in range(5, 9)), [1, 1]]
    shard.apply(stage(shard, one(KeyRange(8, 9), 0.0)), None)
    assert shard.versions == [1, 2]


@pytest.mark.parametrize("how", ["apply", "write", "merge"])
def test_a_push_counts_in_every_fragment_of_its_range(how):
    """Row 5 alone is carried, fragments 0 to 2 are named; a reader of any must see the clock."""
    shard = DenseShard(table(14), KeyRange(0, 14))
    send(shard, how, some(KeyRange(0, 10), [5], 7.0))
    assert shard.versions == [1, 1, 1, 0]
    carried = 7.0 if how == "write" else 8.0
    assert column(shard) == [*[1.0] * 5, carried, *[1.0] * 8]


@pytest.mark.parametrize("how", ["apply", "write", "merge"])
@pytest.mark.parametrize("at", [0, 3, 4, 10])
def test_a_push_of_an_empty_range_counts_nowhere(how, at):
    shard = DenseShard(table(), KeyRange(0, 10))
    send(shard, how, Push(KeyRange(at, at), None, []))
    assert shard.versions == [0, 0, 0]
    assert column(shard) == [1.0] * 10


def test_a_push_of_no_keys_counts_and_changes_no_row():
    shard = DenseShard(table(), KeyRange(0, 10))
    shard.apply(stage(shard, some(KeyRange(0, 10), [], 7.0)), None)
    shard.merge([(1.0, None, stage(shard, some(KeyRange(0, 4), [], 7.0)))])
    assert shard.versions == [2, 1, 1]
    assert column(shard) == [1.0] * 10


@pytest.mark.parametrize("keys", [None, list(range(10))])
def test_a_pushs_rate_overrides_the_tables(keys):
    shard = DenseShard(table(access=Access("sgd", {"lr": 99.0})), KeyRange(0, 10))
    push = Push(KeyRange(0, 10), keys, [[2.0] * WIDTH] * 10)
    shard.apply(stage(shard, push), 0.5)
    shard.merge([(1.0, 0.25, stage(shard, push)), (1.0, 99.0, stage(shard, push))])
    assert column(shard) == [1.0 - 0.5 * 2.0 - 0.25 * 4.0] * 10


@pytest.mark.parametrize("how", ["apply", "merge"])
def test_a_keyed_adam_push_moves_only_its_rows(how):
    """A row with a moment keeps moving under dense Adam; a sparse push leaves it where it is."""
    shard = DenseShard(table(access=Access("adam", {"lr": 0.5})), KeyRange(0, 10))
    shard.apply(stage(shard, one(KeyRange(0, 10), 1.0)), None)
    before = {name: slot.clone() for name, slot in (("rows", shard.rows), *shard.slots.items())}
    send(shard, how, some(KeyRange(0, 10), [2, 9], 1.0))
    after = {"rows": shard.rows, **shard.slots}
    for name, old in before.items():
        changed = (after[name] != old).any(dim=1).nonzero().view(-1).tolist()
        assert changed == [2, 9], name
    # a constant gradient: Adam's step is the rate, at step 0 and at step 1 (Kingma & Ba, section 3)
    assert shard.rows[2].tolist() == pytest.approx([0.0, 0.0], abs=1e-5)


def test_a_write_keeps_the_optimizers_state():
    shard = DenseShard(table(access=Access("adam", {"lr": 0.5})), KeyRange(0, 10))
    shard.apply(stage(shard, one(KeyRange(0, 10), 1.0)), None)
    moments = {name: slot.clone() for name, slot in shard.slots.items()}
    shard.write(stage(shard, one(KeyRange(0, 10), 3.0)))
    shard.write(stage(shard, some(KeyRange(0, 10), [0, 4], 5.0)))
    assert column(shard) == [5.0, 3.0, 3.0, 3.0, 5.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    assert all(torch.equal(moments[name], slot) for name, slot in shard.slots.items())
    assert shard.versions == [3, 3, 3]


def test_a_write_does_not_count_as_an_update():
    """Initial values are written before the first update; Adam's bias correction starts at 1."""
    spec = TableSpec("w", 4, access=Access("adam", {"lr": 0.1}), fragment_rows=4)
    written, fresh = DenseShard(spec, KeyRange(0, 4)), DenseShard(spec, KeyRange(0, 4))
    zeros = written.stage(KeyRange(0, 4), -1)
    zeros.values.zero_()
    written.write(zeros)
    for shard in (written, fresh):
        staged = shard.stage(KeyRange(0, 4), -1)
        staged.values.fill_(2.0)
        shard.apply(staged, None)
    assert torch.equal(written.rows, fresh.rows)
    assert (written.versions, written.updates) == ([2], [1])


def test_slots_begin_at_the_methods_initial_value():
    access = Access("adagrad", {"initial_accumulator_value": 0.5})
    shard = DenseShard(table(access=access, dtype="bfloat16"), KeyRange(0, 10))
    assert (shard.slots["sum"].dtype, shard.slots["sum"].shape) == (torch.bfloat16, (10, WIDTH))
    assert (shard.slots["sum"] == 0.5).all()


def test_a_shard_without_rows_takes_empty_requests():
    """More servers than fragments: it holds [0:0), and every operation on that is nothing."""
    shard = DenseShard(table(), KeyRange(0, 0))
    shard.apply(stage(shard, Push(KeyRange(0, 0), None, [])), None)
    shard.merge([])
    assert (shard.fragments, shard.versions, shard.read(KeyRange(0, 0)).nbytes) == ([], [], 0)


@pytest.mark.parametrize("row_shape", [(), (1,), (2, 3)])
def test_rows_of_any_shape_are_stored_flat(row_shape):
    shard = DenseShard(table(row_shape=row_shape, dtype="int32"), KeyRange(4, 10))
    width = shard.spec.width
    values = [[10 * k + c for c in range(width)] for k in range(5, 7)]
    shard.write(stage(shard, Push(KeyRange(5, 7), None, values)))
    assert shard.rows.shape == (6, width)
    assert decoded(shard, shard.read(KeyRange(5, 7))) == values


# --- reads -----------------------------------------------------------------------------------


def test_read_returns_live_rows_and_read_keys_a_copy():
    shard = DenseShard(table(), KeyRange(4, 10))
    live = shard.read(KeyRange(5, 7))
    copied = shard.read_keys(staged_keys(shard, KeyRange(4, 10), [5, 6]))
    assert decoded(shard, live) == decoded(shard, copied) == [[1.0, 1.0]] * 2
    shard.write(stage(shard, one(KeyRange(5, 6), 9.0)))
    assert decoded(shard, live) == [[9.0, 9.0], [1.0, 1.0]]
    assert decoded(shard, copied) == [[1.0, 1.0]] * 2


def test_a_read_of_no_rows_is_empty():
    shard = DenseShard(table(), KeyRange(4, 10))
    assert shard.read(KeyRange(7, 7)).nbytes == 0
    assert shard.read_keys(staged_keys(shard, KeyRange(4, 10), [])).nbytes == 0


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "dtype"), [("adam", "float16"), ("sgd", "int32"), ("adagrad", "uint8")]
)
def test_a_method_that_cannot_work_on_the_dtype(access, dtype):
    expected = f"'t': access method '{access}' does not support {dtype} rows"
    with pytest.raises(InvalidValue, match=expected):
        DenseShard(table(access=access, dtype=dtype), KeyRange(0, 10))


# --- streamed pushes ---------------------------------------------------------------------------


@pytest.mark.parametrize("spans", [(), (0, 3)], ids=["together", "apart"])
@pytest.mark.parametrize("lr", [None, 0.25])
@pytest.mark.parametrize(("access", "dtype", "merge"), METHODS[::3], ids=str)
def test_a_fragment_in_lent_memory_changes_what_one_in_its_own_does(
    access, dtype, merge, lr, spans
):
    """Read-only memory, as of a peer's ring; the last fragment is never lent."""
    spec = table(10, 4, access, dtype, merge, spans=spans)
    lent, own = (DenseShard(spec, KeyRange(0, 10)) for _ in range(2))
    for shard in (lent, own):
        send(shard, "apply", one(KeyRange(0, 3), 1.0))
    for update in (2, 3):
        for shard in (lent, own):
            streamed = shard.stream(KeyRange(0, 10))
            for number, view in enumerate(streamed.views):
                values = torch.full((WIDTH * 4,), update).to(shard.dtype).view(torch.uint8)
                data = values[: len(view)].numpy().tobytes()
                view[:] = data if shard is own or number == 2 else bytes(len(view))
                landed = view if shard is own or number == 2 else memoryview(data)
                shard.apply_piece(streamed, number, landed, lr)
            shard.end_stream(streamed)
    assert torch.equal(lent.rows, own.rows)
    assert all(torch.equal(lent.slots[name], own.slots[name]) for name in own.slots)
    assert (lent.updates, lent.versions) == (own.updates, own.versions)


GRADIENTS = ("sgd", "adagrad", "rmsprop", "adadelta", "adam")
READING = [Access(name) for name in ("sum", "assign", *GRADIENTS)]
READING += [Access(name, {"maximize": True, "weight_decay": 0.1}) for name in GRADIENTS]


@pytest.mark.parametrize("access", READING, ids=str)
def test_methods_that_read_lent_memory_do_not_write_to_it(access):
    shard = DenseShard(table(10, 4, access), KeyRange(0, 10))
    assert shard.reads_lent
    data = torch.full((WIDTH * 4,), 0.5).numpy().tobytes()
    before = bytearray(data)
    for _ in range(3):
        shard.apply_piece(shard.stream(KeyRange(0, 10)), 0, memoryview(data), None)
    assert data == before


def test_methods_of_torch_get_memory_of_their_own():
    """torch may write to a gradient: in a peer's ring that would end the server."""
    assert not DenseShard(table(10, 4, Access("nadam")), KeyRange(0, 10)).reads_lent
