"""Bugs in what a server does while the handler of an event is suspended by its long work."""

from contextlib import contextmanager
from unittest.mock import patch

from msgspec.structs import replace

from shoal.protocol.machine import Sink
from shoal.protocol.messages.membership import Freeze, NewView
from shoal.protocol.messages.replication import Replicate
from shoal.protocol.messages.requests import Request
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.requests.executor import Applier
from shoal.protocol.server.requests.interim import Interim
from shoal.protocol.server.requests.staging import RequestStaging
from shoal.protocol.server.requests.wait_queue import WaitQueue
from shoal.simulation import plan
from tests.simulation.planted.patches import bug, instead


def _all_work_is_long():
    """In few seeds the work that a bug needs is long: have it so in all of them."""
    return patch.object(plan, "_long_bytes", lambda random: random.choice((1, 100)))


fragments_of_busy_shards_are_applied = bug(
    Interim, "_revoked", instead(False),
    "A fragment of a streamed push is applied whatever another thread does with its shard.",
)  # fmt: skip


busy_shards_are_read = bug(
    WaitQueue, "_is_changing", instead(False),
    "A pull is answered whatever another thread does with its shard.",
)  # fmt: skip


@contextmanager
def pulls_go_by_clocks_of_open_rounds():
    """A pull that waits for a clock is answered while the rounds below it are being closed."""
    right = WaitQueue._is_changing

    def is_changing(self, pull):
        return right(self, replace(pull, clock=0))

    with _all_work_is_long(), patch.object(WaitQueue, "_is_changing", is_changing):
        yield


@contextmanager
def clock_told_before_its_rounds():
    """A push is applied while the rounds of its group are being closed: its operation tells the
    next servers of a clock whose rounds they do not have."""
    right = Interim._is_short_request

    def is_short(self, sender, request):
        with patch.object(self._long_work, "closing", None):
            return right(self, sender, request)

    with _all_work_is_long(), patch.object(Interim, "_is_short_request", is_short):
        yield


def _handled_meanwhile(kind):
    right = Interim.takes

    def takes(self, event, out):
        return isinstance(event.message, kind) or right(self, event, out)

    return patch.object(Interim, "takes", takes)


@contextmanager
def view_promised_meanwhile():
    """A view is promised while a handler is suspended, whose change it does not count."""
    with _handled_meanwhile(Freeze | NewView):
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

    with _all_work_is_long(), patch.object(ServerMachine, "handle", handle):
        yield


@contextmanager
def rows_recalled_too_early():
    """Rows in unsent answers are recalled before an operation that is suspended for a checkpoint,
    and not again before it changes them."""
    right, right_apply = Applier._changed, Applier.apply

    def apply(self, operation, out):
        self._guard.recall()
        return right_apply(self, operation, out)

    def changed(self, operation, failed):
        borrowers, self._guard.borrowers = self._guard.borrowers, []
        try:
            return right(self, operation, failed)
        finally:
            self._guard.borrowers += borrowers

    early = patch.object(Applier, "apply", apply), patch.object(Applier, "_changed", changed)
    with _all_work_is_long(), early[0], early[1]:
        yield


@contextmanager
def handlers_are_called_while_saved():
    """A call is executed while another thread saves its handler."""
    right = Interim._is_short_request

    def is_short(self, sender, request):
        with patch.object(self._long_work, "busy", frozenset()):
            return right(self, sender, request)

    with patch.object(Interim, "_is_short_request", is_short):
        yield


@contextmanager
def last_fragments_are_lent():
    """The message that the last fragment completes is kept, and applied from memory given back."""
    right = RequestStaging.arriving

    def arriving(self, *args):
        arrival = right(self, *args)
        if isinstance(arrival, Sink) and arrival.by_view:
            arrival.lends = len(arrival.views)
        return arrival

    with _all_work_is_long(), patch.object(RequestStaging, "arriving", arriving):
        yield
