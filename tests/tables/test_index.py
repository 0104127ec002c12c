"""KeyIndex, and lists of keys, against a dictionary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.keys import SLOTS, hash_of, slot_of
from shoal.tables.bounded import BoundedIndex
from shoal.tables.distinct import by_slot, distinct, outside
from shoal.tables.index import MISSING, SEGMENTS, KeyIndex
from shoal.tables.kernels import mixed
from shoal.tables.segments import Segments

settings.register_profile("compiling", deadline=None)  # the first call compiles
settings.load_profile("compiling")

KEYS = st.lists(st.integers(0, 30) | st.integers(0, (1 << 64) - 1), max_size=200)


def array(keys):
    return np.array(keys, np.uint64)


class Dumb:
    def __init__(self):
        self.places = {}

    def find_or_add(self, keys):
        new = []
        for number, key in enumerate(keys):
            if key not in self.places:
                self.places[key] = len(self.places)
                new.append(number)
        return [self.places[key] for key in keys], new


@given(st.lists(KEYS, max_size=8))
def test_it_is_a_dictionary_that_counts(batches):
    index, dumb = KeyIndex(), Dumb()
    for keys in batches:
        created = np.empty(len(keys), np.uint64)
        places, added = index.find_or_add(array(keys), created)
        expected, new = dumb.find_or_add(keys)
        assert places.tolist() == expected
        assert created[:added].tolist() == new
        assert len(index) == len(dumb.places)
    asked = array([*dumb.places, 31, 1 << 63])
    found = index.find(asked).tolist()
    assert found == [dumb.places.get(int(key), int(MISSING)) for key in asked]


@pytest.mark.parametrize("batch", [1, 100, 10_000])
def test_growth_moves_a_few_pairs_a_call(batch, monkeypatch):
    """No call moves more than its share of the table, and nothing is lost."""
    moved = []

    def watched(self, number, pairs):
        moved[-1] += int(self.counts[number])
        original(self, number, pairs)

    total = 300 * batch if batch > 1 else 20_000
    keys = np.random.default_rng(0).integers(0, 1 << 63, total).astype(np.uint64)
    index, created = KeyIndex(), np.empty(batch, np.uint64)
    original = Segments.grow
    monkeypatch.setattr(Segments, "grow", watched)
    for start in range(0, total, batch):
        moved.append(0)
        index.find_or_add(keys[start : start + batch], created)
        if start > 50 * batch:  # log(1 + b / n, GROWTH) of the segments, and as many by chance
            assert moved[-1] <= 10 * batch + start / SEGMENTS * 4
        if start % (50 * batch) == 0:
            found = index.find(keys[: start + batch])
            assert found.tolist() == list(range(start + batch))
    assert sum(moved) > total
    assert index.find(keys).tolist() == list(range(total))
    assert 0.45 < 16 * len(index) / index.nbytes <= 0.65


def test_no_memory_for_more_keys_leaves_the_index_as_it_was(monkeypatch):
    index, keys = KeyIndex(), np.arange(20_000, dtype=np.uint64)
    created = np.empty(len(keys), np.uint64)
    index.find_or_add(keys[:10_000], created)
    original = Segments.grow

    def refused(self, number, pairs):
        if number == 100:
            raise MemoryError
        original(self, number, pairs)

    with monkeypatch.context() as patched:
        patched.setattr(Segments, "grow", refused)
        with pytest.raises(MemoryError):
            index.find_or_add(keys, created)
    assert len(index) == 10_000
    assert (index.find(keys[10_000:]) == MISSING).all()
    assert index.find_or_add(keys, created)[0].tolist() == list(range(20_000))


def test_a_batch_larger_than_the_table_finds_room():
    keys = np.arange(1_000_000, dtype=np.uint64)
    index = KeyIndex()
    _, added = index.find_or_add(keys, np.empty(len(keys), np.uint64))
    assert added == len(keys)
    assert index.find(keys[::-1]).tolist() == keys[::-1].tolist()


@given(KEYS)
def test_the_compiled_hash_is_the_hash(keys):
    assert [int(mixed(np.uint64(key))) for key in keys] == [hash_of(key) for key in keys]
    assert all(0 <= slot_of(key) < SLOTS for key in keys)


def test_slots_are_about_equally_full():
    """10 % at 64 fragments of 64 slots is what placement promises (for a million keys in a row)."""
    keys = np.arange(1_000_000, dtype=np.uint64)
    slots = np.array([slot_of(int(key)) for key in keys[:100_000]])
    counts = np.bincount(slots * 64 // SLOTS, minlength=64)
    assert counts.max() < 1.1 * counts.mean()
    assert counts.min() > 0.9 * counts.mean()


@given(KEYS)
def test_distinct_keys(keys):
    chosen, numbers = distinct(array(keys))
    assert chosen.tolist() == list(dict.fromkeys(keys))
    assert chosen[numbers].tolist() == keys


@given(KEYS)
def test_by_slot_is_a_stable_sort(keys):
    expected = sorted(range(len(keys)), key=lambda number: slot_of(keys[number]))
    assert by_slot(array(keys)).tolist() == expected


@given(KEYS, st.integers(0, SLOTS), st.integers(0, SLOTS))
def test_the_first_key_outside(keys, start, stop):
    expected = [i for i, key in enumerate(keys) if not start <= slot_of(key) < stop]
    assert outside(array(keys), start, stop) == (expected[0] if expected else -1)


# ---------------------------------------------------------------------------- bounded


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@settings(deadline=None)
@given(data=st.data())
def test_a_bounded_index_is_a_dictionary_that_forgets(policy, data):
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


def test_who_is_used_stays_and_who_was_used_goes():
    always, once = survivors("lru")
    assert always == 400
    assert once < 60
    assert survivors("lfu")[0] == 400


def test_lfu_keeps_what_is_used_often_through_a_scan():
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


def test_lfu_forgets_what_was_used_often_once():
    index = BoundedIndex(1000, "lfu")
    for _ in range(10):
        keys = np.arange(500, dtype=np.uint64)
        index.find_or_add(keys, np.empty(500, np.uint64))
    for start in range(10_000, 110_000, 500):
        keys = np.arange(start, start + 500, dtype=np.uint64)
        index.find_or_add(keys, np.empty(500, np.uint64))
    assert (index.keys < 500).sum() < 50


def test_the_same_requests_evict_the_same_keys():
    kept = []
    for _ in range(2):
        index, random = BoundedIndex(100, "lru"), np.random.default_rng(0)
        for _ in range(200):
            keys = random.choice(1000, 40, replace=False).astype(np.uint64)
            index.find_or_add(keys, np.empty(40, np.uint64))
        kept.append(index.keys.tolist())
    assert kept[0] == kept[1]
