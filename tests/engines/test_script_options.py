"""What is said of a script's optimizers goes to its workers through the environment, unchanged."""

import pytest

from shoal.client.defaults import OptimizerDefaults
from shoal.engines.options import WorkerRole
from shoal.engines.script_options import Resumed, defaults_from, resumed_from, variables_of
from shoal.errors import InvalidValue


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "ssp", "staleness": 3},
        {"strategy": "my own.py:Mine", "set": {"tau": 5, "mode": "a b'c", "on": True, "x": 1e-7}},
        {"optimizer_options": {"lr": 0.05, "betas": [0.9, 0.95], "line_search_fn": "strong_wolfe"}},
    ],
    ids=str,
)
def test_options_arrive_as_they_were_given(options):
    found = defaults_from(variables_of(WorkerRole(**options)))
    assert found == OptimizerDefaults(
        options.get("strategy", ""),
        options.get("set", {}),
        options.get("staleness", 0),
        options.get("optimizer_options", {}),
    )


def test_an_environment_without_them_says_nothing():
    assert defaults_from({}) == defaults_from(variables_of(WorkerRole())) == OptimizerDefaults()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SHOAL_STALENESS", "-1", "SHOAL_STALENESS='-1' is not a whole number"),
        ("SHOAL_STALENESS", "two", "SHOAL_STALENESS='two' is not a whole number"),
        ("SHOAL_SET", "tau", "SHOAL_SET: 'tau' is not NAME=VALUE"),
        (
            "SHOAL_SET",
            "tau='5",
            'SHOAL_SET="tau=\'5" is not NAME=VALUE words: No closing quotation',
        ),
        ("SHOAL_OPTIMIZER_OPTIONS", "lr 0.1", "SHOAL_OPTIMIZER_OPTIONS: 'lr' is not NAME=VALUE"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(name, value, told):
    with pytest.raises(InvalidValue, match=told):
        defaults_from({name: value})


def test_the_checkpoint_that_a_run_continues_from_arrives_as_it_was():
    before = Resumed(40, ("params.float32", "counts"), ((2, 25), (3, 15)))
    assert resumed_from(before.variables) == before
    assert resumed_from({}) == Resumed()
    with pytest.raises(InvalidValue, match="SHOAL_RESUMED is not as --resume sets it"):
        resumed_from({"SHOAL_RESUMED": '{"clock": "late"}'})
