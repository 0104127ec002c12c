"""A path as a source of rows: one file, a folder or a pattern, in one format."""

import pyarrow
import pytest
from msgspec.structs import replace
from scipy.sparse import csr_matrix

from shoal.apps.ctr.sources import (
    Source,
    batch_of,
    check_alike,
    check_trainable,
    files_of,
    to_predict,
)
from shoal.apps.ctr.spec import CtrSpec
from shoal.errors import DataCorrupt, DataMissing, InvalidValue

SPEC = CtrSpec(batch_size=2)


@pytest.fixture
def folder(tmp_path):
    for name, labels in (("b.csv", "10"), ("a.csv", "011"), (".hidden", "1"), ("_done", "")):
        (tmp_path / name).write_text("x,label\n" + "".join(f"{name},{each}\n" for each in labels))
    (tmp_path / "more").mkdir()
    return tmp_path


def test_a_folder_and_a_pattern_are_files_in_the_order_of_their_names(folder):
    assert [each.name for each in files_of(str(folder))] == ["a.csv", "b.csv"]
    assert [each.name for each in files_of(f"{folder}/*.csv")] == ["a.csv", "b.csv"]
    assert [each.name for each in files_of(f"{folder}/b*")] == ["b.csv"]
    odd = folder / "odd[1].csv"
    odd.write_text("x,label\n1,0\n")
    assert files_of(str(odd)) == [odd]  # a file of that name comes first
    for path in (folder / "more", f"{folder}/*.parquet"):
        with pytest.raises(DataMissing, match="no files there"):
            files_of(str(path))


def test_the_rows_of_all_files_come_one_file_after_the_other(folder):
    source = Source(SPEC, str(folder))
    assert source.kind == "csv"
    assert [each.labels.tolist() for each in source] == [[0, 1], [1], [1, 0]]
    parts = [list(Source(SPEC, str(folder), (rank, 2))) for rank in range(2)]
    assert [[len(each) for each in part] for part in parts] == [[2, 2], [1]]


def test_a_run_remembers_the_format_and_the_columns(folder):
    spec = Source(SPEC, str(folder)).described()
    assert (spec.format, spec.label, spec.categorical, spec.numeric) == ("csv", "label", "x", "")
    (folder / "rows.txt").write_text("1 3:0.5\n0 4:1\n")
    spec = Source(SPEC, str(folder / "rows.txt")).described()
    assert (spec.format, spec.label, spec.categorical) == ("libsvm", "", "")
    with pytest.raises(DataCorrupt, match="expected 40 fields"):
        check_trainable(replace(SPEC, format="criteo"), str(folder / "rows.txt"))


def test_rows_without_labels_can_be_predicted_only(folder):
    path = folder / "new.csv"
    path.write_text("x\n1\n")
    with pytest.raises(DataCorrupt, match=r"no column 'label' \(--label"):
        check_trainable(SPEC, str(path))
    assert not Source(SPEC, str(path)).labelled


def test_bad_lines_of_all_files_are_counted_together(folder):
    for name in ("a.csv", "b.csv"):
        with (folder / name).open("a") as file:
            file.write("1,0,1\n")
    source = Source(replace(SPEC, skip_bad_lines=2), str(folder))
    assert sum(len(each) for each in source) == 5
    assert source.skipped == 2
    with pytest.raises(DataCorrupt, match=r"b\.csv"):
        list(Source(replace(SPEC, skip_bad_lines=1), str(folder)))


CRITEO = "\t".join(["7"] * 13 + ["a0"] * 26)
LIBSVM = replace(SPEC, format="libsvm")


def same(one, other):
    for name in ("offsets", "keys", "values", "fields"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name


@pytest.mark.parametrize(
    ("kind", "rows", "labelled"),
    [
        ("libsvm", ["3:1 7:0.5", "", "9:2"], ["1 3:1 7:0.5", "0", "1 9:2"]),
        ("criteo", [CRITEO, "\t" + CRITEO[2:]], ["1\t" + CRITEO, "0\t\t" + CRITEO[2:]]),
        ("dummy", ["3 7", "9"], ["1 3 7", "0 9"]),
    ],
)
@pytest.mark.parametrize("bits", [0, 12])
def test_rows_with_and_without_labels_are_the_same(tmp_path, kind, rows, labelled, bits):
    spec = replace(SPEC, format=kind, batch_size=9, hash_bits=bits)
    files = [tmp_path / name for name in ("new", "old")]
    for path, lines in zip(files, (rows, labelled), strict=True):
        path.write_text("\n".join(lines) + "\n")
    new, old = (to_predict(spec, str(path), "auto", False) for path in files)
    assert old.labelled
    if kind == "dummy":  # nothing tells
        assert new.labelled
        new = to_predict(spec, str(files[0]), "auto", True)
    assert not new.labelled
    [mine], [theirs] = new, old
    assert theirs.labels.tolist() == [1, 0, 1][: len(rows)]
    same(mine, theirs)
    same(batch_of(spec, rows, False if kind == "dummy" else None), theirs)
    same(batch_of(spec, labelled), theirs)


def test_formats_with_the_same_keys_are_read_and_others_refused(folder):
    files = {"dummy": "1 3\n", "libsvm": "0\n1 3:1\n", "criteo": f"1\t{CRITEO}\n"}
    for name, text in files.items():
        (folder / name).write_text(text)

    def kind(trained, name, form="auto"):
        return to_predict(replace(SPEC, format=trained), str(folder / name), form, False).kind

    assert [kind("libsvm", name) for name in ("dummy", "libsvm")] == ["dummy", "libsvm"]
    assert kind("parquet", "a.csv") == "csv"
    assert kind("csv", "dummy", "csv") == "csv"
    for trained, name, form in (
        ("libsvm", "criteo", "auto"),
        ("criteo", "libsvm", "auto"),
        ("dummy", "dummy", "criteo"),
        ("csv", "a.csv", "libsvm"),
    ):
        with pytest.raises(InvalidValue, match=f"the run was trained on {trained}, and keys of"):
            kind(trained, name, form)


class Frame:
    """A table of another library."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, schema=None):
        return self.table.__arrow_c_stream__(schema)


def test_rows_of_callers(folder):
    table = {"x": ["a.csv", "b.csv"], "other": [1, 2]}
    spec = replace(SPEC, format="csv", label="label", categorical="x")
    read = next(iter(Source(spec, str(folder / "a.csv"))))
    for rows in (table, pyarrow.table(table), Frame(pyarrow.table(table))):
        batch = batch_of(spec, rows)
        assert batch.keys[0] == read.keys[0] != batch.keys[1]
        assert len(batch) == 2
    matrix = csr_matrix(([1.0, 0.5, 2.0], ([0, 0, 2], [3, 7, 9])), shape=(3, 10))
    for bits in (0, 12):
        spec = replace(LIBSVM, hash_bits=bits)
        for rows in (matrix, matrix.tocsc(), matrix.tocoo()):
            same(batch_of(spec, rows), batch_of(spec, ["3:1 7:0.5\n", "\n", "9:2"]))
    assert len(batch_of(LIBSVM, [""])) == len(batch_of(LIBSVM, ["\n"])) == 1  # no features


@pytest.mark.parametrize(
    ("format", "rows", "error", "says"),
    [
        ("libsvm", {"x": [1]}, InvalidValue, "give it lines, not a table"),
        ("csv", ["1,2"], InvalidValue, "give it a table, not lines"),
        ("libsvm", 3, InvalidValue, "not int"),
        ("libsvm", "3:1 4:1", InvalidValue, "not str"),
        ("libsvm", csr_matrix([[1.0, float("nan")]]), InvalidValue, "finite values"),
        ("libsvm", csr_matrix([[1.0, 1e300]]), InvalidValue, "finite values"),
        ("libsvm", csr_matrix([[1j]]), InvalidValue, "finite values"),
        ("libsvm", csr_matrix((0, 5)), InvalidValue, "has to have rows"),
        ("libsvm", [], InvalidValue, "not list"),
        ("libsvm", [3], InvalidValue, "not list"),
        ("csv", {"x": "a"}, InvalidValue, "rows: a column is a list of values: got text"),
        ("csv", {"x": 3}, InvalidValue, "rows: a column is a list of values"),
        ("libsvm", ["1 3:1", ""], InvalidValue, "2 lines have 1 rows"),
        ("libsvm", ["3:1\n4:1"], InvalidValue, "1 lines have 2 rows"),
        ("libsvm", ["1 3:1", "4:1"], DataCorrupt, "rows: line 2: expected a label"),
        ("csv", {"y": [1]}, DataCorrupt, "rows: no column x"),
        ("csv", {"x": []}, DataCorrupt, "rows: no rows"),
        ("csv", {"x": [1], "y": [1, 2]}, DataCorrupt, "rows: "),
    ],
)
def test_rows_of_another_kind_are_refused(format, rows, error, says):
    columns = {"categorical": "x"} if format == "csv" else {}
    with pytest.raises(error, match=says):
        batch_of(replace(SPEC, format=format, **columns), rows)


@pytest.mark.parametrize(
    ("trained", "name", "says"),
    [
        ("csv", "rows.parquet", "it is parquet, and the run's format is csv"),
        ("csv", "rows.libsvm", "no column 'label'"),
        ("libsvm", "a.csv", "it is csv, and the run's format is libsvm"),
        ("libsvm", "rows.dummy", "expected index:value"),
        ("dummy", "rows.libsvm", "expected an index of 0 or more"),
    ],
)
def test_files_of_a_run_have_one_format(folder, trained, name, says):
    (folder / "rows.libsvm").write_text("1 3:1\n")
    (folder / "rows.dummy").write_text("1 3 4\n")
    (folder / "rows.parquet").write_bytes(b"PAR1")
    spec = replace(SPEC, format=trained, train="train.libsvm")
    with pytest.raises(DataCorrupt, match=says):
        check_all(spec, str(folder / name))


def check_all(spec, path):
    check_alike(spec, path)
    check_trainable(spec, path)


def test_a_format_that_is_given_counts_more_than_a_name(folder):
    (folder / "rows.tsv").write_text("1 3:1\n")
    rows = str(folder / "rows.tsv")
    check_trainable(LIBSVM, rows)
    check_alike(replace(LIBSVM, train="train.tsv"), rows)
    for train in ("train.libsvm", ""):  # or the sample
        with pytest.raises(DataCorrupt, match="it is csv, and the run's format is libsvm"):
            check_alike(replace(LIBSVM, train=train), rows)


def test_advice_is_that_of_the_command(folder):
    """Training can leave lines out, and predicting cannot: it writes a line for each."""
    path = folder / "rows.libsvm"
    path.write_text("1 3:1\n1 x\n")
    with pytest.raises(DataCorrupt, match=r"line 2: .*--skip-bad-lines"):
        list(Source(LIBSVM, str(path)))
    with pytest.raises(DataCorrupt, match=r"line 2: expected an index of 0 or more, not 'x'$"):
        list(to_predict(LIBSVM, str(path), "auto", False))
    path.write_text("3 4\n")
    with pytest.raises(DataCorrupt, match=r"line 1: .*\(--unlabelled says that"):
        list(to_predict(replace(SPEC, format="dummy"), str(path), "auto", False))
