import pytest

from shoal.engines.joining import cluster_here
from shoal.runtime.client import Client, ClientOptions


@pytest.fixture
def cluster():
    """A function that starts a cluster and returns (its engine, its clients)."""
    started = []

    def start(servers=1, workers=1, **options):
        from concurrent.futures import ThreadPoolExecutor

        engine = cluster_here(servers, workers)
        address = engine.address("scheduler")
        with ThreadPoolExecutor(workers) as pool:  # each waits until all have joined
            made = [
                pool.submit(Client, address, ClientOptions(rank=rank, **options))
                for rank in range(workers)
            ]
        clients = [each.result() for each in made]
        started.append((engine, clients))
        return engine, clients

    yield start
    for engine, clients in started:
        for client in clients:
            client.close()
        engine.finish()
