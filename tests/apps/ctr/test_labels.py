"""Labels of lines: which of them is a click."""

import gzip
from math import nan

import pytest
from msgspec.structs import replace

from shoal.apps.ctr.labels import Classes, classes_of, with_classes
from shoal.apps.ctr.spec import CtrSpec
from shoal.errors import DataCorrupt, InvalidValue

SPEC = CtrSpec(format="libsvm")


@pytest.mark.parametrize(
    ("classes", "labels", "found"),
    [
        (Classes(), (1, 0, -1), [1, 0, -1]),
        (Classes(2, 1), (1, 2), [0, 1]),
        (Classes(1, 2), (1, 2), [1, 0]),
        (Classes(3), (1, 2, 3, -0.5), [0, 0, 1, 0]),  # one class against all others
        (Classes(0.1, nan), (0.1, 0.2), [1, 0]),
    ],
)
def test_a_label_is_a_click_or_not(classes, labels, found):
    assert [classes.of(label) for label in labels] == found


@pytest.mark.parametrize(
    ("classes", "label", "says"),
    [
        (Classes(), 2, "expected a label of 1, 0 or -1, not '2'; models have two classes: --pos"),
        (Classes(), 0.5, "not '0.5'"),
        (Classes(2, 1), 0, "expected a label of 2 or 1, not '0'; models have two classes"),
    ],
)
def test_other_labels_are_refused(classes, label, says):
    with pytest.raises(ValueError, match=says):
        classes.of(label)


def test_labels_that_a_run_names_are_numbers():
    found = classes_of(replace(SPEC, positive="+2", negative="1.0"))
    assert (found.positive, found.negative) == (2, 1)
    with pytest.raises(InvalidValue, match="--positive 'yes': labels of libsvm are numbers"):
        classes_of(replace(SPEC, positive="yes"))
    for options, says in (
        ({"negative": "1"}, "--negative needs --positive"),
        ({"positive": "1", "negative": "1"}, "name the same label, '1'"),
    ):
        with pytest.raises(InvalidValue, match=says):
            CtrSpec(**options)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1 3:1\n2 4:1\n", ("2", "1")),
        ("2 4:1\n", ("2", "1")),
        ("# of 0 and 3\n\n1.0\t3:1\n2.000000 4:1 # 0\n", ("2", "1")),
        ("\ufeff2 3:1\n1 4:1\n", ("2", "1")),
        ("1 3:1\nx 4:1\n2 5:1\n", ("2", "1")),  # the malformed line is refused when it is read
        ("1 3:1\n0 4:1\n", ("", "")),
        ("1 3:1\n", ("", "")),
        ("1 3:1\n2 4:1\n0 5:1\n", ("", "")),
        ("1 3:1\n2 4:1\n3 5:1\n", ("", "")),
        ("", ("", "")),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_labels_of_1_and_2_are_found(tmp_path, text, found, packed):
    path = tmp_path / "rows.libsvm"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    spec = with_classes(SPEC, path)
    assert (spec.positive, spec.negative) == found
    given = replace(SPEC, positive="1")
    assert with_classes(given, path) is given


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "rows.libsvm.gz"
    path.write_bytes(gzip.compress(b"1 3:1\n" * 1000)[:-9])
    with pytest.raises(DataCorrupt, match=r"rows\.libsvm\.gz: at byte"):
        with_classes(SPEC, path)
