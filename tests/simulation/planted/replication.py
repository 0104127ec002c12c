"""Bugs of replication that somebody could write, each planted by replacing one method."""

from contextlib import contextmanager
from unittest.mock import patch

from msgspec.structs import replace

from shoal.protocol.consistency import VectorClock
from shoal.protocol.messages.requests import Request
from shoal.protocol.scheduler import membership as membership_module
from shoal.protocol.scheduler.rows import losses
from shoal.protocol.scheduler.rows.rebalance import Migration
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.link import Link
from shoal.protocol.server.chains.operations import Check
from shoal.protocol.server.replication.replay import Replayer
from shoal.protocol.server.replication.takeover import Takeover
from shoal.protocol.server.replication.transfer import StateTransfer
from shoal.protocol.server.requests.admission import Admission, Ends
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.server.requests.executor import Applier, Executor
from shoal.protocol.server.requests.wait_queue import WaitQueue
from shoal.protocol.server.state.request_log import RequestLog
from shoal.protocol.views import FOREVER
from shoal.protocol.worker import machine as worker_module
from shoal.protocol.worker.in_flight import InFlight
from shoal.protocol.worker.routing import Router
from shoal.tables.custom.shard import CustomShard
from shoal.tables.sparse.bounded_shard import BoundedShard
from shoal.tables.sparse.shard import SparseShard


@contextmanager
def acknowledged_at_the_head():
    """The head answers before the others have it."""
    with patch.object(RequestLog, "unreplicated", lambda self, seq: []):
        yield


@contextmanager
def window_not_handed_off():
    """A copy does not know which pushes are in it."""
    with patch.object(Replayer, "_logs", lambda self, message: []):
        yield


@contextmanager
def clock_not_replicated():
    """A tail goes by the clocks that workers told itself."""
    with patch.object(Chains, "reached", lambda self, number, clock: clock):
        yield


@contextmanager
def new_head_trusts_its_clocks():
    """Who takes over believes that it has all that workers have finished."""
    with patch.object(VectorClock, "reset", lambda self, clock: None):
        yield


@contextmanager
def undone_is_not_sent_again():
    """A new view has nobody send what the next server lacks."""
    right = Chains.adopt

    def adopt(self, view, rank, out):
        self._log.clear()
        return right(self, view, rank, out)

    with patch.object(Chains, "adopt", adopt):
        yield


@contextmanager
def done_again():
    """A copy does what it has done already when it comes again."""
    right = Replayer.replay

    def replay(self, message, copies, loads, out):
        versions = tuple(
            replica.version + 1 if version <= replica.version else version
            for replica, version in zip(copies, message.versions, strict=True)
        )
        distinct = len({replica.number for replica in copies}) == len(copies)
        return right(
            self, replace(message, versions=versions) if distinct else message, copies, loads, out
        )

    with patch.object(Replayer, "replay", replay):
        yield


@contextmanager
def worker_keeps_to_the_dead():
    """A worker does not send anew what a dead server had accepted."""
    with patch.object(worker_module, "moved", lambda before, view: False):
        yield


@contextmanager
def round_done_is_forgotten():
    """A push whose round is on its way is taken for done."""

    def unreplicated(self, seq):
        return [part for part in self.parts.get(seq, ()) if part.version < 0]

    with patch.object(RequestLog, "unreplicated", unreplicated):
        yield


@contextmanager
def credit_given_back_when_all_have_it():
    """Around a circle of chains each waits for the next."""
    right = Link.heard

    def heard(self, number, now):
        done = self.there
        while done < number and self._entries[done].done:
            done += 1
        return right(self, done, now)

    with patch.object(Link, "heard", heard):
        yield


@contextmanager
def pull_before_the_tail_has_its_push():
    """A worker's pull leaves when the head has its push."""
    right = InFlight._line_up

    def line_up(self, sub_request):
        gated, self.gated = self.gated, False
        try:
            right(self, sub_request)
        finally:
            self.gated = gated

    with patch.object(InFlight, "_line_up", line_up):
        yield


@contextmanager
def head_answers_pulls():
    """Pulls are answered where pushes go, whatever the others have."""
    right = Admission.place

    def place(self, *args):
        right(self, *args)
        self._ends = {number: Ends(ends.pushes, ends.pushes) for number, ends in self._ends.items()}

    def route(self, number, rows, pushed):
        return wrong_route(self, number, rows, True)

    wrong_route = Router._route
    with patch.object(Admission, "place", place), patch.object(Router, "_route", route):
        yield


@contextmanager
def old_tail_reads():
    """A tail that has promised the next view still answers pulls in this one."""
    right = Admission.verdict

    def verdict(self, sender, request, *footprint):
        frozen = self.frozen
        if isinstance(request, Request) and request.pulls and not request.pushes:
            self.frozen = False
        try:
            return right(self, sender, request, *footprint)
        finally:
            self.frozen = frozen

    with patch.object(Admission, "verdict", verdict):
        yield


@contextmanager
def zombie_accepted():
    """A server takes requests of an incarnation that its view is without."""
    right = Admission.adopt

    def adopt(self, view):
        former = dict(self.logs)
        right(self, view)
        self.logs = {**former, **self.logs}

    with patch.object(Admission, "adopt", adopt):
        yield


@contextmanager
def chain_not_cut():
    """The view after a death still has the dead server in its chains."""
    with patch.object(membership_module, "next_placements", lambda before, *_: before.placements):
        yield


@contextmanager
def requests_outlive_their_view():
    """A server answers requests of the view before, though their workers have cut them anew."""

    def forget(self):
        shards = self._replicas
        for waiting in (self.pulls, self.pushes):
            for key, each in list(waiting.items()):
                taken = each.admitted
                if any(number not in shards for number, _, _ in taken.footprint.pulls):
                    taken.log.outcomes[key[1]] = "accepted"
                    del waiting[key]

    with patch.object(WaitQueue, "clear", forget):
        yield


@contextmanager
def death_ends_the_run():
    """A server's death ends the run although its rows have replicas."""
    with patch.object(losses, "lost", lambda tables, placements, living: ["all"]):
        yield


# ---------------------------------------------------------------------------- rows that move


@contextmanager
def learner_knows_no_past():
    """A learner is not told which pushes are in the rows that it is sent."""
    with patch.object(StateTransfer, "_take_in", lambda self, seen, log, replica: None):
        yield


@contextmanager
def learner_takes_its_place_too_early():
    """... with the first piece."""

    def synced(self):
        return tuple(
            (replica.table, replica.rows.start, replica.placement.syncing_since)
            for replica in self._chains.replicas.values()
            if replica.syncs and replica.at
        )

    with patch.object(StateTransfer, "synced", synced):
        yield


@contextmanager
def open_rounds_stay_behind():
    """A new head is not given what the one before has accepted."""
    with patch.object(Takeover, "flush", lambda self, out: None):
        yield


@contextmanager
def clock_by_another_way():
    """A head's clock is told for arcs that come by another way, and are not as far."""

    def along(self, path, group):
        return [replica for replica in self.of(group) if replica.chain[:1] == path[:1]]

    with patch.object(Chains, "_along", along):
        yield


@contextmanager
def checkpoint_takes_what_is_there():
    """A server writes its rows down when it comes to that, with a later round in them."""
    right = Checkpointer.before

    def reached(self, out):
        clock = self._clocks.of("").minimum
        for replica in self._chains.of(""):
            closed, replica.closed = replica.closed, 0
            at = self._chains.reached(replica, clock)
            right(self, replica, at - 1 if at < FOREVER else at, out)
            replica.closed = closed

    with (
        patch.object(Checkpointer, "before", lambda self, replica, clock, out: None),
        patch.object(Checkpointer, "reached", reached),
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
    right = Chains.carry

    def carry(self, operation, out):
        if operation.what == "check" and not operation.changes:
            replica = next(iter(self.replicas.values()))
            operation.keep([Check(replica, replica.part(replica.rows, -1))])
        right(self, operation, out)

    with patch.object(Chains, "carry", carry):
        yield


@contextmanager
def learner_stays_one():
    """The scheduler does not hear that somebody has learned its rows."""
    with patch.object(Migration, "has_synced", lambda self, view, member, placements: None):
        yield


@contextmanager
def checkpoint_without_marker():
    """Under `ssp` nobody waits until a checkpoint's rows are taken, or knows that nobody did."""
    waits = patch.object(Checkpointer, "checkpoint_clock", lambda self, spec, clock: 0)
    right = Checkpointer.before_operation

    def before_operation(self, operation, replicas, out):
        right(self, replace(operation, pushed=-1), replicas, out)

    knows = patch.object(Checkpointer, "before_operation", before_operation)
    with waits, knows:
        yield


@contextmanager
def held_push_is_forgotten_by_its_reader():
    """A pull does not wait for its worker's own pushes that wait for a marker."""
    right = Executor._pull

    def pull(self, taken, accepted, out):
        with patch.object(Checkpointer, "checkpoint_clock", lambda self, spec, clock: 0):
            right(self, taken, accepted, out)

    with patch.object(Executor, "_pull", pull):
        yield


@contextmanager
def replica_takes_no_marker():
    """A tail applies what waited before it has taken what is there."""
    right = Replayer.replay

    def replay(self, message, copies, loads, out):
        if message.what == "push":
            message = replace(message, round=-1, pushed=-1)
        return right(self, message, copies, loads, out)

    with patch.object(Replayer, "replay", replay):
        yield


@contextmanager
def call_stays_at_its_head():
    """What handlers do is told to nobody."""
    with patch.object(Executor, "_call", lambda self, taken, out: None):
        yield


@contextmanager
def call_answered_at_its_head():
    """... or it is, and the answer does not wait until all have it."""
    right = Applier.apply

    def apply(self, operation, out):
        logs = () if operation.what == "call" else operation.logs
        return right(self, replace(operation, logs=logs), out)

    with patch.object(Applier, "apply", apply):
        yield


@contextmanager
def answers_stay_behind():
    """A server that learns what a handler has does not learn what was answered."""
    right = CustomShard.install

    def install(self, staged):
        right(self, staged)
        self._answered.clear()

    with patch.object(CustomShard, "install", install):
        yield
