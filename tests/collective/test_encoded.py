"""Means of encoded layers: against plain means, with what encodings leave out, and undone."""

import numpy as np
import pytest
import torch

from shoal.codecs import summed_codec_of
from shoal.collective.base import AllGather, AllReduce
from shoal.collective.encoded import BytesLayer, EncodedMean, encoded_layer
from shoal.errors import InvalidValue, NotFinite
from shoal.protocol.machine import Outcome

SHAPES = {0: (32, 64), 3: (64, 4, 9)}
CODECS = ["fp16", "bf16", "int:8", "qsgd:4", "natural:8", "ternary", "onebit", "sign", "fp8"]
CODECS += ["topk:0.1", "randomk:0.1", "topk:0.1+int:8", "randomk:0.1+int:8", "powersgd:2"]
MEANS = [each for each in CODECS if each != "sign"]  # which is for majority votes


def means(workers, values, without=()):
    """Average on all workers; returns the collectives that there were."""
    for worker, own in zip(workers, values, strict=True):
        worker.encode(own)
    return collected([worker.over_workers(without) for worker in workers])


def collected(programs):
    """Run the programs of all workers in step."""
    asked, answers = [], [None] * len(programs)
    while True:
        requests = []
        for program, answer in zip(programs, answers, strict=True):
            try:
                requests.append(program.send(answer))
            except StopIteration:
                requests.append(None)
        if requests[0] is None:
            assert not any(requests), "workers take part in different collectives"
            return asked
        asked.append(requests[0])
        if isinstance(requests[0], AllReduce):
            total = torch.stack([each.tensor.double() for each in requests]).mean(0)
            for each in requests:
                each.tensor.copy_(total)
            answers = [None] * len(programs)
        else:
            data = np.concatenate([each.data for each in requests]).tobytes()
            answers = [Outcome(value=memoryview(data)) for _ in programs]


def workers_of(codec, count=3, shapes=SHAPES, seed=0):
    made = summed_codec_of(codec)
    return [
        EncodedMean({n: encoded_layer(made, shape, n) for n, shape in shapes.items()}, seed, rank)
        for rank in range(count)
    ]


def drawn(count=3, shapes=SHAPES, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            n: torch.randn(int(np.prod(shape)), generator=generator).to(dtype)
            for n, shape in shapes.items()
        }
        for _ in range(count)
    ]


def copies(values):
    return [{n: each.clone() for n, each in own.items()} for own in values]


def residuals(worker):
    return {
        n: torch.zeros(layer.size) if layer.residual is None else torch.tensor(layer.residual)
        for n, layer in worker.layers.items()
    }


@pytest.mark.parametrize("codec", MEANS)
def test_means_and_residuals_are_the_values(codec):
    """mean + mean of the residuals = mean of the values + mean of the residuals before."""
    workers, before = workers_of(codec), [dict.fromkeys(SHAPES, 0)] * 3
    for step in range(3):
        values = drawn(seed=step)
        given = copies(values)
        means(workers, values)
        for n in SHAPES:
            assert all(torch.equal(own[n], values[0][n]) for own in values)
            left = [residuals(worker)[n] for worker in workers]
            lack = (sum(left) - sum(each[n] for each in before)) / 3
            expected = sum(each[n] for each in given) / 3
            if workers[0].layers[n].codec.biased:
                near = 2e-3 if codec in ("fp16", "bf16") else 2e-5
                assert torch.allclose(values[0][n] + lack, expected, atol=near)
            else:
                error = (values[0][n] - expected).norm() / expected.norm()
                assert error < {"ternary": 3, "qsgd:4": 0.5, "natural:8": 0.4}.get(codec, 0.1)
        before = [residuals(worker) for worker in workers]


@pytest.mark.parametrize("codec", MEANS)
def test_what_is_left_out_of_one_mean_comes_with_later_ones(codec):
    """The sum of many means of the same values approaches the sum of the values."""
    workers, total = workers_of(codec), dict.fromkeys(SHAPES, 0)
    steps = 60
    for _ in range(steps):
        values = drawn()
        means(workers, values)
        total = {n: total[n] + values[0][n] for n in SHAPES}
    for n in SHAPES:
        mean = sum(own[n] for own in drawn()) / 3
        assert (total[n] / steps - mean).norm() < 0.25 * mean.norm()


@pytest.mark.parametrize("codec", CODECS)
def test_undone_means_leave_nothing(codec):
    workers, values = workers_of(codec), drawn()
    means(workers, values)
    before = [residuals(worker) for worker in workers]
    for worker, own in zip(workers, drawn(seed=1), strict=True):
        worker.encode(own)
        worker.undo()
    for worker, kept in zip(workers, before, strict=True):
        for n in SHAPES:
            assert torch.allclose(residuals(worker)[n], kept[n], atol=1e-5)


def test_a_layer_without_a_value_anywhere_keeps_what_was_left_out():
    workers = workers_of("onebit")
    means(workers, drawn())
    before = [residuals(worker) for worker in workers]
    values = drawn(seed=1)
    means(workers, values, without=[3])
    for worker, kept in zip(workers, before, strict=True):
        assert torch.allclose(residuals(worker)[3], kept[3], atol=1e-5)
        assert not torch.allclose(residuals(worker)[0], kept[0], atol=1e-2)


FED_BACK = [each for each in MEANS if summed_codec_of(each).biased]


@pytest.mark.parametrize("codec", FED_BACK)
def test_small_weights_do_not_carry_what_large_ones_left_out(codec):
    """The last batch of an epoch: the values of all workers have a weight of 1/32."""
    workers = workers_of(codec)
    for step in range(20):
        means(workers, drawn(seed=step))
    before = [residuals(worker) for worker in workers]
    values = [{n: each / 32 for n, each in own.items()} for own in drawn(seed=20)]
    given = copies(values)
    for worker, own in zip(workers, values, strict=True):
        worker.encode(own, dict.fromkeys(SHAPES, 1 / 32))
    collected([worker.over_workers() for worker in workers])
    for n in SHAPES:
        owed = sum(each[n] for each in before) / 3
        assert (
            32 * values[0][n].norm() < 5 + 2 * (owed + 32 * sum(own[n] for own in given) / 3).norm()
        )
        lack = sum(residuals(worker)[n] for worker in workers) / 3 - owed
        expected = sum(own[n] for own in given) / 3
        assert torch.allclose(values[0][n] + lack, expected, atol=1e-5)


@pytest.mark.parametrize("codec", FED_BACK)
@pytest.mark.parametrize("weight", [0.0, 0.1, 3.0])
def test_undone_means_of_other_weights_leave_nothing(codec, weight):
    [worker] = workers_of(codec, 1)
    means([worker], drawn(1))
    before, units = residuals(worker), {n: each.unit for n, each in worker.layers.items()}
    own = {n: weight * each for n, each in drawn(1, seed=1)[0].items()}
    worker.encode(own, dict.fromkeys(SHAPES, weight))
    worker.undo()
    worker.undo()  # there is nothing to undo any more
    for n in SHAPES:
        assert torch.allclose(residuals(worker)[n], before[n], atol=1e-4)
        assert worker.layers[n].unit == units[n]


@pytest.mark.parametrize("codec", FED_BACK)
def test_a_worker_without_a_value_owes_what_it_owed(codec):
    workers = workers_of(codec, 2)
    means(workers, drawn(2))
    kept = residuals(workers[1])
    values = [
        drawn(1, seed=1)[0],
        {n: torch.zeros(each.size) for n, each in workers[1].layers.items()},
    ]
    workers[0].encode(values[0])
    workers[1].encode(values[1], dict.fromkeys(SHAPES, 0.0))
    collected([worker.over_workers() for worker in workers])
    if "powersgd" not in codec:  # its factor is common: what is outside of it is the residual
        assert all(torch.equal(residuals(workers[1])[n], kept[n]) for n in SHAPES)
    else:
        assert all(torch.allclose(residuals(workers[1])[n], kept[n], atol=1e-5) for n in SHAPES)


def test_a_mean_of_factors_that_overflows_is_refused_and_undone():
    [worker] = workers_of("powersgd:2", 1)
    means([worker], drawn(1, seed=3))
    with pytest.raises(NotFinite):
        means(
            [worker], [{n: torch.full((layer.size,), 2e37) for n, layer in worker.layers.items()}]
        )
    assert all(bool(each.isfinite().all()) for each in residuals(worker).values())
    means([worker], drawn(1, seed=4))


def test_a_loaded_state_replaces_what_was_there():
    one, other = workers_of("onebit", 2)
    means([one, other], drawn(2))
    one.load({})
    assert one.count == 0
    assert all(each.residual is None and each.unit == 0 for each in one.layers.values())
    [power], [new] = workers_of("powersgd:2", 1), workers_of("powersgd:2", 1)
    means([power], drawn(1))
    power.load({})
    assert all(torch.equal(power.layers[n].second, new.layers[n].second) for n in SHAPES)
    with pytest.raises(InvalidValue, match="another model or codec"):
        power.load(other.state())
    wrong = other.state()
    wrong["0"]["residual"] = wrong["0"]["residual"].long()
    with pytest.raises(InvalidValue, match="int64"):
        one.load(wrong)


def test_what_layers_ask_for_at_one_time_travels_together():
    layers = {
        n: encoded_layer(summed_codec_of(codec), (64, 64), n)
        for n, codec in enumerate(["powersgd:1", "powersgd:2", "int:8", "fp16", "onebit", "bf16"])
    }
    mean = EncodedMean(layers, 0, 0)
    asked = means([mean], [{n: torch.randn(64 * 64) for n in layers}])
    kinds = [each.tensor.dtype if isinstance(each, AllReduce) else "gather" for each in asked]
    assert sorted(map(str, kinds[:4])) == sorted(
        ["torch.float32", "torch.float16", "torch.bfloat16", "gather"]
    )
    assert kinds[4:] == [torch.float32]  # the second factors of powersgd


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_change_nothing(codec, bad):
    workers = workers_of(codec)
    means(workers, drawn())
    before = residuals(workers[0])
    values = drawn(seed=1)[0]
    values[3][77] = bad
    with pytest.raises(NotFinite):
        workers[0].encode(values)
    for n in SHAPES:
        after = residuals(workers[0])[n]
        assert bool(after.isfinite().all())
        near = torch.isclose(after, before[n], atol=1e-5)
        assert near.float().mean() >= (1 if n == 0 else 0.75)  # a block of the bad value may lack


def test_a_matrix_whose_factor_would_overflow_changes_nothing():
    [worker] = workers_of("powersgd:2", 1)
    means([worker], drawn(1))
    before = residuals(worker)
    with pytest.raises(NotFinite):
        worker.encode({0: drawn()[0][0], 3: torch.full((64 * 36,), 3e38)})
    assert torch.allclose(residuals(worker)[0], before[0], atol=1e-5)
    assert bool(residuals(worker)[3].isfinite().all())


@pytest.mark.parametrize("codec", CODECS)
def test_a_state_continues_bit_for_bit(codec):
    workers = workers_of(codec)
    means(workers, drawn())
    others = workers_of(codec)
    for one, other in zip(workers, others, strict=True):
        other.load(one.state())
    first, second = drawn(seed=1), drawn(seed=1)
    means(workers, first)
    means(others, second)
    assert all(torch.equal(first[0][n], second[0][n]) for n in SHAPES)
    for one, other in zip(workers, others, strict=True):
        assert all(torch.equal(residuals(one)[n], residuals(other)[n]) for n in SHAPES)


def test_a_state_of_other_layers_is_refused():
    [worker], [other] = workers_of("onebit", 1), workers_of("onebit", 1, {0: (64, 64), 3: (64, 36)})
    means([worker], drawn(1))
    with pytest.raises(InvalidValue, match="another model"):
        other.load(worker.state())
    [less] = workers_of("onebit", 1, {0: (32, 64)})
    with pytest.raises(InvalidValue, match="a layer 3"):
        less.load(worker.state())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_values_of_other_dtypes(dtype):
    workers, values = workers_of("int:8"), drawn(dtype=dtype)
    given = copies(values)
    means(workers, values)
    expected = sum(each[0].double() for each in given) / 3
    assert values[0][0].dtype == dtype
    assert (values[0][0].double() - expected).norm() < 0.02 * expected.norm()


def test_draws_differ_between_workers_but_for_the_places_of_randomk():
    """The same values on all workers: with the same draws their mean would be each one's."""
    for codec, alike in [("qsgd:2", False), ("randomk:0.1", True)]:
        workers, values = workers_of(codec), drawn(1) * 3
        means(workers, copies(values))
        data = [worker.layers[0]._data for worker in workers]
        assert np.array_equal(data[0], data[1]) == alike


def test_the_sum_of_halves_may_be_too_large():
    layer = encoded_layer(summed_codec_of("fp16"), (64, 64))
    mean = EncodedMean({0: layer}, 0, 0)
    mean.encode({0: torch.ones(64 * 64)})
    program = mean.over_workers()
    asked = next(program)
    asked.tensor.fill_(torch.inf)
    with pytest.raises(NotFinite, match="sum is too large for codec fp16"):
        program.send(None)


def test_a_layer_that_would_not_shrink_has_none():
    assert encoded_layer(summed_codec_of("powersgd:2"), (64,)) is None
    assert encoded_layer(summed_codec_of("powersgd:64"), (64, 64)) is None
    assert isinstance(encoded_layer(summed_codec_of("int:8"), (64,)), BytesLayer)


def test_powersgd_of_a_matrix_of_its_rank_is_exact_after_two_means():
    generator = torch.Generator().manual_seed(3)
    low = torch.randn(32, 2, generator=generator) @ torch.randn(2, 64, generator=generator)
    workers = workers_of("powersgd:2", 2, {0: (32, 64)})
    values = [{0: low.reshape(-1).clone()} for _ in workers]
    means(workers, values)
    assert (values[0][0].view(32, 64) - low).norm() < 1e-4 * low.norm()


def test_figures_are_those_of_one_mean():
    for codec in ("onebit", "int:8", "powersgd:2"):
        workers = workers_of(codec)
        assert workers[0].figures("params", ["a", "", "", "b"]) == []
        values = drawn()
        means(workers, copies(values))
        figures = workers[0].figures("params", ["a", "", "", "b"])
        assert [each.layer for each in figures] == ["a", "b"]
        left = workers[0].layers[0].residual
        if left is not None:  # the first mean had no residual
            expected = np.linalg.norm(left) / float(values[0][0].norm())
            assert figures[0].error == pytest.approx(expected, rel=1e-3)
        assert 0 < figures[0].error < 1
        assert figures[0].raw_bytes == 4 * 32 * 64
        assert figures[0].encoded_bytes == summed_codec_of(codec).bytes_of((32, 64))


def test_no_layers_need_no_collective():
    assert means([EncodedMean({}, 0, 0)], [{}]) == []
    assert AllGather(np.empty(0, np.uint8)).data.nbytes == 0
