"""Sums over real worker processes' connections (here: clients of one process)."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from shoal.errors import InvalidValue, RingBroken

pytestmark = pytest.mark.real


def together(clients, call):
    """Every client's `call(client)`, at once."""
    with ThreadPoolExecutor(len(clients)) as pool:
        return [each.result(30) for each in [pool.submit(call, client) for client in clients]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("elements", [1, 7, 5000, 3_000_017])
def test_all_reduce_sums_over_the_workers(cluster, dtype, elements):
    _, clients = cluster(0, 3)

    def add(client):
        tensor = torch.arange(elements).remainder(32).to(dtype) * (client.rank + 1)
        client.blocking.all_reduce(tensor)
        return tensor

    found = together(clients, add)
    for each in found:
        assert torch.equal(each, torch.arange(elements).remainder(32).to(dtype) * 6)


def test_all_reduce_means_may_overlap_and_work_with_one_worker(cluster):
    _, clients = cluster(1, 2)

    def several(client):
        tensors = [torch.full((n,), float(client.rank)) for n in (10, 200_000, 3)]
        futures = [client.all_reduce(each, mean=True) for each in tensors]
        for each in futures:
            each.wait(30)
        return [each.unique().tolist() for each in tensors]

    assert together(clients, several) == [[[0.5]] * 3] * 2
    _, [alone] = cluster(0, 1)
    for tensor in (torch.tensor([4.0]), torch.empty(0)):
        alone.blocking.all_reduce(tensor, mean=True)
        assert tensor.tolist() in ([4.0], [])


def test_tensors_that_cannot_be_summed_are_refused(cluster):
    _, [client] = cluster(0, 1)
    for wrong, words in [
        (torch.ones(4, 4).T[:2], "contiguous"),
        (torch.ones(3, dtype=torch.bool), "a tensor of numbers"),
        ([1.0, 2.0], "a tensor of numbers, not list"),
    ]:
        with pytest.raises(InvalidValue, match=words):
            client.all_reduce(wrong)
    with pytest.raises(InvalidValue, match=r"int64 tensors have no mean"):
        client.all_reduce(torch.ones(2, dtype=torch.int64), mean=True)


def test_tensors_of_different_sizes_fail_for_every_worker(cluster):
    _, clients = cluster(0, 2)

    def add(client):
        with pytest.raises(InvalidValue, match="all have to ask for the same sums"):
            client.all_reduce(torch.ones(10 + client.rank)).wait(30)

    together(clients, add)


def test_a_worker_that_leaves_fails_the_others_sums(cluster):
    _, clients = cluster(0, 3)
    tensors = [torch.ones(10) for _ in clients[1:]]
    waiting = [c.all_reduce(t) for c, t in zip(clients[1:], tensors, strict=True)]
    clients[0].close()
    for each in waiting:
        with pytest.raises(RingBroken, match="worker-0 has ended its work without this allreduce"):
            each.wait(30)
