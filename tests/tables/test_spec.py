"""Table specifications: what is refused, how tables are cut, and that they travel."""

import subprocess
import sys
from math import ceil

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue, UnknownName
from shoal.keys import KeyRange, split_evenly, tiles
from shoal.tables.consistency import Consistency, asp, bsp, ssp
from shoal.tables.init import Init
from shoal.tables.spec import (
    FRAGMENT_BYTES,
    ITEM_SIZES,
    SMALLEST_FRAGMENT_BYTES,
    SPANS_MOST,
    Access,
    Span,
    TableSpec,
)

# Rows of a byte to some megabytes, tables of a row to some gigabytes.
specs = st.builds(
    TableSpec,
    st.just("t"),
    st.integers(1, 50) | st.integers(1, 30_000),
    st.sampled_from([(), (1,), (3,), (64, 7), (1024,), (600, 600)]),
    st.sampled_from(["float32", "float16", "float64"]),
)
servers = st.integers(1, 40)


# --- cutting ---------------------------------------------------------------------------------


@given(specs, servers)
def test_fragments_tile_the_table(spec, count):
    cut = spec.cut(count)
    fragments = cut.fragments()
    assert tiles(fragments, spec.rows)
    assert all(len(part) == cut.fragment_rows for part in fragments[:-1])
    assert 0 < len(fragments[-1]) <= cut.fragment_rows


@given(specs, servers)
def test_fragments_are_about_a_mebibyte_each(spec, count):
    """At most a row more; and no server has more than twice its even share of the rows."""
    cut = spec.cut(count)
    assert (cut.fragment_rows - 1) * spec.row_bytes <= FRAGMENT_BYTES
    fragments = cut.fragments()
    sharing = min(count, max(1, spec.nbytes // SMALLEST_FRAGMENT_BYTES))
    shares = split_evenly(len(fragments), count)
    held = [sum(len(fragments[i]) for i in range(p.start, p.stop)) for p in shares]
    assert sum(held) == spec.rows
    assert max(held) <= 2 * ceil(spec.rows / sharing)


@pytest.mark.parametrize(
    ("rows", "count", "fragment_rows"),
    [
        (1 << 20, 1, 1 << 18),  # 4 MiB of float32 in 4 fragments
        (1 << 20, 3, 174_763),  # ... in 6, two for each server
        (1 << 20, 8, 1 << 17),  # ... in 8
        (1 << 13, 8, 1 << 10),  # 32 KiB: 4 KiB for each server
        (1 << 12, 8, 1 << 10),  # 16 KiB: four servers share it, in 4 KiB
        (100, 8, 100),  # too small to share
        (1, 8, 1),
    ],
)
def test_fragment_sizes_equal_those_computed_by_hand(rows, count, fragment_rows):
    assert TableSpec("t", rows).cut(count).fragment_rows == fragment_rows


def test_a_row_is_never_split():
    wide = TableSpec("t", 3, (1 << 20,))
    assert wide.row_bytes == 4 * FRAGMENT_BYTES
    assert wide.cut(8).fragments() == [KeyRange(0, 1), KeyRange(1, 2), KeyRange(2, 3)]


def test_cutting_a_table_again_changes_nothing():
    cut = TableSpec("t", 1 << 20).cut(8)
    assert cut.cut(2) is cut
    assert TableSpec("t", 10, fragment_rows=4).fragments() == [
        KeyRange(0, 4),
        KeyRange(4, 8),
        KeyRange(8, 10),
    ]


def test_a_table_that_was_not_cut_refuses_to_list_fragments():
    with pytest.raises(InvalidValue, match="'t' has not been cut"):
        TableSpec("t", 10).fragments()


# --- sizes -----------------------------------------------------------------------------------


def test_a_specification_tells_its_sizes_in_bytes():
    spec = TableSpec("t", 10, (3, 4), "float16")
    assert (spec.width, spec.row_bytes, spec.nbytes) == (12, 24, 240)
    assert spec.keys == KeyRange(0, 10)
    assert TableSpec("t", 10).width == 1


@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_item_sizes_equal_torchs(dtype):
    assert getattr(torch, dtype).itemsize == ITEM_SIZES[dtype]


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "a table's name has 1 to 200 characters, not 0"),
        ({"name": "x" * 201}, "a table's name has 1 to 200 characters, not 201"),
        ({"rows": 0}, "'t' needs at least one row, not 0"),
        ({"rows": -3}, "'t' needs at least one row, not -3"),
        ({"row_shape": (2, 0)}, r"'t': the sides of row_shape are at least 1, not \(2, 0\)"),
        ({"row_shape": (-1,)}, r"'t': the sides of row_shape are at least 1, not \(-1,\)"),
        ({"dtype": "int64"}, "'t': int64 has no mean; use merge='sum'"),
        ({"dtype": "uint8"}, "'t': uint8 has no mean"),
        ({"dtype": "int64", "merge": "median", "consistency": bsp()}, "'t': int64 has no mean"),
        ({"merge": "median"}, "merge='median' is for dense tables .* not for a dense table with"),
        ({"merge": "median", "rows": 0, "kind": "sparse"}, "not for a sparse table"),
        ({"merge": "trimmed_mean", "consistency": bsp()}, "trim is a share between 0 and 0.5"),
        ({"merge": "trimmed_mean", "consistency": bsp(), "trim": 0.5}, "trim is a share"),
        ({"merge": "median", "consistency": bsp(), "trim": 0.1}, "got 0.1 with 'median'"),
        ({"fragment_rows": -1}, "'t': fragment_rows is at least 0, not -1"),
    ],
)
def test_an_impossible_table_is_refused(fields, message):
    with pytest.raises(InvalidValue, match=message):
        TableSpec(**{"name": "t", "rows": 1, **fields})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TableSpec("t", 1, dtype="float23"), r"unknown dtype 'float23' \(known: bfloat16"),
        (
            lambda: TableSpec("t", 1, merge="max"),
            r"unknown merge 'max' \(known: mean, median, ",
        ),
        (lambda: Init("gauss"), "unknown init 'gauss' .known: constant, normal, uniform, zeros"),
        (lambda: Consistency("bps"), "unknown consistency 'bps' .*did you mean 'bsp'"),
        (lambda: Consistency(apply_at="never"), "unknown apply_at 'never'"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(build, message):
    with pytest.raises(UnknownName, match=message):
        build()


def test_values_at_their_limits_are_allowed():
    assert TableSpec("x" * 200, 1, (1,), "int64", merge="sum").rows == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ssp", -1), "staleness is a number of clocks >= 0, not -1"),
        (("asp", 1), "asp has no staleness"),
        (("bsp", 1, "round_end"), "bsp has no staleness"),
        (("bsp", 0, "arrival"), "bsp applies pushes at the end of their round"),
        (("asp", 0, "round_end"), "asp has no rounds"),
    ],
)
def test_a_contradictory_consistency_is_refused(arguments, message):
    with pytest.raises(InvalidValue, match=message):
        Consistency(*arguments)


def test_consistency_is_made_from_its_name():
    assert bsp() == Consistency("bsp", 0, "round_end")
    assert ssp(3) == Consistency("ssp", 3, "arrival")
    assert ssp(0, "round_end") == Consistency("ssp", 0, "round_end")
    assert asp() == Consistency()


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"rows": 2**63}, "9223372036854775808 rows; at most 1099511627776"),
        ({"rows": 1, "row_shape": (2**28 + 1,)}, "1073741828 bytes in a row; at most 1073741824"),
        ({"rows": 2**40, "row_shape": (5,)}, "bytes; at most 17592186044416"),
        ({"rows": 65537, "fragment_rows": 1}, "65537 fragments; at most 65536"),
        ({"kind": "sparse", "row_shape": (2**40, 2**40)}, "bytes in a row"),
    ],
)
def test_a_table_is_bounded(size, message):
    with pytest.raises(InvalidValue, match=message):
        TableSpec("t", **size)


@pytest.mark.parametrize("servers", [1, 3, 64])
def test_the_largest_table_is_cut_into_few_fragments(servers):
    cut = TableSpec("t", 2**40, (4,)).cut(servers)
    assert 65_000 < len(cut.fragments()) <= 65_536


# --- travelling ------------------------------------------------------------------------------


def test_a_specification_decodes_to_what_was_encoded():
    spec = TableSpec(
        "t", 10, (3,), "float64", Init("normal", 0.5, 2.0, 7), Access("sgd", {"lr": 0.5}), ssp(2)
    ).cut(2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=TableSpec) == spec


@pytest.mark.usefixtures("processes_are_those_of_users")
def test_the_specification_imports_without_torch():
    """DESIGN section 2: a scheduler restarts in a tenth of a second."""
    code = "import sys, shoal.tables.spec; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("spans", "more"),
    [
        ([1], {}),
        ([0, 5, 5], {}),
        ([0, 5, 4], {}),
        ([0, 10], {}),
        ([0], {"kind": "sparse", "rows": 0}),
    ],
    ids=["late", "twice", "unordered", "outside", "sparse"],
)
def test_spans_that_do_not_cut_the_rows_are_refused(spans, more):
    with pytest.raises(InvalidValue, match="spans are for dense tables"):
        TableSpec(**{"name": "t", "rows": 10, **more}, spans=tuple(map(Span, spans)))


def test_a_table_has_a_bounded_number_of_spans():
    TableSpec("t", SPANS_MOST, spans=tuple(map(Span, range(SPANS_MOST))))
    with pytest.raises(InvalidValue, match="spans; at most"):
        TableSpec("t", 1 << 20, spans=tuple(map(Span, range(SPANS_MOST + 1))))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"access": Access("adam")}, "access is 'sgd' (lr=0.1), and was declared as 'adam'"),
        ({"access": Access("sgd", {"lr": 0.5})}, "lr is 0.1, and was declared as 0.5"),
        ({"dtype": "float64"}, "dtype is float32, and was declared as float64"),
        (
            {"spans": (Span(0, "a"), Span(4, "c"))},
            "span 1 is 'b' from row 4, and was declared as 'c' from row 4",
        ),
        (
            {"spans": (Span(0, "a"), Span(5, "b"))},
            "span 1 is 'b' from row 4, and was declared as 'b' from row 5",
        ),
        (
            {"rows": 11, "spans": (Span(0, "a"),)},
            "span 1 is 'b' from row 4, and was declared as missing",
        ),
        ({"rows": 11}, "rows is 10, and was declared as 11"),
    ],
    ids=["access", "option", "dtype", "name", "start", "fewer", "rows"],
)
def test_the_first_difference_of_two_tables_is_named(change, told):
    spec = TableSpec("t", 10, access=Access("sgd", {"lr": 0.1}), spans=(Span(0, "a"), Span(4, "b")))
    other = msgspec.structs.replace(spec, **change)
    assert spec.difference(other) == told
    assert not spec.is_cut_of(other)
    assert spec.difference(msgspec.structs.replace(spec, fragment_rows=3, group="g")) == ""
