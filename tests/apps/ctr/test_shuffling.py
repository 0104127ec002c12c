"""Rows of `shoal train ctr` in a random order."""

import json
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.apps.ctr.readers import Batch
from shoal.apps.ctr.sample import write_sample
from shoal.apps.ctr.shuffling import Labels, shuffled
from shoal.cli import main

SIZE = 8


def batches(rows, least=0):
    """Rows of `least` to 4 keys; the first half of them are clicks."""
    random = np.random.default_rng(0)
    number = 0
    while number < rows:
        count = min(SIZE, rows - number)
        lengths = random.integers(least, 5, count)
        keys = random.integers(0, 1 << 63, lengths.sum()).astype(np.uint64)
        labels = (np.arange(number, number + count) < rows // 2).astype(np.float32)
        values = random.random(len(keys)).astype(np.float32)
        offsets = np.cumsum(lengths) - lengths
        yield Batch(labels, offsets, keys, values, np.arange(len(keys)))
        number += count


def rows_of(some):
    found = []
    for batch in some:
        stops = [*batch.offsets[1:], len(batch.keys)]
        for label, start, stop in zip(batch.labels, batch.offsets, stops, strict=True):
            parts = (each[start:stop].tolist() for each in (batch.keys, batch.values, batch.fields))
            found.append((float(label), *map(tuple, parts)))
    return found


def in_order(rows, buffer_rows, seed=0, labels=None, least=0):
    random = np.random.default_rng(seed)
    return list(shuffled(batches(rows, least), buffer_rows, random, labels or Labels()))


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 200, 1003])
@pytest.mark.parametrize("buffer_rows", [1, 8, 50, 64, 10_000])
def test_each_row_comes_once_with_all_that_is_in_it(rows, buffer_rows):
    some = in_order(rows, buffer_rows)
    assert Counter(rows_of(some)) == Counter(rows_of(batches(rows)))
    assert all(len(each) == min(SIZE, rows) for each in some[:-1])
    assert 0 < len(some[-1]) <= min(SIZE, rows)


def test_a_seed_gives_one_order():
    assert rows_of(in_order(300, 64)) == rows_of(in_order(300, 64))
    assert rows_of(in_order(300, 64)) != rows_of(in_order(300, 64, seed=1))


def test_a_buffer_of_all_rows_gives_any_order():
    """Each row is as likely in the first batch as any other."""
    first = Counter()
    for seed in range(200):
        first.update(rows_of(in_order(64, 64, seed, least=1)[:1]))
    expected = 200 * SIZE / 64
    assert len(first) == 64
    assert sum((each - expected) ** 2 / expected for each in first.values()) < 110  # p = 0.0002


@pytest.mark.parametrize("buffer_rows", [200, 400])
def test_rows_of_a_sorted_file_are_mixed_as_far_as_the_buffer_reaches(buffer_rows):
    before, after = Labels(), Labels()
    for batch in in_order(2000, buffer_rows, labels=before):
        after.add(batch.labels)
    assert (before.rows, before.clicks, before.changes) == (2000, 1000, 1)
    assert before.in_runs
    assert after.changes > buffer_rows / 5  # around the one change of the file


@pytest.mark.parametrize(
    ("labels", "in_runs"),
    [
        ([1] * 100 + [0] * 100, True),
        ([1, 0] * 100, False),
        ([1] * 5 + [0] * 5, False),  # too few to tell
        ([0] * 1000, False),
        ([1] * 20 + [0] * 980, True),
    ],
)
def test_labels_in_long_runs_are_noticed(labels, in_runs):
    counted = Labels()
    for some in np.array_split(np.array(labels, np.float32), 3):
        counted.add(some)
    assert counted.in_runs == in_runs
    random = np.random.default_rng(0).permutation(labels)
    again = Labels()
    again.add(random)
    assert not again.in_runs


@pytest.mark.real
def test_a_file_that_is_sorted_by_label_trains_as_well_and_too_small_a_buffer_is_said(tmp_path):
    train, test = write_sample(tmp_path, 0)
    lines = sorted(train.read_text().splitlines(), key=lambda line: -float(line.split()[0]))
    train.write_text("\n".join(lines) + "\n")
    words = ["train", "ctr", str(train), "--test", str(test), "--out", str(tmp_path / "runs")]
    auc, warned = {}, {}
    for shuffle in (None, 0, 500):
        more = [] if shuffle is None else ["--shuffle", str(shuffle)]
        told = CliRunner().invoke(main, [*words, *more, "--json"])
        assert told.exit_code == 0, told.output
        summary = json.loads(told.stdout.splitlines()[-1])
        auc[shuffle] = summary["test"]["auc"]
        warned[shuffle] = any("long runs" in each for each in summary["warnings"])
    assert warned == {None: False, 0: True, 500: True}
    assert auc[None] > auc[0] + 0.02
    told = CliRunner().invoke(main, [*words, "--shuffle", "500"])
    assert "the labels come in long runs" in " ".join(told.output.split())
