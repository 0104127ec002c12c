"""What workers of a job begin with, and which limits of steps they could not keep together."""

import pytest

from shoal.apps.train.setup import check_steps, updates_of
from shoal.errors import InvalidValue
from shoal.runs.job import from_mapping
from shoal.strategies import strategies

UNEVEN = [range(12 * 64), range(11 * 64)]


def job_of(max_steps, **fields):
    return from_mapping({"workers": 2, "max_steps": max_steps, **fields})


LOCAL = {"strategy": "model_averaging", "set": {"exchange": "allreduce"}}


LATER = {"strategy": "local_sgd", "set": {"exchange": "allreduce", "after": 1, "tau": 4}}


@pytest.mark.parametrize("fields", [LOCAL, LATER])
def test_a_limit_that_workers_reach_in_unlike_rounds_is_refused(fields):
    with pytest.raises(InvalidValue, match=r"workers with 11 to 12 batches .* at most 11 steps"):
        check_steps(job_of(12, **fields), UNEVEN)


@pytest.mark.parametrize(
    ("fields", "updates"),
    [
        ({"strategy": "sync"}, 2 * 12),
        ({"strategy": "asgd"}, 2 * 23),
        ({"strategy": "downpour", "set": {"n_push": 5}}, 5 + 5),  # of 24 and of 22 batches
        ({"strategy": "downpour", "set": {"n_push": 5}, "max_steps": 6}, 2 + 2),
        ({"strategy": "diloco", "set": {"tau": 6}}, 2 * 12),
    ],
)
def test_a_schedule_is_as_long_as_there_are_updates(fields, updates):
    job = from_mapping({"workers": 2, "epochs": 2, **fields})
    assert updates_of(job, UNEVEN, strategies[job.strategy]) == updates


@pytest.mark.parametrize(
    ("job", "splits"),
    [
        (job_of(11, **LOCAL), UNEVEN),
        (job_of(0, **LOCAL), UNEVEN),
        (job_of(12, **LOCAL), [range(12 * 64)] * 2),
        (job_of(12, strategy="model_averaging"), UNEVEN),
        (job_of(12, strategy="allreduce"), UNEVEN),
    ],
)
def test_other_limits_are_kept(job, splits):
    check_steps(job, splits)
