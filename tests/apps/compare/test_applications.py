"""The applications whose runs can be compared."""

import pytest

from shoal.apps.compare.applications import SPECS, check_fields
from shoal.errors import UnknownName
from shoal.reports.columns import COLUMNS_OF
from shoal.runs.grid import SOURCES, Comparison


def test_each_application_has_options_data_and_columns():
    assert SPECS.keys() == SOURCES.keys() == COLUMNS_OF.keys() - {""}
    for name, schema in SPECS.items():
        assert SOURCES[name] in schema.__struct_fields__


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
