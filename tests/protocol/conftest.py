"""Machines that most of these tests begin with; `rigs` is how they make others."""

from types import ModuleType

import pytest

from shoal.keys import KeyRange
from shoal.protocol.requests import PullOp, PushOp
from shoal.tables.consistency import bsp
from tests.protocol import rigs as all_rigs


@pytest.fixture(scope="session")
def rigs() -> ModuleType:
    """The vocabulary of these tests."""
    return all_rigs


@pytest.fixture
def worker() -> all_rigs.WorkerRig:
    """One server, an asynchronous table of four rows."""
    return all_rigs.WorkerRig(all_rigs.table())


@pytest.fixture
def synchronous() -> all_rigs.WorkerRig:
    """Two servers, a table whose pushes are applied at the end of rounds."""
    return all_rigs.WorkerRig(all_rigs.table(bsp()), servers=2)


@pytest.fixture
def server() -> all_rigs.ServerRig:
    """Two workers, an asynchronous table of four rows."""
    return all_rigs.ServerRig(all_rigs.table())


@pytest.fixture
def values() -> memoryview:
    """The bytes of four rows."""
    return all_rigs.as_bytes(1, 2, 3, 4)


@pytest.fixture
def push(values: memoryview) -> tuple[PushOp, ...]:
    return (PushOp("w", KeyRange(0, 4), values),)


@pytest.fixture
def out() -> memoryview:
    return all_rigs.as_bytes(0, 0, 0, 0)


@pytest.fixture
def pull(out: memoryview) -> tuple[PullOp, ...]:
    return (PullOp("w", KeyRange(0, 4), out),)
