"""What simulated time goes by, and what is not simulated."""

import pytest

from shoal.errors import InvalidValue
from shoal.runs.job import from_mapping
from shoal.runs.simulated_time import SimulatedTime, check_simulated


@pytest.mark.parametrize("pace", ["fast", "1,,2", "0", "-1", "1,nan", "inf", 0.0, [1.0, -2.0]])
def test_a_pace_is_a_list_of_numbers_above_0(pace):
    with pytest.raises(InvalidValue, match="is no list of numbers above 0"):
        SimulatedTime(pace=pace)


@pytest.mark.parametrize(
    ("pace", "paces"),
    [
        ("", [1.0, 1.0]),
        ([], [1.0, 1.0]),
        ("3", [3.0, 1.0]),
        (3.0, [3.0, 1.0]),
        ([1, 4], [1.0, 4.0]),
    ],
)
def test_workers_without_a_pace_have_the_usual_one(pace, paces):
    assert SimulatedTime(pace=pace).paces(2) == paces


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"checkpoint_every": 2}, "without checkpoints"),
        ({"on_worker_loss": "drop"}, "without the loss of workers"),
    ],
)
def test_what_is_not_simulated_is_refused(fields, told):
    with pytest.raises(InvalidValue, match=told):
        check_simulated(from_mapping(fields), SimulatedTime())


def test_there_are_no_more_paces_than_workers():
    with pytest.raises(InvalidValue, match="is of more than 2 workers"):
        check_simulated(from_mapping({"workers": 2}), SimulatedTime(pace="1,2,3"))
