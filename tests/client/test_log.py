"""`shoal.log`: of which run, and by which names."""

from types import SimpleNamespace

import pytest

import shoal
from shoal.client.context import Context, set_current
from shoal.errors import InvalidValue, UsageError


@pytest.fixture
def context(tmp_path):
    """This process is worker 1 of a run."""
    client = SimpleNamespace(
        name="worker-1", closed=False, close=lambda: None, fail=lambda error: None,
        in_fork=False, check_process=lambda: None,
    )  # fmt: skip
    context = Context(1, 2, client, began_at=40, run_dir=tmp_path / "run")
    set_current(context)
    yield context
    context.close()


def test_before_a_run_is_joined_and_after_it_is_left_that_is_said(context):
    shoal.log(loss=1.0)
    context.close()
    with pytest.raises(UsageError, match=r"call shoal\.init\(\) first"):
        shoal.log(loss=0.5)
    assert shoal.load_run(context.run_dir).logged[1]["loss"] == [1.0]


def test_names_are_keywords_or_in_a_mapping(context):
    shoal.log({"valid/loss": 2.0}, loss=3.0, step=1)
    shoal.log({"loss": 1.0})
    shoal.log(figures=4.0)
    table = shoal.load_run(context.run_dir).logged[1]
    assert table.pop("t") == sorted(shoal.load_run(context.run_dir).logged[1]["t"])
    assert table == {
        "step": [1, 2, 3],
        "valid/loss": [2.0, None, None],
        "loss": [3.0, 1.0, None],
        "figures": [None, None, 4.0],
    }


def test_the_first_step_is_that_of_a_run_that_goes_on(context):
    shoal.log(loss=1.0)
    assert shoal.load_run(context.run_dir).logged[1]["step"] == [40]


@pytest.mark.parametrize("figures", [None, {}])
def test_a_call_without_figures_is_refused(figures, context):
    with pytest.raises(InvalidValue, match="with a number each, such as loss"):
        shoal.log(figures)
    assert not context.run_dir.exists()


def test_a_name_that_is_given_twice_is_refused(context):
    with pytest.raises(InvalidValue, match="loss is given twice"):
        shoal.log({"loss": 1.0}, loss=1.0)
