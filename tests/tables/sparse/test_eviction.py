"""BoundedIndex against a dictionary that forgets, and who is forgotten."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InvariantBroken
from shoal.tables.sparse.eviction import BoundedIndex
from shoal.tables.sparse.index import MISSING


def array(keys):
    return np.array(keys, np.uint64)


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@settings(deadline=None)
@given(data=st.data())
def test_a_bounded_index_equals_a_dictionary_that_evicts(policy, data):
    """Whoever has a place has it alone; who was asked for in a request is there after it."""
    most = data.draw(st.integers(1, 12))
    index, here, evicted = BoundedIndex(most, policy), {}, 0
    keys = st.lists(st.integers(0, 25), max_size=index.at_once)
    for asked in data.draw(st.lists(keys, max_size=30)):
        created = np.empty(len(asked), np.uint64)
        places, added = index.find_or_add(array(asked), created)
        places = places.tolist()
        new = {key: i for i, key in reversed(list(enumerate(asked))) if key not in here}
        assert created[:added].tolist() == sorted(new.values())
        for key, place in zip(asked, places, strict=True):
            assert here.get(key, place) == place  # a key that was here stays where it was
        for key, place in zip(asked, places, strict=True):
            gone = [other for other, at in here.items() if at == place and other != key]
            for other in gone:
                assert other not in asked
                del here[other]
            evicted += len(gone)
            here[key] = place
        assert len(index) == len(here) <= most
        assert index.evicted == evicted
        assert {int(key): at for at, key in enumerate(index.keys)} == here
        found = index.find(array(range(26))).tolist()
        assert found == [here.get(key, int(MISSING)) for key in range(26)]


def survivors(policy):
    """1,000 rows: 0 to 399 in every request, 400 to 799 often long ago, and a stream of others."""
    index = BoundedIndex(1000, policy)

    def ask(first, last):
        index.find_or_add(
            np.arange(first, last, dtype=np.uint64), np.empty(last - first, np.uint64)
        )

    for _ in range(20):
        ask(400, 800)
    for step in range(200):
        ask(0, 400)
        ask(10_000 + 40 * step, 10_040 + 40 * step)
    kept = index.keys
    return (kept < 400).sum(), ((kept >= 400) & (kept < 800)).sum()


def test_keys_in_use_stay_and_keys_used_long_ago_are_evicted():
    always, once = survivors("lru")
    assert always == 400
    assert once < 60
    assert survivors("lfu")[0] == 400


def test_lfu_keeps_frequent_keys_through_a_scan():
    """Where lru would lose it to keys that come once."""
    kept = {}
    for policy in ("lru", "lfu"):
        index, random = BoundedIndex(1000, policy), np.random.default_rng(0)
        for step in range(600):
            hot = random.choice(400, 20, replace=False)
            scan = np.arange(10_000 + 100 * step, 10_100 + 100 * step)
            keys = np.concatenate([hot, scan]).astype(np.uint64)
            index.find_or_add(keys, np.empty(len(keys), np.uint64))
        kept[policy] = (index.keys < 400).sum()
    assert kept["lfu"] > 1.3 * kept["lru"]


def test_lfu_evicts_keys_that_were_frequent_long_ago():
    index = BoundedIndex(1000, "lfu")
    for _ in range(10):
        keys = np.arange(500, dtype=np.uint64)
        index.find_or_add(keys, np.empty(500, np.uint64))
    for start in range(10_000, 110_000, 500):
        keys = np.arange(start, start + 500, dtype=np.uint64)
        index.find_or_add(keys, np.empty(500, np.uint64))
    assert (index.keys < 500).sum() < 50


def test_equal_requests_evict_equal_keys():
    kept = []
    for _ in range(2):
        index, random = BoundedIndex(100, "lru"), np.random.default_rng(0)
        for _ in range(200):
            keys = random.choice(1000, 40, replace=False).astype(np.uint64)
            index.find_or_add(keys, np.empty(40, np.uint64))
        kept.append(index.keys.tolist())
    assert kept[0] == kept[1]


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_replica_that_is_told_the_places_has_the_same_keys(policy):
    """Whatever it would have drawn itself: it has another past."""
    index, copy, random = (
        BoundedIndex(100, policy),
        BoundedIndex(100, policy),
        np.random.default_rng(1),
    )
    copy._state[3] = 12345
    for _ in range(200):
        keys = random.choice(1000, 40, replace=False).astype(np.uint64)
        created = np.empty(40, np.uint64)
        places, added = index.find_or_add(keys, created)
        assert copy.assume(keys, places).tolist() == created[:added].tolist()
    assert copy.keys.tolist() == index.keys.tolist()
    assert (copy.evicted, copy.requests) == (index.evicted, index.requests)
    assert copy.uses(0, 100)[:, 1].tolist() == index.uses(0, 100)[:, 1].tolist()
    assert copy.find(index.keys).tolist() == list(range(100))


@pytest.mark.parametrize(
    ("keys", "places"),
    [([5], [4]), ([5, 6], [3, 5]), ([1], [1]), ([5], [1 << 40]), ([5, 6, 7], [3, 4, 5])],
    ids=["beyond the rows", "a gap", "it is elsewhere", "far out", "beyond the bound"],
)
def test_impossible_places_are_refused_and_change_nothing(keys, places):
    index = BoundedIndex(5, "lru")
    index.find_or_add(array([1]), np.empty(1, np.uint64))
    index.find_or_add(array([2, 3]), np.empty(2, np.uint64))
    before = index.keys.tolist(), index.uses(0, 3).tolist(), index.requests
    with pytest.raises(InvariantBroken, match="cannot be at"):
        index.assume(array(keys), array(places))
    assert (index.keys.tolist(), index.uses(0, 3).tolist(), index.requests) == before
