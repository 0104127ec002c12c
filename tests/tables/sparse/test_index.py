"""KeyIndex, and lists of keys, against a dictionary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.jit import mixed
from shoal.keys import SLOTS, hash_of, slot_of
from shoal.tables.sparse.distinct import by_slot, distinct, outside
from shoal.tables.sparse.index import MISSING, SEGMENTS, KeyIndex
from shoal.tables.sparse.segments import Segments

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
def test_a_key_index_equals_a_dictionary_of_places(batches):
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
def test_growing_moves_a_bounded_number_of_pairs_per_call(batch, monkeypatch):
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
    assert 0.45 < len(index) / index._segments.pairs.sum() <= 0.65


def test_growing_without_memory_leaves_the_index_unchanged(monkeypatch):
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


def test_a_batch_larger_than_the_index_is_added():
    keys = np.arange(1_000_000, dtype=np.uint64)
    index = KeyIndex()
    _, added = index.find_or_add(keys, np.empty(len(keys), np.uint64))
    assert added == len(keys)
    assert index.find(keys[::-1]).tolist() == keys[::-1].tolist()


@given(KEYS)
def test_the_compiled_hash_equals_the_plain_hash(keys):
    assert [int(mixed(np.uint64(key))) for key in keys] == [hash_of(key) for key in keys]
    assert all(0 <= slot_of(key) < SLOTS for key in keys)


def test_hash_slots_are_evenly_filled():
    """10 % at 64 fragments of 64 slots is what placement promises (for a million keys in a row)."""
    keys = np.arange(1_000_000, dtype=np.uint64)
    slots = np.array([slot_of(int(key)) for key in keys[:100_000]])
    counts = np.bincount(slots * 64 // SLOTS, minlength=64)
    assert counts.max() < 1.1 * counts.mean()
    assert counts.min() > 0.9 * counts.mean()


@given(KEYS)
def test_distinct_lists_keys_in_order_of_appearance(keys):
    chosen, numbers = distinct(array(keys))
    assert chosen.tolist() == list(dict.fromkeys(keys))
    assert chosen[numbers].tolist() == keys


@given(KEYS)
def test_by_slot_sorts_stably(keys):
    expected = sorted(range(len(keys)), key=lambda number: slot_of(keys[number]))
    assert by_slot(array(keys)).tolist() == expected


@given(KEYS, st.integers(0, SLOTS), st.integers(0, SLOTS))
def test_outside_finds_the_first_key_outside_the_slots(keys, start, stop):
    expected = [i for i, key in enumerate(keys) if not start <= slot_of(key) < stop]
    assert outside(array(keys), start, stop) == (expected[0] if expected else -1)
