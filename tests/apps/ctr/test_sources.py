"""A path as a source of rows: one file, a folder or a pattern, in one format."""

import pytest
from msgspec.structs import replace

from shoal.apps.ctr.sources import Source, check_readable, files_of
from shoal.apps.ctr.spec import CtrSpec
from shoal.errors import DataCorrupt, DataMissing

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
        check_readable(replace(SPEC, format="criteo"), str(folder / "rows.txt"))


def test_rows_without_labels_can_be_predicted_only(folder):
    path = folder / "new.csv"
    path.write_text("x\n1\n")
    with pytest.raises(DataCorrupt, match=r"no column 'label' \(--label"):
        check_readable(SPEC, str(path))
    check_readable(SPEC, str(path), labelled=False)
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
