"""On links on which a piece takes longer than the patience of its receiver, nothing goes twice."""

import pytest
import torch

from shoal.simulation.network import NetworkOptions
from tests.strategies.problems import train

SIZE = 2_000_000  # float64: four pieces of 4 MiB, which take 4 s each
SLOW = NetworkOptions(
    jitter_s=0.0, host_bandwidth=1e6, bandwidth=1e12, link_bytes=1 << 40, streams=True
)


class Hooks:
    def __init__(self, client, clients):
        clients.append(client)

    def stepped(self, epoch, step, result):
        pass

    def exchanged(self):
        pass

    def epoch_done(self, epoch, step):
        pass


@pytest.mark.parametrize(
    ("strategy", "versions"),
    [
        ("allreduce", 4),  # first parameters, two steps, and one without data; of two workers
        ("p2p", 6),  # first parameters, two steps, two when all have finished, and the mean
    ],
)
def test_values_are_sent_once(strategy, versions):
    clients = []
    batches = [[torch.zeros(SIZE, dtype=torch.float64)] * 2] * 2
    workers = train(
        strategy,
        batches,
        lambda x, batch: ((x - batch) ** 2).sum(),
        network=SLOW,
        size=SIZE,
        watched=lambda client: Hooks(client, clients),
    )
    assert all(worker.ended_s > 0 for worker in workers)
    for client in clients:
        assert client.bytes_sent == pytest.approx(versions * SIZE * 8, rel=0.01)
