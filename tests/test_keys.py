"""Key ranges against sets of keys."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue
from shoal.keys import KeyRange, cut_at_edges, split_evenly, tiles

ranges = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda pair: KeyRange(*sorted(pair)))


def keys_of(part: KeyRange) -> set[int]:
    return set(range(part.start, part.stop))


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (-2, -1)])
def test_a_range_is_ordered_and_not_negative(start, stop):
    with pytest.raises(InvalidValue, match=rf"0 <= start <= stop, not \[{start}, {stop}\)"):
        KeyRange(start, stop)


@given(ranges, ranges)
def test_range_arithmetic_equals_that_of_sets(one, other):
    assert len(one) == len(keys_of(one))
    assert keys_of(one & other) == keys_of(one) & keys_of(other)
    assert {key for key in range(-1, 14) if key in one} == keys_of(one)
    if len(one) and len(other):
        assert one.covers(other) == (keys_of(one) >= keys_of(other))


def test_a_range_covers_itself_and_nothing_is_in_an_empty_one():
    assert KeyRange(2, 6).covers(KeyRange(2, 6))
    assert not KeyRange(2, 6).covers(KeyRange(2, 7))
    assert not KeyRange(2, 6).covers(KeyRange(1, 6))
    assert 3 not in KeyRange(3, 3)
    assert "3" not in KeyRange(2, 6)


def test_ranges_sort_print_and_encode():
    assert sorted([KeyRange(4, 5), KeyRange(1, 9), KeyRange(1, 2)])[0] == KeyRange(1, 2)
    assert str(KeyRange(2, 6)) == "[2:6)"
    part = KeyRange(2, 6)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=KeyRange) == part


def test_a_decoded_range_is_checked():
    with pytest.raises(InvalidValue):
        msgspec.msgpack.decode(msgspec.msgpack.encode([6, 2]), type=KeyRange)


@given(st.integers(0, 60), st.integers(1, 12))
def test_an_even_split_tiles_the_range_with_sizes_within_one(total, pieces):
    parts = split_evenly(total, pieces)
    sizes = [len(part) for part in parts]
    assert len(parts) == pieces
    assert [key for part in parts for key in range(part.start, part.stop)] == list(range(total))
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("pieces", [0, -1])
def test_a_split_into_no_pieces_is_refused(pieces):
    with pytest.raises(InvalidValue, match=f"into {pieces} pieces"):
        split_evenly(10, pieces)


@given(ranges, st.lists(ranges, max_size=5))
def test_a_piece_is_inside_or_outside_each_range(whole, parts):
    pieces = cut_at_edges(whole, parts)
    assert [key for piece in pieces for key in range(piece.start, piece.stop)] == list(
        range(whole.start, whole.stop)
    )
    for piece in pieces:
        assert len(piece)
        for part in parts:
            assert keys_of(piece & part) in (set(), keys_of(piece))


def test_overlapping_ranges_are_cut_into_the_fewest_pieces():
    parts = [KeyRange(0, 4), KeyRange(0, 9), KeyRange(7, 30), KeyRange(12, 14)]
    assert cut_at_edges(KeyRange(2, 9), parts) == [KeyRange(2, 4), KeyRange(4, 7), KeyRange(7, 9)]


@pytest.mark.parametrize(
    ("edges", "answer"),
    [
        ([(0, 4), (4, 10)], True),
        ([(0, 10)], True),
        ([], False),
        ([(0, 4), (5, 10)], False),  # a gap
        ([(0, 5), (4, 10)], False),  # an overlap
        ([(4, 10), (0, 4)], False),  # out of order
        ([(0, 4), (4, 4), (4, 10)], False),  # an empty one
        ([(0, 4), (4, 9)], False),
        ([(0, 4), (4, 11)], False),
        ([(1, 10)], False),
    ],
)
def test_tiles_tells_whether_ranges_cover_without_overlap(edges, answer):
    assert tiles([KeyRange(*each) for each in edges], 10) is answer
