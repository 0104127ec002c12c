"""Bugs of replication that somebody could write, each planted by replacing one method."""

from contextlib import contextmanager
from unittest.mock import patch

from msgspec.structs import replace

from shoal.protocol.consistency import VectorClock
from shoal.protocol.messages import Request
from shoal.protocol.scheduler import membership as membership_module
from shoal.protocol.scheduler import view_change as succession_module
from shoal.protocol.scheduler.migration import Relocating
from shoal.protocol.server.admission import Ends, Gate
from shoal.protocol.server.checkpointing import Saving
from shoal.protocol.server.executor import Execution
from shoal.protocol.server.replication.apply import Replay
from shoal.protocol.server.replication.chain import Replication
from shoal.protocol.server.replication.link import Check, Link
from shoal.protocol.server.replication.takeover import Handover
from shoal.protocol.server.replication.transfer import Transfers
from shoal.protocol.server.request_log import Taking, Window
from shoal.protocol.server.wait_queue import Parking
from shoal.protocol.views import FOREVER
from shoal.protocol.worker import machine as worker_module
from shoal.protocol.worker.in_flight import Flight
from shoal.protocol.worker.routing import Router
from shoal.tables.custom.shard import HandledShard
from shoal.tables.sparse.bounded_shard import BoundedShard
from shoal.tables.sparse.shard import SparseShard


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
    with patch.object(VectorClock, "reset", lambda self, clock: None):
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

    def do(self, message, copies, loads, out):
        versions = tuple(
            copy.version + 1 if version <= copy.version else version
            for copy, version in zip(copies, message.versions, strict=True)
        )
        distinct = len({copy.number for copy in copies}) == len(copies)
        return right(
            self, replace(message, versions=versions) if distinct else message, copies, loads, out
        )

    with patch.object(Replay, "do", do):
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
    right = Gate.place

    def place(self, *args):
        right(self, *args)
        self._ends = {number: Ends(ends.pushes, ends.pushes) for number, ends in self._ends.items()}

    def route(self, number, rows, pushed):
        return wrong_route(self, number, rows, True)

    wrong_route = Router._route
    with patch.object(Gate, "place", place), patch.object(Router, "_route", route):
        yield


@contextmanager
def old_tail_reads():
    """A tail that has promised the next view still answers pulls in this one."""
    right = Gate.verdict

    def verdict(self, sender, request):
        promised = self.promised
        if isinstance(request, Request) and request.pulls and not request.pushes:
            self.promised = self.view
        try:
            return right(self, sender, request)
        finally:
            self.promised = promised

    with patch.object(Gate, "verdict", verdict):
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
    with patch.object(membership_module, "next_arcs", lambda before, *_: before.arcs):
        yield


@contextmanager
def requests_outlive_their_view():
    """A server answers requests of the view before, though their workers have cut them anew."""

    def forget(self):
        shards = self._shards
        for waiting in (self.pulls, self.pushes):
            for key, each in list(waiting.items()):
                taken = each.taken
                if any(number not in shards for number, _, _ in taken.footprint.pulls):
                    taken.window.codes[key[1]] = "accepted"
                    del waiting[key]

    with patch.object(Parking, "clear", forget):
        yield


@contextmanager
def death_ends_the_run():
    """A server's death ends the run although its rows have replicas."""
    with patch.object(succession_module, "lost", lambda tables, arcs, living: ["all"]):
        yield


# ---------------------------------------------------------------------------- rows that move


@contextmanager
def learner_knows_no_past():
    """A learner is not told which pushes are in the rows that it is sent."""
    with patch.object(Transfers, "_take_in", lambda self, seen, window, copy: None):
        yield


@contextmanager
def learner_takes_its_place_too_early():
    """... with the first piece."""

    def learned(self):
        return tuple(
            (copy.table, copy.rows.start, copy.arc.learning)
            for copy in self._replication.copies.values()
            if copy.learned_by(self._replication.rank) and copy.at
        )

    with patch.object(Transfers, "learned", learned):
        yield


@contextmanager
def open_rounds_stay_behind():
    """A new head is not given what the one before has accepted."""
    with patch.object(Handover, "flush", lambda self, out: None):
        yield


@contextmanager
def clock_by_another_way():
    """A head's clock is told for arcs that come by another way, and are not as far."""

    def along(self, path, group):
        return [copy for copy in self.of(group) if copy.chain[:1] == path[:1]]

    with patch.object(Replication, "_along", along):
        yield


@contextmanager
def checkpoint_takes_what_is_there():
    """A server writes its rows down when it comes to that, with a later round in them."""
    right = Saving.before

    def reached(self, out):
        clock = self._clocks.of("").minimum
        for copy in self._replication.of(""):
            closed, copy.closed = copy.closed, 0
            at = self._replication.reached(copy.number, clock)
            right(self, copy.number, at - 1 if at < FOREVER else at, out)
            copy.closed = closed

    with (
        patch.object(Saving, "before", lambda self, number, clock, out: None),
        patch.object(Saving, "reached", reached),
    ):
        yield


@contextmanager
def eviction_not_told():
    """Each copy of a bounded table draws for itself which rows make room."""

    def told(self, staged, some):
        return some, self._places(staged.keys[some])

    with patch.object(BoundedShard, "_told", told):
        yield


@contextmanager
def reads_make_room():
    """A tail of a bounded table makes rows for whoever reads them."""
    with patch.object(BoundedShard, "_read", SparseShard._read):
        yield


@contextmanager
def last_server_keeps_checks():
    """The tail waits for somebody after it to say that a check is done; so rows never move."""
    right = Replay._check

    def check(self, message, copies, loads, out):
        views = tuple(memoryview(bytes(view)) for view in loads[0].views)
        operation = right(self, message, copies, loads, out)
        if not operation.changes:
            copy, part = copies[0], message.parts[0]
            operation.changes.append(Check(copy, part, message.versions[0], None, views))
        return operation

    with patch.object(Replay, "_check", check):
        yield


@contextmanager
def learner_stays_one():
    """The scheduler does not hear that somebody has learned its rows."""
    with patch.object(Relocating, "has_learned", lambda self, view, member, arcs: None):
        yield


@contextmanager
def checkpoint_without_marker():
    """Under `ssp` nobody waits until a checkpoint's rows are taken, or knows that nobody did."""
    waits = patch.object(Saving, "marker", lambda self, spec, clock: 0)
    knows = patch.object(Saving, "past", lambda self, number, clock: None)
    with waits, knows:
        yield


@contextmanager
def held_push_is_forgotten_by_its_reader():
    """A pull does not wait for its worker's own pushes that wait for a marker."""
    right = Execution._pull

    def pull(self, taken, accepted, out):
        with patch.object(Saving, "marker", lambda self, spec, clock: 0):
            right(self, taken, accepted, out)

    with patch.object(Execution, "_pull", pull):
        yield


@contextmanager
def replica_takes_no_marker():
    """A tail applies what waited before it has taken what is there."""
    right = Replay.do

    def do(self, message, copies, loads, out):
        if message.what == "push":
            message = replace(message, round=-1, pushed=-1)
        return right(self, message, copies, loads, out)

    with patch.object(Replay, "do", do):
        yield


@contextmanager
def call_stays_at_its_head():
    """What handlers do is told to nobody."""
    with patch.object(Execution, "_call", lambda self, taken, out: None):
        yield


@contextmanager
def call_answered_at_its_head():
    """... or it is, and the answer does not wait until all have it."""
    right = Execution._carry

    def carry(self, taken, made, out, what):
        if what == "call":
            made.takings.clear()
        right(self, taken, made, out, what)

    with patch.object(Execution, "_carry", carry):
        yield


@contextmanager
def answers_stay_behind():
    """A server that learns what a handler has does not learn what was answered."""
    right = HandledShard.install

    def install(self, staged):
        right(self, staged)
        self._answered.clear()

    with patch.object(HandledShard, "install", install):
        yield
