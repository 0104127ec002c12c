"""The texts of categories that a run has seen."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.apps.ctr.columns import values
from shoal.apps.ctr.columns.keys import key
from shoal.apps.ctr.columns.values import (
    ColumnKeys,
    distinct_texts,
    merged,
    read_seen,
    write_seen,
)
from shoal.errors import DataCorrupt, UnknownFormat

TEXTS = st.sampled_from(["a", " a", "007", "7.0", "7", "TRUE", "", "NA", "é", "e\u0301", "x" * 300])


@given(st.lists(st.lists(TEXTS, max_size=6), max_size=8), st.integers(0, 4))
@example([["a", "a", "a", "a", " a"]], 4)
def test_texts_have_their_keys_however_many_are_kept(batches, most):
    column = ColumnKeys("c", most)
    for texts in batches:
        keys, there = column.of(texts)
        found = [int(key) if has else None for key, has in zip(keys, there, strict=True)]
        assert found == [key("c", text) for text in texts]
    seen = column.seen()
    everything = {text for texts in batches for text in texts}
    counted = {found for text in everything if (found := key("c", text)) is not None}
    assert {*seen.sample} == counted
    assert {key("c", text) for text in seen.texts} <= counted
    assert len(seen.texts) <= most
    if seen.all:
        assert {key("c", text) for text in seen.texts} == counted
    if most == 4 and len(everything) <= 3 and "x" * 300 not in everything:
        assert seen.all


def test_what_is_kept_has_a_bound():
    column = ColumnKeys("c", 1000)
    for first in range(0, 20_000, 500):
        column.of([f"v{number}" for number in range(first, first + 500)])
        column.count(500)
    seen = column.seen()
    assert (seen.rows, len(seen.texts), seen.all) == (20_000, 1000, False)
    assert len(seen.sample) <= values.SAMPLE_MOST
    assert distinct_texts(seen) == pytest.approx(20_000, rel=0.15)
    assert "v0" in seen.texts
    long = ColumnKeys("c", 1000)
    long.of(["x" * 201, "y"])
    assert (long.seen().texts, long.seen().all) == (["y"], False)


def test_a_column_whose_texts_come_again_after_it_is_full_is_looked_up():
    column = ColumnKeys("c", 10)
    few, many = [f"v{n}" for n in range(10)], [f"w{n}" for n in range(100)]
    for texts in (few, many, few, many, few):
        assert column.of(texts)[0].tolist() == [key("c", text) for text in texts]
    assert column.seen().texts == few


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_see_what_one_would_see(workers):
    texts = [f"v{n}" for n in range(5000)]
    one, parts = ColumnKeys("c", 10**6), [ColumnKeys("c", 10**6) for _ in range(workers)]
    one.of(texts)
    one.count(len(texts))
    for rank, part in enumerate(parts):
        part.of(texts[rank::workers])
        part.count(len(texts[rank::workers]))
    found = merged([{"c": part.seen()} for part in parts])["c"]
    assert (found.rows, found.texts, found.all) == (5000, one.seen().texts, True)
    assert distinct_texts(found) == pytest.approx(5000, rel=0.15)
    assert merged([]) == {}


def test_what_was_seen_is_written_and_read(tmp_path):
    column = ColumnKeys("c", 10)
    column.of(["Oslo", "é", "007", ""])
    column.count(3)
    path = tmp_path / "workers" / "0" / "values.json"
    assert read_seen(path) == {}
    write_seen(path, {"c": column})
    assert read_seen(path) == {"c": column.seen()}
    assert read_seen(path)["c"].texts == ["007", "Oslo", "é"]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda told: told["columns"]["c"].pop("rows"), DataCorrupt, "is damaged: .*rows"),
        (lambda told: told["columns"]["c"].update(sample=[-1]), DataCorrupt, "is damaged"),
        (lambda told: told["columns"]["c"].update(texts=[3]), DataCorrupt, "is damaged"),
        (lambda told: told["columns"]["c"].update(level=65), DataCorrupt, "is damaged"),
        (lambda told: told.update(shoal_format=1), UnknownFormat, "has format 1"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, error, says):
    path = tmp_path / "values.json"
    column = ColumnKeys("c", 10)
    column.of(["Oslo"])
    write_seen(path, {"c": column})
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))
    with pytest.raises(error, match=says):
        read_seen(path)
    path.write_bytes(b"\xff")
    with pytest.raises(DataCorrupt, match=r"values\.json is damaged"):
        read_seen(path)


def test_nothing_is_estimated_wrong_of_few():
    column = ColumnKeys("c", 10)
    column.of([])
    assert distinct_texts(column.seen()) == 0
    column.of([f"v{n}" for n in range(values.SAMPLE_MOST)])
    assert distinct_texts(column.seen()) == values.SAMPLE_MOST
    assert column.of(["v0"])[0].dtype == np.uint64


def test_a_file_of_bytes_that_are_no_text_is_refused(tmp_path):
    path = tmp_path / "values.json"
    path.write_bytes(b'{"shoal_format": 3, "columns": {"a\x99": {}}}')
    with pytest.raises(DataCorrupt, match=r"values\.json"):
        read_seen(path)
