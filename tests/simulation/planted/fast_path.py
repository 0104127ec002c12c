"""Bugs of the fast path, each planted by replacing one method."""

from contextlib import contextmanager
from unittest.mock import patch

from shoal.protocol.machine import CopyOnWriteGuard
from shoal.protocol.messages.requests import Request
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.server.requests.fast_path import FastPath
from shoal.protocol.server.state.request_log import RequestLog


@contextmanager
def _without(owner, name, instead):
    """On the fast path alone, another method in place of one."""
    right = FastPath.carry_out

    def carry_out(self, received, out):
        with patch.object(owner, name, instead):
            return right(self, received, out)

    with patch.object(FastPath, "carry_out", carry_out):
        yield


@contextmanager
def fast_path_takes_duplicates():
    """A push that has come twice before it is applied is applied twice."""
    right = FastPath.carry_out

    def carry_out(self, received, out):
        payload = received.payload
        if payload is not None and not payload.revoked and payload.context.footprint.simple:
            for known in (payload.context.log.outcomes, payload.context.log.parts):
                known.pop(received.message.seq, None)
        return right(self, received, out)

    with patch.object(FastPath, "carry_out", carry_out):
        yield


@contextmanager
def fast_path_while_frozen():
    """A server that has promised a view answers on the fast path."""
    right = Admission.still_fresh

    def still_fresh(self, *args):
        frozen, self.frozen = self.frozen, False
        try:
            return right(self, *args)
        finally:
            self.frozen = frozen

    with _without(Admission, "still_fresh", still_fresh):
        yield


@contextmanager
def fast_path_recalls_nothing():
    """Rows in answers that are not sent yet change under them."""
    with _without(CopyOnWriteGuard, "recall", lambda self: None):
        yield


@contextmanager
def fast_path_records_nothing():
    """The log does not say that the rows have the push."""
    finish = RequestLog.finish
    with _without(RequestLog, "finish", lambda self, seq, parts: finish(self, seq, ())):
        yield


@contextmanager
def fast_path_overtakes():
    """A request goes before an earlier one of its worker, which waits for long work to end."""
    right = ServerMachine.handle

    def handle(self, event, now):
        out = []
        self._time.set(now)
        fast = self._interim.kept and isinstance(getattr(event, "message", None), Request)
        return out if fast and self._fast_path.carry_out(event, out) else right(self, event, now)

    with patch.object(ServerMachine, "handle", handle):
        yield
