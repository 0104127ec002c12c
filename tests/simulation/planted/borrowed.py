"""Bugs in how servers use payloads that stay in their sender's memory."""

from contextlib import contextmanager
from unittest.mock import patch

from shoal.protocol.machine import Detach, Loan
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation import plan
from shoal.tables.staging import StagedRows


def _borrowing():
    """Have pushes be borrowed in all seeds."""
    return patch.object(plan, "BORROWING", 1.0)


@contextmanager
def accepted_payloads_are_not_detached():
    """A worker that gives up gets the memory back of a push whose round is open."""
    right = WorkerMachine._abandon

    def abandon(self, sub_request, out):
        accepted = {server for server, part in sub_request.parts.items() if part.accepted}
        begin = len(out)
        right(self, sub_request, out)
        out[begin:] = [e for e in out[begin:] if type(e) is not Detach or e.to not in accepted]

    with _borrowing(), patch.object(WorkerMachine, "_abandon", abandon):
        yield


@contextmanager
def borrowed_values_are_passed_on():
    """The head of a chain sends on what a worker may have changed since it was applied."""
    with _borrowing(), patch.object(StagedRows, "own", lambda self: None):
        yield


@contextmanager
def loans_end_before_their_round():
    """The memory of a push is its worker's again as soon as the push is accepted."""
    right = StagedRows.borrowed

    def borrowed(self, view, loan):
        return right(self, view, Loan())

    with _borrowing(), patch.object(StagedRows, "borrowed", borrowed):
        yield
