"""Rows that a reader keeps for a while."""

import time

import numpy as np
import pytest
import torch

from shoal.client.client import Client
from shoal.client.options import ClientOptions
from shoal.client.row_cache import RowCache
from shoal.errors import InvalidValue, PeerError
from shoal.tables.consistency import asp
from shoal.tables.init import Init
from shoal.tables.spec import Access, TableSpec

pytestmark = pytest.mark.real
SUM = {"access": Access("sum"), "merge": "sum", "consistency": asp()}


@pytest.fixture
def client(cluster):
    _, [client] = cluster(2)
    client.create_table(TableSpec("words", 0, (2,), kind="sparse", **SUM))
    client.create_table(TableSpec("dense", 3))
    client.blocking.push("words", torch.tensor([[1.0, 2.0], [3.0, 4.0]]), [7, 8])
    return client


def push(client):
    client.blocking.push("words", torch.ones(2, 2), [7, 8])


def test_rows_are_pulled_once_while_they_are_new_enough(client, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    cache = RowCache(client, "words", max_age_s=5)
    assert cache.pull([8, 7, 8]).tolist() == [[3, 4], [1, 2], [3, 4]]
    push(client)
    now[0] += 4.9
    assert cache.pull(np.array([7, 9], np.uint64)).tolist() == [[1, 2], [0, 0]]
    assert (cache.hits, cache.misses, len(cache)) == (1, 4, 3)
    now[0] += 0.1  # 7 and 8 are too old, and 9 is not
    assert cache.pull([7, 8, 9]).tolist() == [[2, 3], [4, 5], [0, 0]]
    assert (cache.hits, cache.misses) == (2, 6)


def test_without_an_age_every_row_is_pulled(client):
    cache = RowCache(client, "words", max_age_s=0)
    for pushed in range(3):
        assert cache.pull([7]).tolist() == [[1 + pushed, 2 + pushed]]
        push(client)


def test_its_memory_is_bounded(client):
    cache = RowCache(client, "words", max_age_s=float("inf"), max_rows=1000)
    keys = np.arange(5000, dtype=np.uint64)
    for first in range(0, 5000, 100):
        cache.pull(keys[first : first + 100])
        assert len(cache) <= 1100
    assert cache.pull([7, 8]).tolist() == [[1, 2], [3, 4]]


def test_what_was_returned_does_not_change(client):
    cache = RowCache(client, "words", max_age_s=0)
    rows = cache.pull([7, 8])
    push(client)
    cache.pull([7, 8])
    assert rows.tolist() == [[1, 2], [3, 4]]


def test_a_pull_that_fails_leaves_what_was_kept(client, monkeypatch):
    cache = RowCache(client, "words", max_age_s=60)
    cache.pull([7])

    def fails(*_):
        raise PeerError("no answer")

    monkeypatch.setattr(cache._client.blocking, "pull", fails)
    with pytest.raises(PeerError):
        cache.pull([7, 8])
    assert cache.pull([7]).tolist() == [[1, 2]]
    monkeypatch.undo()
    assert cache.pull([8]).tolist() == [[3, 4]]  # and was not taken for a row of zeros


def test_readers_of_another_group_create_no_rows(cluster):
    """Keys that nobody has pushed read as their initial rows, and the trainers' table stays."""
    processes, [client] = cluster(2)
    begin = Init("constant", 0.5)
    client.create_table(TableSpec("words", 0, (2,), kind="sparse", init=begin, **SUM))
    client.blocking.push("words", torch.ones(1, 2), [7])
    with Client(processes.scheduler, ClientOptions(group="reader")) as reader:
        cache = RowCache(reader, "/words")
        assert cache.pull([7, 99, 1 << 40]).tolist() == [[1.5] * 2, [0.5] * 2, [0.5] * 2]
    assert [keys.tolist() for keys, _ in client.scan("words")] == [[7]]


def test_bad_use_is_refused(client):
    for table, options, says in (
        ("none", {}, "no table 'none'"),
        ("dense", {}, "only sparse rows are cached"),
        ("words", {"max_age_s": -1}, "max_age_s is -1"),
        ("words", {"max_age_s": float("nan")}, "max_age_s is nan"),
        ("words", {"max_rows": 0}, "max_rows is 0"),
    ):
        with pytest.raises(InvalidValue, match=says):
            RowCache(client, table, **options)
    with pytest.raises(InvalidValue, match="keys are a tensor"):
        RowCache(client, "words").pull("7")
