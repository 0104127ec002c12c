"""WeightedMean against the mean of each parameter over the workers that have it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.codecs import summed_codec_of
from shoal.collective.base import AllGather, AllReduce
from shoal.collective.encoded import EncodedMean, encoded_layer
from shoal.errors import NotFinite
from shoal.protocol.machine import Outcome
from shoal.strategies.base import WIRE_TAIL
from shoal.strategies.reduced_buffers import CodecsOfBuffer
from shoal.strategies.reduction import WeightedMean
from shoal.tables.spec import Span

SPANS = {
    "a": (Span(0), Span(16), Span(32)),
    "b": (Span(0), Span(16)),
    "frozen": (Span(0), Span(16)),
}
SIZES = {"a": 48, "b": 32, "frozen": 32}


def reduced(programs):
    """Run the programs of all workers; what each returns, and how many reductions there were."""
    results, count = {}, 0
    asked = {n: next(program) for n, program in enumerate(programs)}
    while len(results) < len(programs):
        assert len(asked) == len(programs), "workers take part in different reductions"
        assert all(isinstance(each, AllReduce) and each.mean for each in asked.values())
        mean = sum(each.tensor for each in asked.values()) / len(asked)
        for each in asked.values():
            each.tensor.copy_(mean)
        asked, count = {}, count + 1
        for n, program in enumerate(programs):
            try:
                asked[n] = program.send(None)
            except StopIteration as end:
                results[n] = end.value
    return [results[n] for n in range(len(programs))], count


def reduced_with_codecs(workers, shares):
    """As `reduced`, with allgathers."""
    programs = [w.mean.over_workers(share) for w, share in zip(workers, shares, strict=True)]
    asked = [next(program) for program in programs]
    while asked:
        answers = [None] * len(asked)
        if isinstance(asked[0], AllGather):
            data = np.concatenate([each.data for each in asked]).tobytes()
            answers = [Outcome(value=memoryview(data))] * len(asked)
        else:
            mean = sum(each.tensor for each in asked) / len(asked)
            for each in asked:
                each.tensor.copy_(mean)
        sent, asked = zip(programs, answers, strict=True), []
        for program, answer in sent:
            try:
                asked.append(program.send(answer))
            except StopIteration:
                continue


def encoded(buffer, codec, rank):
    """The codecs of a buffer: its first parameter travels as it is."""
    places = {n: slice(span.start, span.start + 16) for n, span in enumerate(SPANS[buffer]) if n}
    layers = {n: encoded_layer(summed_codec_of(codec), (4, 4)) for n in places}
    names = [f"{buffer}.{n}" for n in range(len(SPANS[buffer]))]
    return CodecsOfBuffer(places, EncodedMean(layers, 0, rank), 0, False, names)


class Worker:
    def __init__(self, frozen, codec="", rank=0):
        self.wires = {
            n: torch.zeros(size + WIRE_TAIL, dtype=torch.float64) for n, size in SIZES.items()
        }
        if not frozen:
            del self.wires["frozen"]
        idle = ["frozen"] if frozen else []
        codecs = {buffer: encoded(buffer, codec, rank) for buffer in self.wires if codec}
        self.mean = WeightedMean(self.wires, SPANS, idle, codecs)


places = [(buffer, number) for buffer, spans in SPANS.items() for number in range(len(spans))]
lacks = st.sets(st.sampled_from(places))


@settings(deadline=None, max_examples=150)
@given(
    st.booleans(),
    st.sampled_from(["", "fp16"]),
    st.integers(1, 4).flatmap(
        lambda workers: st.lists(
            st.lists(
                st.tuples(st.sampled_from([0.0, 0.5, 1.0, 3.0]), lacks),
                min_size=workers,
                max_size=workers,
            ),
            min_size=1,
            max_size=4,
        )
    ),
    st.integers(0, 1 << 30),
)
def test_each_parameter_gets_the_mean_over_the_workers_that_have_it(frozen, codec, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    workers = [Worker(frozen, codec, rank) for rank in range(len(steps[0]))]
    for shares in steps:
        own, programs = [], []
        for worker, (share, without) in zip(workers, shares, strict=True):
            values = {
                n: torch.randn(SIZES[n], generator=generator, dtype=torch.float64)
                for n in worker.wires
            }
            absent = {}
            for buffer, number in sorted(without):
                if buffer in worker.wires:
                    absent.setdefault(buffer, []).append(number)
            for n, wire in worker.wires.items():
                for number, span in enumerate(SPANS[n]):
                    if number not in absent.get(n, ()):  # the others keep what was there
                        wire[span.start : span.start + 16] = values[n][span.start : span.start + 16]
            own.append((share, values, absent))
            told = {n: tuple(each) for n, each in absent.items()}
            programs.append(worker.mean.over_workers(share, told, rates={"a": 0.1}))
        results, count = reduced(programs)
        weight = sum(share for share, _, _ in own) / len(own)
        assert all(each.weight == pytest.approx(weight) for each in results)
        if not weight:
            continue
        assert all(each.absent == results[0].absent for each in results)
        assert all(each.rates["a"] == pytest.approx(0.1) for each in results)
        whole = not any(set(absent) - {"frozen"} for _, _, absent in own)
        awake = frozen and any(
            share and len(absent.get("frozen", ())) < 2 for share, _, absent in own
        )
        exact = 2 + awake + (not whole or awake)
        assert exact <= count <= exact + (2 + awake if codec else 0)
        for buffer in workers[0].wires:
            for number, span in enumerate(SPANS[buffer]):
                rows = slice(span.start, span.start + 16)
                have = [
                    (share, values[buffer][rows])
                    for share, values, absent in own
                    if share and number not in absent.get(buffer, ())
                ]
                if number in results[0].absent.get(buffer, ()):
                    assert not have
                    continue
                if not have:
                    continue  # void: it is nobody's, and nobody was told that it is missing
                total = sum(share for share, _ in have)
                expected = sum(share * value for share, value in have) / total
                for worker in workers:
                    mean = worker.wires[buffer][rows]
                    near = {"rtol": 2e-3, "atol": 2e-3} if codec else {}
                    torch.testing.assert_close(mean, expected, **near)


def test_a_flag_is_seen_by_all():
    workers = [Worker(False) for _ in range(3)]
    results, _ = reduced([w.mean.over_workers(1.0, flag=n == 1) for n, w in enumerate(workers)])
    assert [round(each.flagged, 6) for each in results] == [0.333333] * 3


def fill(worker, generator):
    for name, size in SIZES.items():
        worker.wires[name][:size] = torch.randn(size, generator=generator, dtype=torch.float64)


def test_a_step_without_a_batch_leaves_residuals_as_they_were():
    generator = torch.Generator().manual_seed(0)
    workers = [Worker(True, "onebit", rank) for rank in range(2)]
    for worker in workers:
        fill(worker, generator)
    reduced_with_codecs(workers, [1.0, 1.0])
    before = [worker.mean.state_dict() for worker in workers]
    reduced_with_codecs(workers, [0.0, 0.0])
    for worker, kept in zip(workers, before, strict=True):
        for buffer, of in worker.mean.state_dict().items():
            for number, state in of.items():
                if number != "count":
                    mine, old = state["residual"], kept[buffer][number]["residual"]
                    torch.testing.assert_close(mine, old, rtol=1e-5, atol=1e-5)


def test_a_value_that_is_not_finite_is_told_to_all():
    generator = torch.Generator().manual_seed(0)
    workers = [Worker(True, "int:8", rank) for rank in range(3)]
    for worker in workers:
        fill(worker, generator)
    workers[1].wires["b"][20] = torch.nan
    programs = [worker.mean.over_workers(1.0) for worker in workers]
    told = []
    asked = [next(program) for program in programs]
    while asked:
        mean = sum(each.tensor for each in asked) / 3
        for each in asked:
            each.tensor.copy_(mean)
        asked = []
        for program in programs:
            try:
                asked.append(program.send(None))
            except NotFinite as error:
                told.append(error.message)
    assert "gradients of b.1: " in told[1]
    assert all("another worker" in told[n] for n in (0, 2))
