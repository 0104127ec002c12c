"""The applications whose runs can be compared."""

from pkgutil import resolve_name

import pytest

from shoal.apps.compare.applications import check_fields
from shoal.errors import UnknownName
from shoal.reports.columns import COLUMNS_OF, TABLE_NOTES
from shoal.runs.application import COMPARED
from shoal.runs.grid import Comparison


def test_each_application_has_options_data_and_columns():
    assert COMPARED.keys() == COLUMNS_OF.keys() - {""} == TABLE_NOTES.keys() - {""}
    for name, kind in COMPARED.items():
        assert resolve_name(kind.application).name == name
        assert kind.data in kind.schema.__struct_fields__


def test_an_unknown_application_is_refused():
    with pytest.raises(UnknownName, match=r"unknown application 'word2vek' .* did you mean"):
        Comparison(application="word2vek")


def test_the_first_seed_is_the_applications():
    first = {name: Comparison(application=name).seeds_of()[0] for name in ("", *COMPARED)}
    assert first == {"": 0, "ctr": 0, "word2vec": 1}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"job": {"l1_penalty": 1}}, "unknown option of ctr 'l1_penalty'"),
        ({"grid": {"sead": [1]}}, "unknown axis of a comparison 'sead'"),
        ({"grid": {"seed": [1, 2]}}, "unknown axis of a comparison 'seed'"),
        ({"grid": {"out": ["a", "b"]}}, "unknown axis of a comparison 'out'"),
    ],
)
def test_an_option_that_is_not_there_or_no_axis_is_refused(values, told):
    check_fields(Comparison(application="ctr", job={"seed": 1}, grid={"lr": [1, 2]}))
    with pytest.raises(UnknownName, match=told):
        check_fields(Comparison(application="ctr", **values))
