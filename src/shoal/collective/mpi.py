"""Allreduce and allgather by MPI, among workers that are its ranks: `--collective mpi`."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from shoal.errors import InvalidValue, PackageMissing, RingBroken, ShoalError
from shoal.extras import require
from shoal.protocol.requests import Reduce

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

CHECK_S = 0.25  # between two looks at the run, while MPI's call does not return
WHAT_BYTES = 80  # of what is compared
PIECE = 1 << 30  # elements in a call: MPI 3 counts them in 32 bits
_failed = False


@dataclass(slots=True)
class MpiSum:
    """The sum of one tensor, prepared for all steps.

    Attributes:
        reduce: the memory, and the arithmetic for dtypes that MPI lacks.
        datatype: MPI's type of an element.
        op: MPI's operation.
        what: the shape, dtype and kind of the sum, for errors; all ranks have to ask for the same.
        agreed: whether the ranks have compared it.
    """

    reduce: Reduce
    datatype: Any
    op: Any
    what: str
    agreed: bool = False


class MpiSums:
    """MPI's Allreduce, in place, and its Allgather, in a thread of its own.

    A call of MPI returns only when all ranks have come. The thread has it, so that the worker can
    leave when the run ends with an error; the process has to end then, since MPI keeps the memory.

    Args:
        comm: the communicator of the workers.
        workers: the number of workers in the group.
        stopped: the function that returns the error with which the run has ended; None before.

    Raises:
        InvalidValue: the group has another number of workers than the communicator has ranks.
    """

    def __init__(self, comm: Any, workers: int, stopped: Callable[[], ShoalError | None]) -> None:
        if comm.Get_size() != workers:
            raise InvalidValue(
                f"collective 'mpi' among {workers} workers, and MPI has {comm.Get_size()} ranks: "
                "each worker has to be a rank; use collective 'ring'"
            )
        self._comm = comm
        self._workers = workers
        self._stopped = stopped
        self._ops: dict[str, Any] = {}  # by dtype
        self._gathers: set[int] = set()  # numbers of bytes that the ranks have compared
        self._asked: SimpleQueue[tuple[Callable[[], None], Event, list[Exception]]] = SimpleQueue()
        Thread(target=self._serve, name="shoal-mpi", daemon=True).start()

    def prepare(self, tensor: Tensor, mean: bool) -> MpiSum:
        """Return the sum of a tensor, as `sum` takes it.

        Raises:
            InvalidValue: as `reduce_of` says
        """
        from mpi4py import MPI

        from shoal.collective.tensors import reduce_of  # imports torch

        reduce = reduce_of(tensor, mean)
        dtype = str(tensor.dtype).removeprefix("torch.")
        what = f"{'mean' if mean else 'sum'} of {tensor.numel()} values of {dtype}"
        if dtype in _NAMES:
            return MpiSum(reduce, getattr(MPI, _NAMES[dtype]), MPI.SUM, what)
        if dtype not in self._ops:  # MPI has room for few operations
            self._ops[dtype] = MPI.Op.Create(partial(_add, reduce.add), commute=True)
        bits = 8 * tensor.element_size()
        return MpiSum(reduce, getattr(MPI, f"UINT{bits}_T"), self._ops[dtype], what)

    def sum(self, asked: MpiSum) -> None:
        """Replace the values by their sum or mean over all workers, and wait for that.

        Raises:
            InvalidValue: other ranks ask for another sum.
            RingBroken: MPI has failed, or a worker has left.
            ShoalError: the run has ended meanwhile, with this error.
        """
        self._do(partial(self._all_reduce, asked))

    def gather(self, data: np.ndarray) -> memoryview:
        """Return the bytes of all workers, by rank, and wait for that.

        Raises:
            InvalidValue, RingBroken, ShoalError: as `sum`.
        """
        import numpy as np  # light commands import this module

        gathered = np.empty((self._workers, len(data)), np.uint8)
        self._do(partial(self._all_gather, data, gathered))
        return gathered.reshape(-1).data

    def _do(self, job: Callable[[], None]) -> None:
        """Let the thread do a job, and wait."""
        done, errors = Event(), list[Exception]()
        self._asked.put((job, done, errors))
        while not done.wait(CHECK_S):
            if error := self._stopped():
                raise error
        if errors and isinstance(errors[0], ShoalError):
            raise errors[0]
        if errors:
            raise RingBroken(f"MPI's collective has failed: {errors[0]}")

    def _serve(self) -> None:
        while True:
            job, done, errors = self._asked.get()
            try:
                job()
            except Exception as error:  # mpi4py's classes
                errors.append(error)
            done.set()

    def _all_reduce(self, asked: MpiSum) -> None:
        from mpi4py import MPI

        if not asked.agreed:
            self._agree(asked.what)
            asked.agreed = True
        values = asked.reduce.values
        step = PIECE * asked.datatype.Get_size()
        for at in range(0, values.nbytes, step):
            piece = [values[at : at + step], asked.datatype]
            self._comm.Allreduce(MPI.IN_PLACE, piece, asked.op)
        if values.nbytes:
            asked.reduce.finish(values, self._workers)

    def _all_gather(self, data: np.ndarray, into: np.ndarray) -> None:
        if len(data) not in self._gathers:
            self._agree(f"allgather of {len(data)} bytes")
            self._gathers.add(len(data))
        for at in range(0, len(data), PIECE):
            piece = into[:, at : at + PIECE]
            gathered = piece.copy()
            self._comm.Allgather(data[at : at + PIECE], gathered)
            piece[:] = gathered

    def _agree(self, what: str) -> None:
        """Refuse a collective that is not the one that the other ranks ask for."""
        mine = what.encode().ljust(WHAT_BYTES)[:WHAT_BYTES]
        every = bytearray(WHAT_BYTES * self._workers)
        self._comm.Allgather(mine, every)
        said = [every[at : at + WHAT_BYTES] for at in range(0, len(every), WHAT_BYTES)]
        for rank, other in enumerate(said):
            if other != mine:
                raise InvalidValue(
                    f"rank {rank} of MPI asks for the {other.decode().strip()}, and this one for "
                    f"the {what}"
                )


def _add(add: Callable[[memoryview, memoryview], None], other: Any, into: Any, _: Any) -> None:
    """Add values of a dtype that MPI lacks."""
    add(memoryview(into).cast("B"), memoryview(other).cast("B"))


_NAMES = {  # by dtype of torch; others are added up by `Reduce.add`
    "float32": "FLOAT",
    "float64": "DOUBLE",
    **{
        f"{sign}int{bits}": f"{sign.upper()}INT{bits}_T"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def communicator(what: str, elsewhere: str, started: tuple[str, int, int] | None = None) -> Any:
    """Return the communicator of all ranks of MPI, by mpi4py.

    MPI's end waits for all ranks. So a rank that fails does without it, and mpirun ends the others.

    Args:
        what: what needs it, for messages.
        elsewhere: what to do where there is none, for messages.
        started: the launcher, this process's rank and the number of ranks, as its variables say.

    Raises:
        PackageMissing: mpi4py is not installed.
        InvalidValue: mpi4py finds no library of MPI, or another one than the launcher's.
    """
    try:
        require("mpi4py", what).rc.finalize = False
        mpi: Any = require("mpi4py.MPI", what)
    except PackageMissing as error:
        raise PackageMissing(f"{error.message}, {elsewhere}") from None
    except (ImportError, RuntimeError) as error:  # it finds no library of MPI
        first = str(error).partition("\n")[0][:300]
        raise InvalidValue(f"{what}: {first}; {elsewhere}") from None
    seen = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
    if started is not None and seen != started[1:]:
        launcher, rank, size = started
        raise InvalidValue(
            f"{launcher} has started rank {rank} of {size}, and mpi4py is rank {seen[0]} "
            f"of {seen[1]}: it uses another MPI than this {launcher}; {elsewhere}"
        )
    atexit.register(_finalize, mpi)
    return mpi.COMM_WORLD


def failed() -> None:
    """Note that this rank ends with an error."""
    global _failed
    _failed = True


def _finalize(mpi: Any) -> None:
    """End MPI, unless this process ends with an error."""
    if not (_failed or getattr(sys, "last_value", None) is not None or mpi.Is_finalized()):
        mpi.Finalize()
