"""Bugs in what a server does while the handler of an event is suspended by its long work."""

from contextlib import contextmanager
from unittest.mock import patch

from shoal.protocol.messages import NewView, Replicate, Request
from shoal.protocol.server.applier import Applier
from shoal.protocol.server.interim import Interim
from shoal.protocol.server.machine import ServerMachine
from tests.simulation.planted.patches import bug, instead

fragments_of_busy_shards_are_applied = bug(
    Interim, "_revoked", instead(False),
    "A fragment of a streamed push is applied whatever another thread does with its shard.",
)  # fmt: skip


@contextmanager
def busy_shards_are_read():
    """A pull is answered whatever another thread does with its shard."""
    right = Interim._only_reads

    def only_reads(self, sender, request):
        with patch.object(self._long_work, "busy", frozenset()):
            return right(self, sender, request)

    with patch.object(Interim, "_only_reads", only_reads):
        yield


@contextmanager
def pulls_go_by_clocks_of_open_rounds():
    """A pull that waits for a clock is answered while the rounds below it are being applied."""
    right = Interim._only_reads

    def only_reads(self, sender, request):
        footprint = self._admission.footprint(request)
        if footprint is None or footprint.calls or request.pushes or request.advance >= 0:
            return right(self, sender, request)
        numbers = {number for number, _, _ in footprint.pulls}
        return sender in self._admission.logs and not numbers & self._long_work.busy

    with patch.object(Interim, "_only_reads", only_reads):
        yield


@contextmanager
def kept_messages_are_overtaken():
    """A message is handled although an earlier one of its sender is kept."""
    right = Interim.takes

    def takes(self, event, out):
        self._senders.clear()
        return right(self, event, out)

    with patch.object(Interim, "takes", takes):
        yield


def _handled_meanwhile(kind):
    right = Interim.takes

    def takes(self, event, out):
        return isinstance(event.message, kind) or right(self, event, out)

    return patch.object(Interim, "takes", takes)


@contextmanager
def view_adopted_meanwhile():
    """A view is adopted while a handler is suspended, which goes on with what it knew before."""
    with _handled_meanwhile(NewView):
        yield


@contextmanager
def operations_replayed_meanwhile():
    """Operations of other servers are replayed while a handler is suspended."""
    with _handled_meanwhile(Replicate):
        yield


@contextmanager
def requests_carried_out_meanwhile():
    """Requests are carried out while a handler is suspended, also if they change rows."""
    with _handled_meanwhile(Request):
        yield


@contextmanager
def kept_messages_are_handled_together():
    """What was kept is handled in one go: rows that were lent to answers change before they are
    sent."""
    right = ServerMachine.handle

    def handle(self, event, now):
        out = right(self, event, now)
        while self._interim.kept and not self.suspended:
            out += right(self, self._interim.kept.popleft(), now)
        return out

    with patch.object(ServerMachine, "handle", handle):
        yield


@contextmanager
def rows_recalled_too_early():
    """Rows in unsent answers are recalled before an operation that is suspended for a checkpoint,
    and not again before it changes them."""
    right = Applier.apply

    def apply(self, operation, out):
        self._guard.recall()
        with patch.object(self, "_guard", _Nothing()):
            return right(self, operation, out)

    with patch.object(Applier, "apply", apply):
        yield


class _Nothing:
    borrowers = ()
