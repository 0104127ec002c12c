"""shoal.all_reduce: sums and means over all workers, in place."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import shoal
from shoal.client.context import Context
from shoal.errors import InvalidValue

pytestmark = pytest.mark.real


def test_all_workers_have_the_sum_or_the_mean(cluster):
    _, clients = cluster(0, 3)

    def call(client):
        context = Context(client.rank, 3, client)
        total, mean = (torch.full((70_000,), float(client.rank)) for _ in range(2))
        shoal.all_reduce(total, context=context)
        shoal.all_reduce(mean, "mean", context=context)
        return total.unique().tolist(), mean.unique().tolist()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(call, clients)) == [([3.0], [1.0])] * 3


def test_another_operation_is_refused(cluster):
    _, [client] = cluster(0, 1)
    with pytest.raises(InvalidValue, match="op is 'sum' or 'mean', not 'max'"):
        shoal.all_reduce(torch.ones(1), "max", context=Context(0, 1, client))
