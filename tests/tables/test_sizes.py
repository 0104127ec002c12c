"""Sizes as text, and what tables take."""

import pytest

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.tables.consistency import bsp
from shoal.tables.opening import bytes_needed, open_shard
from shoal.tables.sizes import bytes_of, size
from shoal.tables.spec import Access, TableSpec

ADAM = Access("adam")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1", 1), ("500M", 500_000_000), (" 2 gib ", 2 << 30), ("0.5KiB", 512), ("3TB", 3 * 10**12)],
)
def test_sizes_are_read(text, nbytes):
    assert bytes_of(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "GiB", "-1", "4 gigs", "1e9", "0.5", "4i", "9999999TiB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InvalidValue, match="size"):
        bytes_of(text)


def test_a_size_is_written_so_that_it_can_be_read_again():
    assert [bytes_of(size(n)) for n in (3 << 10, 5 << 20, 3 << 40)] == [3 << 10, 5 << 20, 3 << 40]


@pytest.mark.parametrize(
    ("spec", "nbytes"),
    [
        (TableSpec("w", 1000, (4,), fragment_rows=100), 16 * (1000 + 100)),
        (TableSpec("w", 1000, (4,), access=ADAM, fragment_rows=100), 16 * (3 * 1000 + 100)),
        (TableSpec("w", 1000, (4,), consistency=bsp(), fragment_rows=100), 16 * 2000),
    ],
)
def test_a_dense_table_takes_its_rows_their_state_and_staging(spec, nbytes):
    assert bytes_needed(spec, spec.keys) == open_shard(spec, spec.keys).nbytes == nbytes


def test_a_part_of_a_dense_table_takes_a_part():
    spec = TableSpec("w", 1000, (4,), fragment_rows=100)
    shard = open_shard(spec, spec.keys)
    parts = shard.split([KeyRange(0, 500), KeyRange(500, 1000)])
    assert [part.nbytes for part in parts] == [16 * 600, 16 * 600]


def test_a_bounded_table_takes_from_the_beginning_what_it_may_take():
    spec = TableSpec("e", kind="sparse", row_shape=(4,), access=ADAM, max_rows=4096).cut(1)
    half = KeyRange(0, 2048)
    shard = open_shard(spec, half)
    assert shard.nbytes >= 2048 * 4 * 12
    assert 0 < bytes_needed(spec, half) < shard.nbytes  # the state is not known before
    assert shard.new_row_bytes == 0


def test_sparse_and_custom_tables_are_only_known_to_be_small():
    sparse = TableSpec("e", kind="sparse", row_shape=(4,)).cut(1)
    assert bytes_needed(sparse, sparse.keys) == open_shard(sparse, sparse.keys).nbytes
    custom = TableSpec("c", kind="custom", access=Access("unknown")).cut(1)
    assert bytes_needed(custom, custom.keys) == 0
