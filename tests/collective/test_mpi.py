"""Allreduce by MPI, in one process: MPI's own among several is in tests/real/test_launchers.py."""

import sys
from threading import Event
from types import SimpleNamespace

import pytest
import torch

from shoal.collective import mpi
from shoal.collective.mpi import MpiSums, communicator
from shoal.collective.tensors import reduce_of
from shoal.errors import InvalidValue, PackageMissing, RingBroken, RunAborted

MPI = pytest.importorskip(
    "mpi4py.MPI", reason="mpi4py finds no library of MPI", exc_type=ImportError
)


class Comm:
    """Doubles what it is given, as two ranks with the same values."""

    def __init__(self, gate=None, error=None, other=None):
        self.calls = []
        self._other = other
        self._gate, self._error = gate, error

    def Get_size(self):
        return 2

    def Allgather(self, mine, every):
        every[:] = bytes(mine) + (self._other.encode().ljust(80) if self._other else bytes(mine))

    def Allreduce(self, _, piece, op):
        values, datatype = piece
        self.calls.append(values.nbytes // datatype.Get_size())
        if self._gate is not None:
            self._gate.wait()
        if self._error is not None:
            raise self._error
        MPI.COMM_SELF.Allreduce(MPI.IN_PLACE, piece, op)
        other = bytes(values)
        op.Reduce_local([other, datatype], piece)


def sums(comm, stopped=lambda: None):
    return MpiSums(comm, 2, stopped)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
    ],
)
@pytest.mark.parametrize("n", [0, 1, 7, 4096])
def test_every_dtype_of_the_ring_is_summed(dtype, n):
    tensor = torch.arange(n).remainder(50).to(dtype)
    want = tensor + tensor
    by_mpi = sums(Comm())
    by_mpi.sum(by_mpi.prepare(tensor, mean=False))
    assert torch.equal(tensor, want)
    if dtype.is_floating_point:
        by_mpi.sum(by_mpi.prepare(tensor, mean=True))
        assert torch.equal(tensor, want)


def test_more_elements_than_mpi_counts_go_in_pieces(monkeypatch):
    monkeypatch.setattr(mpi, "PIECE", 10)
    comm, tensor = Comm(), torch.arange(25.0)
    by_mpi = sums(comm)
    by_mpi.sum(by_mpi.prepare(tensor, mean=False))
    assert comm.calls == [10, 10, 5]
    assert torch.equal(tensor, 2 * torch.arange(25.0))


def test_a_worker_leaves_a_sum_that_does_not_end_when_the_run_does():
    gate, error = Event(), RunAborted("a server is lost")
    by_mpi = sums(Comm(gate), lambda: error)
    with pytest.raises(RunAborted, match="a server is lost"):
        by_mpi.sum(by_mpi.prepare(torch.ones(3), mean=False))
    gate.set()


def test_an_error_of_mpi_is_told_and_the_next_sum_works():
    comm = Comm(error=RuntimeError("MPI_ERR_PROC_FAILED"))
    by_mpi, tensor = sums(comm), torch.ones(3)
    asked = by_mpi.prepare(tensor, mean=False)
    with pytest.raises(RingBroken, match="MPI_ERR_PROC_FAILED"):
        by_mpi.sum(asked)
    comm._error = None
    by_mpi.sum(asked)
    assert tensor.tolist() == [2, 2, 2]


def test_what_the_ring_refuses_is_refused():
    by_mpi = sums(Comm())
    for tensor, mean in ((torch.ones(3, dtype=torch.bool), False), (torch.ones(2).int(), True)):
        with pytest.raises(InvalidValue):
            by_mpi.prepare(tensor, mean)


def test_many_tensors_of_a_dtype_take_one_operation():
    by_mpi = sums(Comm())
    for n in range(1, 60):
        tensor = torch.ones(n, dtype=torch.bfloat16)
        by_mpi.sum(by_mpi.prepare(tensor, mean=False))
        assert tensor.tolist() == [2.0] * n


def test_ranks_that_ask_for_unlike_sums_are_told():
    by_mpi = sums(Comm(other="sum of 4 values of float32"))
    asked = by_mpi.prepare(torch.ones(6), mean=False)
    told = "rank 1 of MPI asks for the sum of 4 values of float32.*the sum of 6 values"
    with pytest.raises(InvalidValue, match=told):
        by_mpi.sum(asked)


def test_numbers_that_torch_does_not_add_are_refused():
    for by in (sums(Comm()).prepare, reduce_of):
        with pytest.raises(InvalidValue, match="float8"):
            by(torch.ones(2).to(torch.float8_e4m3fn), False)


def test_a_group_of_another_size_is_refused():
    with pytest.raises(InvalidValue, match="among 3 workers, and MPI has 2 ranks"):
        MpiSums(Comm(), 3, lambda: None)


def test_mpi4py_that_is_missing_or_finds_no_library_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(PackageMissing, match=r"shoal\[mpi\].*or go by ring"):
        communicator("sums", "or go by ring")

    def fails(module, what):
        raise RuntimeError("cannot load MPI library\nat all")

    monkeypatch.setattr(mpi, "require", fails)
    with pytest.raises(InvalidValue, match=r"sums: cannot load MPI library; or go by ring"):
        communicator("sums", "or go by ring")


def test_another_mpi_than_that_of_the_launcher_is_told(monkeypatch):
    """Each process is then alone in its world."""
    comm = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 1)
    found = SimpleNamespace(rc=SimpleNamespace(), COMM_WORLD=comm)
    monkeypatch.setattr(mpi, "require", lambda module, what: found)
    with pytest.raises(InvalidValue, match=r"rank 1 of 3, and mpi4py is rank 0 of 1"):
        communicator("sums", "", ("mpirun", 1, 3))
