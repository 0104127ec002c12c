"""What a worker keeps of what its codecs leave out, and when."""

import threading

import numpy as np
import pytest

from shoal.errors import InvalidValue, NotFinite, Refused, RoundClosed, UsageError
from shoal.keys import KeyRange
from shoal.protocol.machine import Outcome
from shoal.protocol.requests import Exchange, Forget, PushOp
from shoal.pushes import Door
from shoal.pushes.encoder import Encoder
from shoal.tables.consistency import Cover, asp, bsp
from shoal.tables.encoding import Encoding
from shoal.tables.spec import Span, TableSpec

torch = pytest.importorskip("torch")
ROWS, FRAGMENT = 3000, 1000
RANDOM = np.random.default_rng(0)


def spec_of(codec="int:4", **more):
    given = {"fragment_rows": FRAGMENT, "codec": codec, "consistency": bsp(), **more}
    return TableSpec("w", ROWS, **given)


def push_of(values, rows=None):
    rows = rows or KeyRange(0, len(values))
    return PushOp("w", rows, values.view(np.uint8).data)


def sent(door, values, rows=None, *, clock=0, **how):
    """What a worker sends of a push, and what a server makes of it."""
    [push] = door.ready(Exchange((push_of(values, rows),), **how), clock).pushes
    spec = door._table("w")
    into = torch.empty(len(push.rows), 1, dtype=getattr(torch, spec.dtype))
    if push.sizes:
        Encoding(spec).decode(push.rows, push.values, push.sizes, into)
        return push, into.numpy().ravel()
    return push, np.frombuffer(push.values, spec.dtype)


def normal(count=ROWS):
    return RANDOM.standard_normal(count).astype(np.float32)


@pytest.mark.parametrize(
    "codec", ["int:4", "onebit+zlib", "int:8:scale=power:block=8", "topk:0.1+zstd"]
)
def test_what_is_left_out_comes_with_the_next_push(codec):
    door = Door(lambda name: spec_of(codec, consistency=asp(), merge="sum"))
    total = np.zeros(ROWS, np.float32)
    values = normal()
    for _ in range(20):
        total += sent(door, values)[1]
    [encoder] = door.encoders()
    assert np.abs(total + encoder.residual - 20 * values).max() < 1e-3
    assert np.abs(total - 20 * values).max() > 1e-2
    assert encoder.raw_bytes == 20 * values.nbytes > 3 * encoder.encoded_bytes


def test_where_pushes_count_by_weight_so_does_what_they_left_out():
    """Sum of w (decoded) plus the residual is the sum of w x, whatever the weights are."""
    door = Door(lambda name: spec_of("onebit"))
    total, due = np.zeros(ROWS), np.zeros(ROWS)
    for weight in (1.0, 8.0, 0.5, 3.0):
        values = normal()
        total += weight * sent(door, values, weight=weight)[1]
        due += weight * values
    [encoder] = door.encoders()
    assert np.abs(total + encoder.units[0] * encoder.residual - due).max() < 1e-4


def test_a_push_of_a_small_weight_does_not_carry_what_a_large_one_left_out():
    """The last batch of an epoch is as small on all workers: their mean has the push as it is."""
    door = Door(lambda name: spec_of("topk:0.01"))
    for _ in range(20):
        sent(door, normal(), weight=32.0)
    [encoder] = door.encoders()
    waits = encoder.units[0] * encoder.residual
    decoded = sent(door, normal(), weight=1.0)[1]
    assert np.abs(decoded).max() < 25  # of 20 values of size 1, not 32 times as much
    after = encoder.units[0] * encoder.residual
    assert np.linalg.norm(after) > 0.9 * np.linalg.norm(waits)
    for _ in range(400):
        sent(door, np.zeros(ROWS, np.float32), weight=1.0)  # weights stay small
    assert np.linalg.norm(encoder.units[0] * encoder.residual) < 0.1 * np.linalg.norm(waits)
    assert encoder.units[0] < 2


@pytest.mark.parametrize("rows", [KeyRange(0, 1000), KeyRange(500, 2300), KeyRange(999, 1001)])
def test_pushes_of_some_rows_leave_the_rest_of_a_fragment_alone(rows):
    door = Door(lambda name: spec_of("onebit"))
    total, due = np.zeros(ROWS), np.zeros(ROWS)
    for weight, some in ((1.0, None), (4.0, rows), (2.0, None), (0.5, rows)):
        some = some or KeyRange(0, ROWS)
        values, at = normal(len(some)), slice(some.start, some.stop)
        total[at] += weight * sent(door, values, some, weight=weight)[1]
        due[at] += weight * values
    [encoder] = door.encoders()
    units = np.repeat(encoder.units, FRAGMENT)
    assert np.abs(total + units * encoder.residual - due).max() < 1e-4


def test_with_merge_sum_weights_do_not_count():
    door = Door(lambda name: spec_of("onebit", merge="sum"))
    values = normal()
    first = sent(door, values, weight=1.0)[1]
    second = sent(door, values, weight=8.0)[1]
    [encoder] = door.encoders()
    assert np.abs(first + second + encoder.residual - 2 * values).max() < 1e-5


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_what_no_server_counts_goes_back(weight):
    door = Door(lambda name: spec_of("onebit"))
    values, none = normal(), np.zeros(ROWS, np.float32)
    push = door.ready(Exchange((push_of(values),), weight=weight), 0)
    refused = KeyRange(1000, 3000)
    door.settled(push, Outcome(error=Refused("no"), uncounted=(("w", refused),)))
    [encoder] = door.encoders()
    before = encoder.residual.copy()
    encoder.settle()
    assert np.abs(encoder.residual[1000:] - values[1000:]).max() < 1e-5
    assert np.array_equal(encoder.residual[:1000], before[:1000])
    _, decoded = sent(door, none, weight=weight)
    assert np.abs(decoded + encoder.residual - values)[1000:].max() < 1e-5


def test_what_goes_back_later_counts_by_its_own_weight():
    door = Door(lambda name: spec_of("onebit"))
    values = normal()
    push = door.ready(Exchange((push_of(values),), weight=2.0), 0)
    other = sent(door, values, weight=0.5)[1]
    door.settled(push, Outcome(error=Refused("no"), uncounted=(("w", KeyRange(0, ROWS)),)))
    [encoder] = door.encoders()
    encoder.settle()
    counted = 0.5 * other + encoder.units[0] * encoder.residual
    assert np.abs(counted - 2.5 * values).max() < 1e-4


def test_a_push_of_the_same_rows_twice_goes_back_once_each():
    door = Door(lambda name: spec_of("onebit"))
    values = normal()
    push = door.ready(Exchange((push_of(values), push_of(values))), 0)
    door.settled(push, Outcome(error=Refused("no"), uncounted=(("w", KeyRange(0, ROWS)),) * 2))
    [encoder] = door.encoders()
    encoder.settle()
    assert np.abs(encoder.residual - 2 * values).max() < 1e-5


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2e38])
@pytest.mark.parametrize("at", [0, 999, 1500, 2999])
def test_a_push_that_is_not_finite_changes_nothing(bad, at):
    door = Door(lambda name: spec_of("int:4"))
    sent(door, normal(), weight=2.0)
    [encoder] = door.encoders()
    encoder.residual[:] = normal()
    before, units = encoder.residual.copy(), encoder.units.copy()
    values = normal()
    values[at] = bad
    words = "Nothing was sent" if bad == 2e38 else f"of key {at}, element 0 of its row. Nothing was"
    with pytest.raises(NotFinite, match=words):
        sent(door, values, weight=0.5)
    assert np.abs(encoder.residual - before).max() < 1e-4
    assert np.array_equal(encoder.units, units)


def test_zero_replaces_what_is_not_finite():
    door = Door(lambda name: spec_of("int:4", nonfinite="zero"))
    values = normal()
    values[[0, 1500]] = np.nan
    right = np.nan_to_num(values)
    _, decoded = sent(door, values)
    [encoder] = door.encoders()
    assert np.abs(decoded + encoder.residual - right).max() < 1e-5


def test_assigned_rows_forget_what_was_left_out():
    door = Door(lambda name: spec_of("onebit"))
    sent(door, normal())
    [encoder] = door.encoders()
    push, _ = sent(door, normal(1000), KeyRange(500, 1500), assign=True)
    assert push.sizes == ()
    assert not encoder.residual[500:1500].any()
    assert encoder.residual[:500].all()


def test_keys_go_as_they_are():
    door = Door(lambda name: spec_of("onebit"))
    keys = np.array([1, 5])
    op = PushOp("w", KeyRange(0, ROWS), np.ones(2, np.float32).view(np.uint8).data, keys.data)
    assert door.ready(Exchange((op,)), 0).pushes == (op,)


def test_random_bits_follow_from_seed_table_rank_and_clock():
    spec = spec_of("qsgd:2")
    values = normal()

    def bits(seed=0, rank=0, clock=0, before=0, name="w"):
        door = Door(lambda _: spec if name == "w" else TableSpec(name, ROWS, codec="qsgd:2"))
        door = Door(lambda _: spec, seed, lambda: rank)
        for _ in range(before):
            sent(door, values, clock=clock)
        return bytes(sent(door, values, clock=clock)[0].values)

    assert bits() == bits()
    several = [bits(), bits(seed=1), bits(rank=1), bits(clock=1), bits(before=1), bits(before=2)]
    assert len(set(several)) == 6


def test_a_resumed_worker_sends_the_same_bytes():
    spec = spec_of("ternary")
    pushes = [normal() for _ in range(4)]
    one = Door(lambda name: spec, 3)
    whole = [bytes(sent(one, each, clock=c)[0].values) for c, each in enumerate(pushes)]
    first, second = Door(lambda name: spec, 3), Door(lambda name: spec, 3)
    for clock, each in enumerate(pushes[:2]):
        sent(first, each, clock=clock)
    second.load_state_dict(first.state_dict())
    rest = [bytes(sent(second, each, clock=2 + c)[0].values) for c, each in enumerate(pushes[2:])]
    assert rest == whole[2:]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_are_encoded_as_float32(dtype):
    door = Door(lambda name: spec_of("onebit", dtype=dtype, consistency=asp(), merge="sum"))
    values = normal().astype(dtype)
    total = sum(sent(door, values)[1].astype(np.float64) for _ in range(10))
    [encoder] = door.encoders()
    assert np.abs(total + encoder.residual - 10 * values.astype(np.float64)).max() < 0.05


def test_a_layer_may_have_another_codec_or_none():
    spans = Span(0, "a"), Span(100, "b", "none"), Span(2100, "c", "qsgd:8")
    door = Door(lambda name: spec_of("int:8", spans=spans))
    values = normal()
    push, decoded = sent(door, values)
    assert push.sizes[0] == 104 + 900 * 4
    assert np.array_equal(decoded[100:2100], values[100:2100])
    assert 0 < np.abs(decoded - values)[:100].max() < 0.05
    assert 0 < np.abs(decoded - values)[2100:].max() < 0.05
    [encoder] = door.encoders()
    assert not encoder.residual[100:].any()


# ---------------------------------------------------------------------------- what a review found


@pytest.mark.parametrize("codec", ["onebit", "int:4", "topk:0.1"])
@pytest.mark.parametrize("large", [1e4, 1e12])
def test_values_that_explode_leave_no_noise_in_the_residual(codec, large):
    """Rounding beside values of 1e12 is 1e5: what is left of a residual there is none."""
    door = Door(lambda name: spec_of(codec))
    sent(door, normal())
    [encoder] = door.encoders()
    before = np.abs(encoder.residual).max()
    values = normal() * np.float32(large)
    values[2999] = np.nan
    with pytest.raises(NotFinite):
        sent(door, values)
    assert np.abs(encoder.residual).max() <= before * 1.1


def test_a_bad_push_of_an_exchange_leaves_the_residuals_of_the_others_as_they_were():
    specs = {name: TableSpec(name, ROWS, fragment_rows=FRAGMENT, codec="onebit") for name in "ab"}
    door = Door(specs.__getitem__)
    values, bad = normal(), normal()
    bad[5] = np.nan
    ops = [
        PushOp(name, KeyRange(0, ROWS), v.view(np.uint8).data)
        for name, v in zip("ab", (values, bad), strict=True)
    ]
    door.ready(Exchange((ops[0],)), 0)
    before = {name: state["residual"].copy() for name, state in door.state_dict().items()}
    with pytest.raises(NotFinite, match=r"table 'b'.* of key 5"):
        door.ready(Exchange(tuple(ops), weight=2.0), 0)
    after = door.state_dict()
    assert np.abs(after["a"]["residual"] - before["a"]).max() < 1e-5
    assert set(after["a"]["units"]) == {1.0}


def test_where_twins_push_the_same_what_is_late_has_counted():
    """`gradient_coding`: a round that has closed has the push of the other worker of the group."""
    cover = bsp(Cover(((0, 1),)))
    door = Door(lambda name: spec_of("onebit", consistency=cover))
    push = door.ready(Exchange((push_of(normal()),)), 0)
    [encoder] = door.encoders()
    before = encoder.residual.copy()
    door.settled(push, Outcome(error=RoundClosed("late"), uncounted=(("w", KeyRange(0, ROWS)),)))
    encoder.settle()
    assert np.array_equal(encoder.residual, before)


def test_threads_that_push_first_share_an_encoder(monkeypatch):
    door, others, made = Door(lambda name: spec_of()), [], []

    def make(*given):
        if not others:  # another thread asks while this one makes the encoder
            others.append(threading.Thread(target=lambda: made.append(door._encoder("w"))))
            others[0].start()
            others[0].join(0.2)  # it has to wait for this one
        return Encoder(*given)

    monkeypatch.setattr("shoal.pushes.door.Encoder", make)
    own = door._encoder("w")
    others[0].join()
    assert made == [own]


def test_assigned_keys_forget_what_was_left_out_of_them_alone():
    door = Door(lambda name: spec_of("onebit"))
    sent(door, normal())
    keys = np.array([7, 2000])
    op = PushOp("w", KeyRange(0, ROWS), np.ones(2, np.float32).view(np.uint8).data, keys.data)
    door.ready(Exchange((op,), assign=True), 0)
    [encoder] = door.encoders()
    assert np.array_equal(np.flatnonzero(encoder.residual == 0), keys)


def test_what_another_worker_assigns_is_forgotten_when_asked():
    door = Door(lambda name: spec_of("onebit"))
    sent(door, normal())
    door.forget(Forget((("w", KeyRange(0, 1000)),)))
    [encoder] = door.encoders()
    assert not encoder.residual[:1000].any()
    assert encoder.residual[1000:].all()


def test_a_saved_residual_is_a_copy():
    door = Door(lambda name: spec_of("onebit"))
    sent(door, normal())
    state = door.state_dict()["w"]["residual"]
    before = state.copy()
    sent(door, normal())
    assert np.array_equal(state, before)


@pytest.mark.parametrize("wrong", [{"residual": np.zeros(1), "units": np.ones(3)}, {}])
def test_a_residual_of_another_table_is_refused(wrong):
    door = Door(lambda name: spec_of("onebit"))
    door.load_state_dict({"w": wrong})
    with pytest.raises(InvalidValue, match="3000 values in 3 fragments, and was saved with"):
        sent(door, normal())


def test_residuals_are_loaded_before_the_first_push():
    door = Door(lambda name: spec_of("onebit"))
    sent(door, normal())
    with pytest.raises(UsageError, match="before the first push"):
        door.load_state_dict(door.state_dict())


@pytest.mark.parametrize("codec", ["onebit", "qsgd:4", "topk:0.1"])
def test_figures_of_a_push_are_measured_when_asked_for(codec):
    spans = Span(0, "a.weight (100, 10)"), Span(1000, "b.bias (500,)", "none"), Span(1500, "c")
    door = Door(lambda name: spec_of(codec, spans=spans))
    assert door.figures() == []
    values = normal()
    _, decoded = sent(door, values)
    sent(door, normal())  # another one is not measured
    found = door.figures()
    assert [(each.layer, each.codec) for each in found] == [
        ("a.weight", codec), ("b.bias", "none"), ("c", codec)
    ]  # fmt: skip
    assert [each.raw_bytes for each in found] == [4000, 2000, 6000]
    assert found[1].encoded_bytes == 2000
    assert found[1].error == 0
    wrong = values[:1000] - decoded[:1000]
    right = np.linalg.norm(wrong) / np.linalg.norm(values[:1000])
    assert abs(found[0].error - right) < 1e-5
    assert door.figures() == []


def test_a_codec_may_begin_late():
    door = Door(lambda name: spec_of("onebit:after=3"))
    values = normal()
    pushes = [sent(door, values, clock=clock) for clock in range(5)]
    assert [bool(push.sizes) for push, _ in pushes] == [False, False, False, True, True]
    assert all(np.array_equal(decoded, values) for _, decoded in pushes[:3])
    resumed = Door(lambda name: spec_of("onebit:after=3"))
    resumed.load_state_dict({}, start_clock=3)
    assert sent(resumed, values, clock=0)[0].sizes
