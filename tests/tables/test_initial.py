"""What rows are before their first update."""

from math import cos, log1p, pi, sin, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.keys import KeyRange, split_evenly
from shoal.tables.dense.rows import DTYPES
from shoal.tables.dense.shard import DenseShard
from shoal.tables.init import Init
from shoal.tables.initial import BLOCK, NormalPairs, fill
from shoal.tables.spec import TableSpec

INITS = [
    Init("zeros"),
    Init("constant", 3.0),
    Init("uniform", -2.0, 5.0, seed=3),
    Init("normal", 1.0, 2.0, seed=3),
]


def initial(
    spec_init: Init, start: int, stop: int, width: int, dtype: str = "float64"
) -> torch.Tensor:
    rows = torch.empty(stop - start, width, dtype=DTYPES[dtype])
    fill(rows, spec_init, KeyRange(start, stop))
    return rows


def dumb_uniform(counter: int, seed: int, stream: int) -> float:
    """SplitMix64 (Steele et al. 2014, figure 16) in Python's integers."""
    mask, gamma = (1 << 64) - 1, 0x9E3779B97F4A7C15
    z = (counter + (seed * 2 + stream) * 0x632BE59BD9B4E019 + 1) * gamma & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return ((z ^ (z >> 31)) >> 11) / 2**53


@pytest.mark.parametrize("seed", [0, 3, -1, 2**40])
def test_random_rows_are_those_of_splitmix(seed):
    width, start = 3, 1000
    uniform = initial(Init("uniform", -2.0, 5.0, seed), start, start + 4, width)
    normal = initial(Init("normal", 1.0, 2.0, seed), start, start + 4, width)
    for (row, column), value in np.ndenumerate(uniform.numpy()):
        counter = (start + row) * width + column
        first, second = (dumb_uniform(counter, seed, stream) for stream in (0, 1))
        assert value == -2.0 + 7.0 * first
        expected = 1.0 + 2.0 * sqrt(-2.0 * log1p(-first)) * cos(2.0 * pi * second)
        assert normal[row, column].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_splitmix_itself():
    """Seed 0's first number is 0xE220A8397B1DCDAF, in every published implementation."""
    assert dumb_uniform(0, 0, 0) == (0xE220A8397B1DCDAF >> 11) / 2**53


@pytest.mark.parametrize("dtype", DTYPES)
def test_initial_rows_have_the_tables_dtype(dtype):
    exact = initial(Init("uniform", 0.0, 100.0, seed=1), 0, 50, 2)
    assert torch.equal(
        initial(Init("uniform", 0.0, 100.0, seed=1), 0, 50, 2, dtype), exact.to(DTYPES[dtype])
    )
    assert (initial(Init("constant", 3.0), 0, 5, 2, dtype) == 3).all()
    assert (initial(Init("zeros"), 0, 5, 2, dtype) == 0).all()


def test_random_initial_rows_have_the_mean_and_spread_of_their_distribution():
    """20,000 draws: means within 4 standard errors, within [a, b), columns and seeds unrelated."""
    uniform = initial(Init("uniform", -2.0, 5.0, seed=1), 0, 10_000, 2)
    normal = initial(Init("normal", 1.0, 2.0, seed=1), 0, 10_000, 2)
    other = initial(Init("normal", 1.0, 2.0, seed=2), 0, 10_000, 2)
    assert -2.0 <= uniform.min() < -1.99
    assert 4.99 < uniform.max() < 5.0
    assert uniform.mean().item() == pytest.approx(1.5, abs=4 * 7 / sqrt(12 * 20_000))
    assert normal.mean().item() == pytest.approx(1.0, abs=4 * 2 / sqrt(20_000))
    assert normal.std().item() == pytest.approx(2.0, rel=0.02)
    for pair in (normal.T, uniform.T, torch.stack([normal[:, 0], other[:, 0]])):
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 4 / sqrt(10_000)


@pytest.mark.parametrize("init", INITS, ids=lambda init: init.kind)
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 7), st.integers(1, 5))
def test_initial_rows_do_not_depend_on_the_number_of_servers(init, rows, fragment_rows, servers):
    """DESIGN section 4, rule 7: bit for bit, as a replica or a hand-off would create them."""
    spec = TableSpec("w", rows, (3,), init=init, fragment_rows=fragment_rows)
    whole = DenseShard(spec, KeyRange(0, rows)).rows
    fragments, pieces = spec.fragments(), []
    for part in split_evenly(len(fragments), servers):
        if len(part):
            held = KeyRange(fragments[part.start].start, fragments[part.stop - 1].stop)
            pieces.append(DenseShard(spec, held).rows)
    assert torch.equal(torch.cat(pieces), whole)


def test_normal_float32_rows_come_in_pairs_of_one_hash():
    mask, gamma, seed, first = (1 << 64) - 1, 0x9E3779B97F4A7C15, 5, 7
    rows = initial(Init("normal", 1.0, 2.0, seed), first, first + 6, 1, "float32").view(-1)
    for at, value in enumerate(rows.tolist(), first):
        z = (at // 2 + seed * 2 * 0x632BE59BD9B4E019 + 1) * gamma & mask
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        high, low = np.array([z ^ (z >> 31)], np.uint64).view(np.int32)[::-1].tolist()
        angle = 2 * pi * low / 2**32
        radius = sqrt(-2.0 * np.log((abs(high) + 0.5) / 2**31))
        expected = 1.0 + 2.0 * radius * (sin(angle) if at % 2 else cos(angle))
        assert value == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_no_hash_makes_a_normal_number_that_is_not_finite():
    """A uniform 0 once came of 64 of 2^32 hashes, and an infinite row of it."""
    extremes = [0, 1, 31, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1]
    hashes = np.array([high << 32 | low for high in extremes for low in extremes], np.uint64)
    drawn = NormalPairs(hashes).draw(1.0)
    assert torch.isfinite(drawn).all()
    assert drawn.abs().max() == pytest.approx(sqrt(2 * 32 * np.log(2)), rel=1e-3)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("start", [0, 1, 2 * BLOCK - 1, 4 * BLOCK + 5])
def test_rows_are_the_same_in_whichever_blocks_they_are_filled(init, start):
    whole = initial(init, 0, 5 * BLOCK, 1, "float32")
    part = initial(init, start, min(start + 2 * BLOCK + 3, 5 * BLOCK), 1, "float32")
    assert torch.equal(whole[start : start + len(part)], part)
