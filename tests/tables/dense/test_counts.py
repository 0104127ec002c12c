"""UpdateCounts against a list with a number for each row."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shoal.keys import KeyRange
from shoal.tables.dense.counts import UpdateCounts
from tests.tables.dense.pushes import table

ROWS, FRAGMENT = 20, 8
parts = st.tuples(st.integers(0, ROWS - 1), st.integers(1, ROWS)).map(
    lambda edges: KeyRange(edges[0], min(ROWS, edges[0] + edges[1]))
)


@given(st.sets(st.integers(1, ROWS - 1)), st.lists(st.lists(parts, min_size=1, max_size=3)))
def test_equals_a_count_for_each_row(edges, rounds):
    spec = table(ROWS, FRAGMENT, spans=(0, *sorted(edges)))
    fragments = spec.fragments()
    counts, plain = UpdateCounts(spec, fragments), [0] * ROWS
    cells = {
        row: [r for r in range(ROWS) if _cell(r, edges) == _cell(row, edges)] for row in range(ROWS)
    }
    for named in rounds:
        touched = {
            other for part in named for r in range(part.start, part.stop) for other in cells[r]
        }
        for row in touched:
            plain[row] += 1
        for index, fragment in enumerate(fragments):
            here = [fragment & part for part in named if len(fragment & part)]
            if here:
                counts.count(index, here)
        for index, fragment in enumerate(fragments):
            told = [
                count for rows, count in counts.steps(index, fragment) for _ in range(len(rows))
            ]
            assert told == plain[fragment.start : fragment.stop]
            joined = [count for _, count in counts.steps(index, fragment)]
            assert all(one != other for one, other in pairwise(joined))
            assert counts.most(index, fragment) == max(told)
            assert (index in counts.apart) == (len(set(told)) > 1)
    again = UpdateCounts(spec, fragments, counts.between(0, len(fragments)))
    assert (again.between(0, 3), again.apart) == (counts.between(0, 3), counts.apart)


def _cell(row, edges):
    return row // FRAGMENT, sum(edge <= row for edge in edges)
