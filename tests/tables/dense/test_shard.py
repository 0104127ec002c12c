"""DenseShard against `Plain`: the same table as numpy float64, row by row."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InvalidValue
from shoal.keys import KeyRange, split_evenly
from shoal.tables.dense.shard import DTYPES, DenseShard, StagedRows
from shoal.tables.spec import Access, Init, TableSpec

WIDTH = 2
INTEGERS = ("int32", "int64", "uint8")
EPS = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


class Push(NamedTuple):
    """What one worker pushes: the named rows, the carried keys (None: all), their values."""

    rows: KeyRange
    keys: list[int] | None
    values: list[list[float]]
    weight: float = 1.0
    lr: float | None = None

    @property
    def carried(self) -> dict[int, np.ndarray]:
        keys = range(self.rows.start, self.rows.stop) if self.keys is None else self.keys
        return {key: np.array(row, float) for key, row in zip(keys, self.values, strict=True)}


class Plain:
    """The dumb shard: a dictionary of rows, a loop over keys, steps by fragment."""

    def __init__(self, spec: TableSpec, held: KeyRange) -> None:
        self.spec = spec
        self.rows = {key: np.full(WIDTH, spec.init.a) for key in range(held.start, held.stop)}
        self.moments = {key: (np.zeros(WIDTH), np.zeros(WIDTH)) for key in self.rows}
        self.fragment_of = {key: key // spec.fragment_rows for key in self.rows}
        self.versions = dict.fromkeys(sorted(set(self.fragment_of.values())), 0)
        self.updates = dict(self.versions)

    def write(self, push: Push) -> None:
        self.rows.update(push.carried)
        self._count([push], self.versions)

    def apply(self, push: Push) -> None:
        for key, row in push.carried.items():
            self._update(key, row, push.lr)
        self._count([push], self.versions, self.updates)

    def merge(self, pushes: Sequence[Push]) -> None:
        for key in self.rows:
            named = [push for push in pushes if key in push.rows]
            carriers = [push for push in named if key in push.carried]
            if not carriers:
                continue
            if self.spec.merge == "sum":
                update = sum(push.carried[key] for push in carriers)
            else:
                update = sum(push.weight * push.carried[key] for push in carriers)
                update = update / sum(push.weight for push in named)
            self._update(key, update, named[0].lr)
        self._count(pushes, self.versions, self.updates)

    def _update(self, key: int, update: np.ndarray, lr: float | None) -> None:
        name, options = self.spec.access.name, self.spec.access.options
        rate = options.get("lr", 0.0) if lr is None else lr
        if name == "sum":
            self.rows[key] = self.rows[key] + update
        elif name == "assign":
            self.rows[key] = update
        elif name == "sgd":
            self.rows[key] = self.rows[key] - rate * update
        elif name == "adam":  # Kingma & Ba 2015, algorithm 1
            t = self.updates[self.fragment_of[key]] + 1
            m, v = self.moments[key]
            m, v = 0.9 * m + 0.1 * update, 0.999 * v + 0.001 * update**2
            self.moments[key] = m, v
            mean, square = m / (1 - 0.9**t), v / (1 - 0.999**t)
            self.rows[key] = self.rows[key] - rate * mean / (np.sqrt(square) + 1e-8)
        else:
            raise NotImplementedError(name)

    def _count(self, pushes: Sequence[Push], *counters: dict[int, int]) -> None:
        for index in self.versions:
            if any(self.fragment_of[k] == index and k in p.rows for p in pushes for k in self.rows):
                for counter in counters:
                    counter[index] += 1


def encoded(shard: DenseShard, values: Sequence) -> bytes:
    tensor = torch.tensor(values, dtype=torch.float64).to(shard.dtype).reshape(-1)
    return tensor.view(torch.uint8).numpy().tobytes()


def stage(shard: DenseShard, push: Push) -> StagedRows:
    """A push as it comes in: into the views that the shard offers, byte by byte."""
    staged = shard.stage(push.rows, -1 if push.keys is None else len(push.keys))
    payload = [] if push.keys is None else [np.array(push.keys, np.int64).tobytes()]
    if push.values:
        payload.append(encoded(shard, push.values))
    for view, data in zip(staged.views, payload, strict=True):
        assert view.nbytes == len(data)
        view[:] = data
    assert staged.problem() == ""
    return staged


def send(shard: DenseShard, how: str, push: Push) -> StagedRows:
    """Stage a push and hand it on as `how` says; what it was staged in."""
    staged = stage(shard, push)
    if how == "merge":
        shard.merge([(push.weight, push.lr, staged)])
    elif how == "apply":
        shard.apply(staged, push.lr)
    elif how == "write":
        shard.write(staged)
    else:
        shard.release(staged)
    return staged


def staged_keys(shard: DenseShard, rows: KeyRange, keys: list[int]) -> StagedRows:
    staged = shard.stage_keys(rows, len(keys))
    (view,) = staged.views
    view[:] = np.array(keys, np.int64).tobytes()
    return staged


def decoded(shard: DenseShard, data: memoryview) -> list[list[float]]:
    rows = torch.frombuffer(bytearray(data), dtype=shard.dtype) if len(data) else torch.empty(0)
    return rows.double().view(-1, shard.spec.width).tolist()


def table(
    rows: int = 10,
    fragment_rows: int = 4,
    access: Access | str = "sum",
    dtype: str = "float32",
    merge: str = "sum",
    init: Init | None = None,
    row_shape: tuple[int, ...] = (WIDTH,),
) -> TableSpec:
    return TableSpec(
        "t",
        rows,
        row_shape,
        dtype,
        init or Init("constant", 1.0),
        Access(access) if isinstance(access, str) else access,
        merge=merge,
        fragment_rows=fragment_rows,
    )


def one(rows: KeyRange, value: float, **more) -> Push:
    return Push(rows, None, [[value] * WIDTH] * len(rows), **more)


def some(rows: KeyRange, keys: list[int], value: float, **more) -> Push:
    return Push(rows, keys, [[value] * WIDTH] * len(keys), **more)


def column(shard: DenseShard) -> list[float]:
    return shard.rows[:, 0].tolist()


# --- any program, against the oracle ---------------------------------------------------------


@st.composite
def pushes(draw, held: KeyRange) -> Push:
    start = draw(st.integers(held.start, held.stop - 1))
    rows = KeyRange(start, draw(st.integers(start + 1, held.stop)))
    keys = draw(st.none() | st.sets(st.integers(rows.start, rows.stop - 1)).map(sorted))
    count = len(rows) if keys is None else len(keys)
    row = st.lists(st.integers(0, 5), min_size=WIDTH, max_size=WIDTH)
    values = draw(st.lists(row, min_size=count, max_size=count))
    return Push(rows, keys, values, draw(st.sampled_from([1.0, 2.0, 0.5, 3.0])))


@st.composite
def programs(draw):
    """A cut table, one server's part of it, and a few operations on that part."""
    rows, fragment_rows = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    servers = draw(st.integers(1, 3))
    spec = table(rows, fragment_rows)
    fragments = spec.fragments()
    part = draw(st.sampled_from([p for p in split_evenly(len(fragments), servers) if len(p)]))
    held = KeyRange(fragments[part.start].start, fragments[part.stop - 1].stop)
    push = pushes(held)
    operation = st.one_of(
        st.tuples(st.sampled_from(["apply", "write"]), push),
        st.tuples(st.just("merge"), st.lists(push, min_size=1, max_size=4)),
    )
    return rows, fragment_rows, held, draw(st.lists(operation, min_size=1, max_size=4))


METHODS = [
    *((Access(name), dtype, "sum") for name in ("sum", "assign") for dtype in DTYPES),
    *(
        (Access("sgd", {"lr": 0.5}), dtype, merge)
        for dtype in ("float16", "bfloat16", "float32", "float64")
        for merge in ("sum", "mean")
    ),
    (Access("sum"), "float64", "mean"),
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
    rows, fragment_rows, held, operations = program
    spec = table(rows, fragment_rows, access, dtype, merge)
    shard, plain = DenseShard(spec, held), Plain(spec, held)
    for name, what in operations:
        if name == "merge":
            shard.merge([(push.weight, push.lr, stage(shard, push)) for push in what])
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


def test_a_merged_round_is_one_update():
    shard = DenseShard(table(), KeyRange(0, 10))
    pushed = [one(KeyRange(0, 10), value) for value in (1.0, 2.0, 4.0)]
    shard.merge([(1.0, None, stage(shard, push)) for push in pushed])
    assert column(shard) == [8.0] * 10
    assert shard.versions == [1, 1, 1]


def test_a_mean_is_weighted_by_the_pushes_weights():
    """(1 x 8 + 3 x 4) / (1 + 3) = 5."""
    shard = DenseShard(table(merge="mean"), KeyRange(0, 10))
    pushed = [one(KeyRange(0, 10), 8.0, weight=1.0), one(KeyRange(0, 10), 4.0, weight=3.0)]
    shard.merge([(push.weight, push.lr, stage(shard, push)) for push in pushed])
    assert column(shard) == [6.0] * 10


def test_a_row_in_the_range_without_a_value_counts_as_zero():
    shard = DenseShard(table(4, merge="mean"), KeyRange(0, 4))
    pushed = [some(KeyRange(0, 4), [1, 2], 8.0), some(KeyRange(0, 4), [2, 3], 4.0)]
    shard.merge([(1.0, None, stage(shard, push)) for push in pushed])
    assert column(shard) == [1.0, 5.0, 7.0, 3.0]


@pytest.mark.parametrize("fragment_rows", [1, 2, 4, 8])
def test_the_divisor_of_a_row_does_not_depend_on_its_fragment(fragment_rows):
    """Rows 0 to 2 are named by one push, 2 to 4 by two, 4 to 8 by the other."""
    shard = DenseShard(table(8, fragment_rows, merge="mean"), KeyRange(0, 8))
    pushed = [one(KeyRange(0, 4), 8.0), some(KeyRange(2, 8), [2, 4, 5], 4.0)]
    shard.merge([(1.0, None, stage(shard, push)) for push in pushed])
    assert column(shard) == [9.0, 9.0, 7.0, 5.0, 5.0, 5.0, 1.0, 1.0]


def test_a_fragment_counts_a_round_once():
    shard = DenseShard(table(8, 8), KeyRange(0, 8))
    pushed = [one(KeyRange(0, 3), 1.0), one(KeyRange(2, 5), 1.0), some(KeyRange(6, 8), [7], 1.0)]
    shard.merge([(1.0, None, stage(shard, push)) for push in pushed])
    assert column(shard) == [2.0, 2.0, 3.0, 2.0, 2.0, 1.0, 1.0, 2.0]
    assert shard.versions == [1]


def test_a_round_may_mix_whole_and_keyed_pushes():
    shard = DenseShard(table(), KeyRange(0, 10))
    pushed = [one(KeyRange(0, 10), 1.0), some(KeyRange(0, 10), [0, 9], 10.0)]
    shard.merge([(1.0, None, stage(shard, push)) for push in pushed])
    assert column(shard) == [12.0, *[2.0] * 8, 12.0]


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


# --- arrival ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ([], ""),
        ([4], ""),
        ([4, 6, 7], ""),
        ([3, 5], "keys outside the named range [4:8)"),
        ([5, 8], "keys outside the named range [4:8)"),
        ([-1], "keys outside the named range [4:8)"),
        ([4, 9, 7], "keys are not strictly increasing"),  # 9 hides between two good ones
        ([4, 6, 5, 7], "keys are not strictly increasing"),
        ([4, 5, 5], "keys are not strictly increasing"),
    ],
)
def test_a_staged_push_with_bad_keys_says_its_problem(keys, problem):
    shard = DenseShard(table(), KeyRange(0, 10))
    for staged in (
        shard.stage(KeyRange(4, 8), len(keys)),
        shard.stage_keys(KeyRange(4, 8), len(keys)),
    ):
        staged.views[0][:] = np.array(keys, np.int64).tobytes()
        assert staged.problem() == problem


def test_a_staged_push_of_a_range_has_no_problem():
    shard = DenseShard(table(), KeyRange(0, 10))
    assert shard.stage(KeyRange(4, 8), -1).problem() == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_staged_views_are_as_long_as_the_payload(dtype):
    """Odd counts too: values follow the keys where their dtype may be read from."""
    shard = DenseShard(table(dtype=dtype, row_shape=(3,)), KeyRange(0, 10))
    size = 3 * shard.dtype.itemsize
    whole, keyed = shard.stage(KeyRange(1, 8), -1), shard.stage(KeyRange(1, 8), 5)
    assert [view.nbytes for view in whole.views] == [7 * size]
    assert [view.nbytes for view in keyed.views] == [40, 5 * size]
    assert [view.nbytes for view in shard.stage_keys(KeyRange(1, 8), 5).views] == [40]
    assert [view.nbytes for view in shard.stage(KeyRange(1, 8), 0).views] == [0]
    assert keyed.values.data_ptr() % 16 == 0


def test_a_push_that_is_not_complete_changes_no_row():
    """DESIGN section 4, rule 1: a sender that dies half-way changes nothing."""
    shard = DenseShard(table(), KeyRange(0, 10))
    stage(shard, one(KeyRange(0, 10), 7.0))
    assert column(shard) == [1.0] * 10
    assert shard.versions == [0, 0, 0]


@pytest.mark.parametrize("how", ["apply", "write", "merge", "release"])
def test_staging_memory_is_reused(how):
    shard = DenseShard(table(), KeyRange(0, 10))

    def run(push: Push) -> int:
        return send(shard, how, push).values.data_ptr()

    assert run(one(KeyRange(0, 10), 1.0)) == run(one(KeyRange(0, 10), 2.0))
    assert run(some(KeyRange(0, 10), [1, 2, 3], 1.0)) == run(some(KeyRange(0, 10), [4, 5, 6], 1.0))


def test_staged_pushes_do_not_share_memory():
    shard = DenseShard(table(), KeyRange(0, 10))
    pushed = [one(KeyRange(0, 10), float(value)) for value in range(5)]
    for _ in range(2):  # the second time, from the pool
        shard.merge([(1.0, None, stage(shard, push)) for push in pushed])
    assert column(shard) == [21.0] * 10


def test_pushes_of_many_sizes_do_not_accumulate_memory():
    """A thousand key counts, one after the other: a few buffers, each at most twice too large."""
    shard = DenseShard(table(1000, 100), KeyRange(0, 1000))
    for count in range(1, 1000):
        shard.apply(stage(shard, some(KeyRange(0, 1000), list(range(count)), 1.0)), None)
    kept = [memory.nbytes for free in shard._staging._free.values() for memory in free]
    assert sum(kept) <= 4 * 1000 * (8 + 4 * WIDTH)


def test_memory_of_a_burst_of_pushes_is_freed():
    shard = DenseShard(table(), KeyRange(0, 10))
    pushed = [one(KeyRange(0, 10), 1.0)] * 50
    shard.merge([(1.0, None, stage(shard, push)) for push in pushed])
    assert len([memory for free in shard._staging._free.values() for memory in free]) <= 8


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "dtype"), [("adam", "float16"), ("sgd", "int32"), ("adagrad", "uint8")]
)
def test_a_method_that_cannot_work_on_the_dtype(access, dtype):
    expected = f"'t': access method '{access}' does not support {dtype} rows"
    with pytest.raises(InvalidValue, match=expected):
        DenseShard(table(access=access, dtype=dtype), KeyRange(0, 10))


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
