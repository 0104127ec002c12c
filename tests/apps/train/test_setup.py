"""What workers of a job begin with, and which limits of steps they could not keep together."""

import pytest

from shoal.apps.train.setup import check_steps
from shoal.errors import InvalidValue
from shoal.jobs.spec import from_mapping

UNEVEN = [range(12 * 64), range(11 * 64)]


def job_of(max_steps, **fields):
    return from_mapping({"workers": 2, "max_steps": max_steps, **fields})


LOCAL = {"strategy": "model_averaging", "set": {"exchange": "allreduce"}}


def test_a_limit_that_workers_reach_in_unlike_rounds_is_refused():
    with pytest.raises(InvalidValue, match=r"workers with 11 to 12 batches .* at most 11 steps"):
        check_steps(job_of(12, **LOCAL), UNEVEN)


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
