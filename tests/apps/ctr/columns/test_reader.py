"""CSV and Parquet files with named columns, as batches of keys."""

import csv
import gzip
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import shoal
from shoal.apps.ctr.columns.reader import TableReader
from shoal.apps.ctr.sources import batch_of
from shoal.apps.ctr.spec import CtrSpec
from shoal.errors import DataCorrupt, DataMissing, InvalidValue

ROWS = {
    "city": ["Oslo", "Bern", None, "Oslo"],
    "age": [25, None, 0, -25],
    "share": [0.5, 1e-9, 3e9, float("inf")],
    "label": [1, 0, 0, 1],
}
CSV = """city,age,share,label
Oslo,25,0.5,1
 Bern ,,1e-9,0
,0,3e9,-1
Oslo,-25,inf,+1
"""
SPEC = CtrSpec(batch_size=3)


@pytest.fixture(params=["csv", "csv.gz", "tsv", "parquet"])
def path(request, tmp_path):
    """The same rows in each format."""
    found = tmp_path / f"rows.{request.param}"
    if request.param == "parquet":
        pq.write_table(pa.table(ROWS), found)
    elif request.param == "csv.gz":
        found.write_bytes(gzip.compress(CSV.encode()))
    else:
        found.write_text(CSV.replace(",", "\t") if request.param == "tsv" else CSV)
    return found


def reader(path, spec=SPEC, share=(0, 1)):
    return TableReader(path, "parquet" if path.suffix == ".parquet" else "csv", spec, share)


def rows_of(batches):
    """(label, {field: key}) of each row."""
    found = []
    for batch in batches:
        ends = [*batch.offsets[1:], len(batch.keys)]
        for label, begin, end in zip(batch.labels, batch.offsets, ends, strict=True):
            fields = batch.fields[begin:end].tolist()
            found.append((float(label), dict(zip(fields, batch.keys[begin:end], strict=True))))
    return found


def test_every_format_gives_the_same_rows(path, tmp_path):
    first = tmp_path / "first.csv"
    first.write_text(CSV)
    mine = reader(path)
    found = mine.columns
    assert (found.categorical, found.numeric, found.labelled) == (["city"], ["age", "share"], True)
    assert [len(each) for each in mine] == [3, 1]
    assert rows_of(mine) == rows_of(reader(first))


def test_a_key_is_of_a_column_and_a_category_or_a_bucket(path):
    rows = rows_of(reader(path))
    assert [label for label, _ in rows] == [1, 0, 0, 1]
    assert [sorted(fields) for _, fields in rows] == [[0, 1, 2], [0, 2], [1, 2], [0, 1]]
    assert rows[0][1][0] == rows[3][1][0] != rows[1][1][0]  # Oslo, Oslo, Bern
    assert len({fields[1] for _, fields in rows if 1 in fields}) == 3  # 25, 0, -25
    keys = [key for _, fields in rows for key in fields.values()]
    assert len(set(keys)) == len(keys) - 1


@pytest.mark.parametrize(
    ("values", "same"),
    [((100, 101), True), ((0.001, 0.00101), True), ((1, 2), False), ((3, 4), False),
     ((1, -1), False), ((0, 1), False), ((1e300, 1e301), False)],
)  # fmt: skip
def test_numbers_are_in_buckets_of_like_size_in_any_unit(values, same, tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": [float(v) for v in values], "label": [0, 1]}), path)
    one, two = (fields[0] for _, fields in rows_of(reader(path)))
    assert bool(one == two) is same


def test_workers_share_the_batches(path):
    spec = replace(SPEC, batch_size=1)
    parts = [rows_of(reader(path, spec, (rank, 3))) for rank in range(3)]
    assert [len(each) for each in parts] == [2, 1, 1]
    whole = rows_of(reader(path, spec))
    assert [parts[0][0], parts[1][0], parts[2][0], parts[0][1]] == whole


def test_the_columns_that_are_named_are_used_and_no_others(path):
    spec = replace(SPEC, categorical="city, age")
    mine = reader(path, spec)
    assert (mine.columns.categorical, mine.columns.numeric) == (["city", "age"], [])
    assert sorted(rows_of(mine)[0][1]) == [0, 1]


def test_labels_of_other_names_and_values(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x,income\n1,<=50K\n2,>50K\n3, >50K\n")
    spec = replace(SPEC, label="income", positive=">50K")
    assert [label for label, _ in rows_of(reader(path, spec))] == [0, 1, 1]
    with pytest.raises(DataCorrupt, match=r"label of 1, 0 or -1, not '<=50K' \(--positive"):
        list(reader(path, replace(spec, positive="")))
    assert not reader(path).columns.labelled  # such a file can be predicted
    pq.write_table(pa.table({"x": [1, 2], "label": [True, False]}), tmp_path / "b.parquet")
    assert [label for label, _ in rows_of(reader(tmp_path / "b.parquet"))] == [1, 0]


def test_other_types_are_categories(tmp_path):
    path = tmp_path / "rows.parquet"
    days = pa.array([date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 1)])
    kinds = pa.array(["a", "b", "a"]).dictionary_encode()
    pq.write_table(pa.table({"day": days, "kind": kinds, "label": [0, 1, 0]}), path)
    rows = rows_of(reader(path))
    assert rows[0][1] == rows[2][1] != rows[1][1]


def test_bad_lines_are_named_or_left_out(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x,y,label\n1,2,0\n1,2\n1,2,3,4\n5,6,1\n")
    with pytest.raises(DataCorrupt, match=r"Expected 3 columns, got 2.* \(advice\)"):
        list(TableReader(path, "csv", SPEC, advice=" (advice)"))
    with pytest.raises(DataCorrupt, match="Expected 3 columns, got 4"):
        list(reader(path, replace(SPEC, skip_bad_lines=1)))
    mine = reader(path, replace(SPEC, skip_bad_lines=2))
    assert ([label for label, _ in rows_of(mine)], mine.skipped) == ([0, 1], 2)


@pytest.mark.parametrize(
    ("text", "options", "error", "says"),
    [
        ("x,label\n", {}, DataCorrupt, "no rows"),
        ("", {}, DataCorrupt, "Empty CSV"),
        ("label\n1\n", {}, DataCorrupt, "no columns beside the label"),
        ("x,label\n1,0\n", {"numeric": "z"}, DataCorrupt, r"no column z \(columns: x, label\)"),
        ("x,label\n1,0\n", {"numeric": "x,label"}, InvalidValue, "named twice"),
        ("x,label\n1,0\n", {"numeric": "x", "categorical": "x"}, InvalidValue, "named twice"),
        ("x,label\na,0\n", {"numeric": "x"}, DataCorrupt, "--categorical names the columns"),
        ("x,label\n1,\n", {}, DataCorrupt, "not nothing|not ''"),
    ],
    ids=str,
)
def test_tables_that_are_refused(text, options, error, says, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(error, match=says):
        list(reader(path, replace(SPEC, **options)))


def test_files_that_are_no_tables_are_named(tmp_path):
    with pytest.raises(DataMissing, match=r"none\.parquet"):
        reader(tmp_path / "none.parquet")
    (tmp_path / "rows.parquet").write_text("x,label\n1,0\n")
    with pytest.raises(DataCorrupt, match=r"rows\.parquet"):
        reader(tmp_path / "rows.parquet")
    (tmp_path / "rows.latin").write_bytes("Ville/État,label\nOslo,1\n".encode("latin-1"))
    with pytest.raises(DataCorrupt, match=r"rows\.latin"):
        reader(tmp_path / "rows.latin")
    damaged = bytearray(gzip.compress(CSV.encode() * 1000))
    damaged[-30] ^= 1
    (tmp_path / "rows.csv.gz").write_bytes(damaged)
    with pytest.raises(DataCorrupt, match=r"rows\.csv\.gz"):
        list(reader(tmp_path / "rows.csv.gz"))


def test_keys_are_hashed_to_fewer_bits(path):
    keys = np.concatenate([each.keys for each in reader(path, replace(SPEC, hash_bits=5))])
    assert keys.max() < 32


@pytest.mark.parametrize("missing", ["", "NA", "?", None])
def test_missing_numbers_of_callers_are_missing(missing):
    spec = replace(SPEC, format="csv", numeric="age", label="label")
    batch = batch_of(spec, {"age": ["31", missing, "4.5"]})
    assert batch.offsets.tolist() == [0, 1, 1]
    assert len(batch.keys) == 2
    for kind in (pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        column = pa.array(["31", missing, "4.5"]).cast(kind)
        assert batch_of(spec, pa.table({"age": column})).keys.tolist() == batch.keys.tolist()
    with pytest.raises(DataCorrupt, match="column 'age' is no number"):
        batch_of(spec, {"age": ["31", "old"]})


def test_truth_values_are_numbers_where_they_are_asked_for():
    spec = replace(SPEC, format="csv", numeric="age", label="label")
    ones = batch_of(spec, {"age": [1, 0, 1]}).keys.tolist()
    assert batch_of(spec, {"age": [True, False, True]}).keys.tolist() == ones


# ------------------------------------------------------- one row has the same keys from anywhere

WHOLE_DAYS = st.dates(date(1900, 1, 1)).map(lambda day: datetime(day.year, day.month, day.day))
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6)
KINDS = {  # of columns of categories: type, values
    "flag": (pa.bool_(), st.booleans()),
    "zip": (pa.string(), st.sampled_from(["00712", "10115", "712", "712.0", "1e5", "1.10", "+47"])),
    "word": (pa.string(), WORDS),
    "code": (pa.int64(), st.integers(-(2**62), 2**62)),
    "holes": (pa.float64(), st.integers(-(2**53), 2**53).map(float)),  # as a reader makes integers
    "share": (pa.float64(), st.floats(allow_nan=False)),
    "narrow": (pa.float32(), st.floats(width=32, allow_nan=False).map(np.float32)),
    "day": (pa.date32(), st.dates()),
    "midnight": (pa.timestamp("ns"), WHOLE_DAYS.filter(lambda day: day.year < 2200)),
    "time": (pa.timestamp("us"), st.datetimes(datetime(1900, 1, 1))),
    "zoned": (
        pa.timestamp("us", "UTC"),
        st.datetimes(datetime(1900, 1, 1), timezones=st.just(UTC)),
    ),
}  # fmt: skip
ROW = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()})


def as_pandas_writes(name, value):
    """The text of a value in a CSV file that DataFrame.to_csv writes."""
    if value is None:
        return ""
    if name == "midnight":  # a column of which all are
        return value.date().isoformat()
    return value.isoformat(" ") if isinstance(value, datetime) else str(value)


def files_of(folder, rows):
    """The rows in files, as several libraries write them."""
    table = pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, (kind, _) in KINDS.items()}
        | {"label": [0] * len(rows)}
    )
    pq.write_table(table, folder / "rows.parquet")
    coded = table.set_column(2, "word", table.column("word").dictionary_encode())
    pq.write_table(coded, folder / "coded.parquet")
    arrow_csv.write_csv(table, folder / "arrow.csv")
    with (folder / "pandas.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow([*KINDS, "label"])
        lines.writerows([*(as_pandas_writes(n, row[n]) for n in KINDS), 0] for row in rows)
    return table, [folder / n for n in ("rows.parquet", "coded.parquet", "arrow.csv", "pandas.csv")]


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=5))
def test_a_row_has_the_same_keys_from_every_file_table_and_value(rows, tmp_path_factory):
    names = [*KINDS]
    expected = [
        [found for name in names if (found := shoal.ctr.key(name, row[name])) is not None]
        for row in rows
    ]
    table, paths = files_of(tmp_path_factory.mktemp("rows"), rows)
    spec = replace(SPEC, categorical=",".join(names), format="csv", batch_size=100)
    batches = {path.name: next(iter(reader(path, spec))) for path in paths}
    batches["table"] = batch_of(spec, table)
    batches["dictionary"] = batch_of(spec, {name: [row[name] for row in rows] for name in names})
    for name, batch in batches.items():
        assert [each.tolist() for each in np.split(batch.keys, batch.offsets[1:])] == expected, name


@settings(max_examples=40, deadline=None)
@given(
    numbers=st.lists(st.none() | st.floats(allow_nan=False), min_size=1, max_size=5),
    flags=st.lists(st.none() | st.booleans(), min_size=5, max_size=5),
)
def test_numbers_have_the_same_keys_from_every_file_table_and_value(
    numbers, flags, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("numbers")
    rows = {"n": numbers, "flag": flags[: len(numbers)], "label": [0] * len(numbers)}
    table = pa.table({**rows, "n": pa.array(numbers, pa.float64()),
                      "flag": pa.array(rows["flag"], pa.bool_())})  # fmt: skip
    pq.write_table(table, folder / "rows.parquet")
    arrow_csv.write_csv(table, folder / "rows.csv")
    spec = replace(SPEC, numeric="n,flag", format="csv", batch_size=100)
    expected = [
        found
        for pair in zip(numbers, rows["flag"], strict=True)
        for name, value in zip(("n", "flag"), pair, strict=True)
        if (found := shoal.ctr.key(name, value, numeric=True)) is not None
    ]
    for batch in (
        next(iter(reader(folder / "rows.parquet", spec))),
        next(iter(reader(folder / "rows.csv", spec))),
        batch_of(spec, table),
        batch_of(spec, rows),
    ):
        assert batch.keys.tolist() == expected
