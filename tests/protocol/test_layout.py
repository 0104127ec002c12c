"""Sizes of payloads, and where rows may be cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.keys import KeyRange
from shoal.protocol.layout import Layout, count_of
from shoal.tables.spec import TableSpec

LAYOUT = Layout(TableSpec("w", 100, (3,), fragment_rows=4))  # 12 bytes a row


@pytest.mark.parametrize(
    ("part", "nbytes"),
    [
        ((KeyRange(0, 0),), 0),
        ((KeyRange(2, 10),), 96),
        ((KeyRange(2, 10), -1, 2), 288),
        ((KeyRange(2, 10), 0), 0),
        ((KeyRange(2, 10), 3), 3 * 20),
        ((KeyRange(2, 10), 3, 1), 3 * 32),
    ],
)
def test_a_part_has_its_keys_and_its_rows_with_their_slots(part, nbytes):
    assert LAYOUT.part_bytes(*part) == nbytes


@given(some.integers(0, 99), some.integers(1, 100), some.integers(1, 500), some.integers(0, 2))
def test_pieces_cover_the_rows_and_are_cut_at_edges_of_fragments(start, count, most, slots):
    rows = KeyRange(start, start + count)
    pieces = list(LAYOUT.pieces(rows, most, slots))
    assert (pieces[0].start, pieces[-1].stop) == (rows.start, rows.stop)
    for one, other in pairwise(pieces):
        assert one.stop == other.start
        assert one.stop % 4 == 0
    least = LAYOUT.nbytes(4, slots)  # a fragment is not cut
    assert all(LAYOUT.nbytes(len(piece), slots) <= max(most, least) for piece in pieces)


def test_views_and_offsets_agree():
    values = memoryview(bytearray(range(48)))
    assert LAYOUT.view(values, 1, 3) == values[slice(*LAYOUT.span(1, 3))]
    assert LAYOUT.rows(*LAYOUT.span(1, 3)) == (1, 3)
    assert LAYOUT.problem(4, values) == ""
    assert LAYOUT.problem(3, values) == "3 rows of 12 bytes need 36 bytes, not 48"
    assert count_of(memoryview(bytes(24))) == 3
