"""Bugs of replication that somebody could write, each planted by replacing one method."""

from contextlib import contextmanager
from unittest.mock import patch

from msgspec.structs import replace

from shoal.protocol import membership as membership_module
from shoal.protocol import scheduler as scheduler_module
from shoal.protocol import worker as worker_module
from shoal.protocol.execution import Execution
from shoal.protocol.flight import Flight
from shoal.protocol.gate import Gate
from shoal.protocol.links import Link
from shoal.protocol.replay import Replay
from shoal.protocol.replication import Replication
from shoal.protocol.routing import Router
from shoal.protocol.windows import Taking, Window
from shoal.protocol.worker import WorkerMachine


@contextmanager
def acknowledged_at_the_head():
    """The head answers before the others have it."""
    with patch.object(Window, "complete", lambda self, seq: True):
        yield


@contextmanager
def window_not_handed_off():
    """A copy does not know which pushes are in it."""
    with patch.object(Replay, "_remember", lambda self, message, made: None):
        yield


@contextmanager
def clock_not_replicated():
    """A tail goes by the clocks that workers told itself."""
    with patch.object(Replication, "reached", lambda self, number, clock: clock):
        yield


@contextmanager
def new_head_trusts_its_clocks():
    """Who takes over believes that it has all that workers have finished."""
    right = Replication.adopt

    def adopt(self, view, rank, out):
        return right(self, view, rank, out)[0], None

    with patch.object(Replication, "adopt", adopt):
        yield


@contextmanager
def undone_is_not_sent_again():
    """A new view has nobody send what the next server lacks."""
    right = Replication.adopt

    def adopt(self, view, rank, out):
        self._log.clear()
        return right(self, view, rank, out)

    with patch.object(Replication, "adopt", adopt):
        yield


@contextmanager
def done_again():
    """A copy does what it has done already when it comes again."""
    right = Replay.do

    def do(self, message, copies, loads):
        versions = tuple(
            copy.version + 1 if version <= copy.version else version
            for copy, version in zip(copies, message.versions, strict=True)
        )
        distinct = len({copy.number for copy in copies}) == len(copies)
        return right(
            self, replace(message, versions=versions) if distinct else message, copies, loads
        )

    with patch.object(Replay, "do", do):
        yield


@contextmanager
def answer_to_another_cut():
    """A worker takes an answer to what it sent in an earlier view for one to what it sends now."""

    def part(self, leg, sender, message):
        return leg.parts.get(sender) if leg is not None and hasattr(message, "seq") else None

    with patch.object(WorkerMachine, "_part", part):
        yield


@contextmanager
def worker_keeps_to_the_dead():
    """A worker does not send anew what a dead server had accepted."""
    with patch.object(worker_module, "moved", lambda before, view: False):
        yield


@contextmanager
def round_done_is_forgotten():
    """A push whose round is on its way is taken for done."""
    with patch.object(Taking, "done", property(lambda self: self.version >= 0)):
        yield


@contextmanager
def credit_given_back_when_all_have_it():
    """Around a circle of chains each waits for the next."""
    right = Link.heard

    def heard(self, number):
        done = self.there
        while done < number and self._entries[done].done:
            done += 1
        return right(self, done)

    with patch.object(Link, "heard", heard):
        yield


@contextmanager
def pull_before_the_tail_has_its_push():
    """A worker's pull leaves when the head has its push."""
    right = Flight._line_up

    def line_up(self, leg):
        gated, self.gated = self.gated, False
        try:
            right(self, leg)
        finally:
            self.gated = gated

    with patch.object(Flight, "_line_up", line_up):
        yield


@contextmanager
def head_answers_pulls():
    """Pulls are answered where pushes go, whatever the others have."""
    right = Replication.ends

    def ends(self, asynchronous):
        return right(self, [True] * len(asynchronous))

    def route(self, number, rows, pushed):
        return wrong_route(self, number, rows, True)

    wrong_route = Router._route
    with patch.object(Replication, "ends", ends), patch.object(Router, "_route", route):
        yield


@contextmanager
def zombie_accepted():
    """A server takes requests of an incarnation that its view is without."""
    right = Gate.adopt

    def adopt(self, view):
        former = dict(self.windows)
        right(self, view)
        self.windows = {**former, **self.windows}

    with patch.object(Gate, "adopt", adopt):
        yield


@contextmanager
def chain_not_cut():
    """The view after a death still has the dead server in its chains."""
    with patch.object(membership_module, "without", lambda arcs, living: arcs):
        yield


@contextmanager
def requests_outlive_their_view():
    """A server answers requests of the view before, though their workers have cut them anew."""
    with patch.object(Execution, "forget_requests", lambda self: None):
        yield


@contextmanager
def death_ends_the_run():
    """A server's death ends the run although its rows have replicas."""
    with patch.object(scheduler_module, "lost", lambda tables, arcs, living: ["all"]):
        yield
