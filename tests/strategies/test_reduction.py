"""WeightedMean against the mean of each parameter over the workers that have it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.collective.base import AllReduce
from shoal.strategies.base import WIRE_TAIL
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


class Worker:
    def __init__(self, frozen):
        self.wires = {
            n: torch.zeros(size + WIRE_TAIL, dtype=torch.float64) for n, size in SIZES.items()
        }
        if not frozen:
            del self.wires["frozen"]
        idle = ["frozen"] if frozen else []
        self.mean = WeightedMean(self.wires, SPANS, idle)


places = [(buffer, number) for buffer, spans in SPANS.items() for number in range(len(spans))]
lacks = st.sets(st.sampled_from(places))


@settings(deadline=None, max_examples=150)
@given(
    st.booleans(),
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
def test_each_parameter_gets_the_mean_over_the_workers_that_have_it(frozen, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    workers = [Worker(frozen) for _ in steps[0]]
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
        assert count == 2 + awake + (not whole or awake)
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
                    torch.testing.assert_close(worker.wires[buffer][rows], expected)


def test_a_flag_is_seen_by_all():
    workers = [Worker(False) for _ in range(3)]
    results, _ = reduced([w.mean.over_workers(1.0, flag=n == 1) for n, w in enumerate(workers)])
    assert [round(each.flagged, 6) for each in results] == [0.333333] * 3
