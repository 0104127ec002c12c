from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.zygote import zygote

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.engines.processes import Processes

    Started = tuple[Processes, list[Client]]

# A shell that starts the tests in the background has them ignore Ctrl-C, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts",
        action="store_true",
        help="write tests/transcripts/*.txt anew; be able to explain every difference",
    )


@pytest.fixture(scope="session", autouse=True)
def processes_are_forked() -> Iterator[None]:
    """Runs of tests start without importing torch, unless SHOAL_ZYGOTE=off or for coverage."""
    off = {"COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "SHOAL_ZYGOTE"}
    if off & os.environ.keys():  # coverage follows processes from their start
        yield
        return
    with tempfile.TemporaryDirectory(prefix="shoal-tests-") as folder, zygote(Path(folder)):
        yield


@pytest.fixture
def processes_are_those_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started anew, for tests of how they start and what they import."""
    monkeypatch.delenv("SHOAL_ZYGOTE", raising=False)


@contextmanager
def clusters() -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def start(servers: int = 1, workers: int = 1, **options: Any) -> Started:
        # for those tests alone that have a cluster: torch takes a second to import
        from concurrent.futures import ThreadPoolExecutor

        from shoal.client.client import Client
        from shoal.client.options import ClientOptions
        from shoal.engines.cluster import cluster_here

        processes = cluster_here(servers, workers)
        address = processes.scheduler
        with ThreadPoolExecutor(workers) as pool:  # each waits until all have joined
            made = [
                pool.submit(Client, address, ClientOptions(rank=rank, **options))
                for rank in range(workers)
            ]
        clients = [each.result() for each in made]
        started.append((processes, clients))
        return processes, clients

    yield start
    for processes, clients in started:
        for client in clients:
            client.close()
        processes.finish()


@pytest.fixture
def cluster() -> Iterator[Callable[..., Started]]:
    """A function that starts a cluster and returns (its processes, its clients)."""
    with clusters() as start:
        yield start


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Callable[..., Started]]:
    """The same for all tests of a module, which are to be of one xdist_group."""
    with clusters() as start:
        yield start
