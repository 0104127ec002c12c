"""Bugs that somebody could write, each planted by replacing one method."""

import random
from contextlib import contextmanager
from unittest.mock import patch

from msgspec.structs import replace

from shoal.keys import SLOTS
from shoal.protocol.machine import CopyOnWriteGuard, Persist, Send, Sink
from shoal.protocol.messages.membership import NewView
from shoal.protocol.messages.requests import Request
from shoal.protocol.requests import Scan
from shoal.protocol.scheduler.leases.ledger import Granted, Leases, LedgerRecord
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.server.requests import wait_queue as wait_queue_module
from shoal.protocol.server.requests.admission import Admission
from shoal.protocol.server.requests.executor import Executor
from shoal.protocol.server.requests.staging import RequestStaging
from shoal.protocol.server.requests.wait_queue import WaitQueue
from shoal.protocol.server.state.rounds import Rounds
from shoal.protocol.views import FOREVER
from shoal.protocol.worker import routing as routing_module
from shoal.protocol.worker import slot_order
from shoal.protocol.worker.in_flight import InFlight
from shoal.protocol.worker.machine import WorkerMachine
from shoal.protocol.worker.routing import Router
from shoal.simulation import lending
from shoal.simulation.world import World
from shoal.tables.custom.shard import Answered
from shoal.tables.sparse.shard import SparseShard
from shoal.tables.touched import Touched


@contextmanager
def duplicate_applied_twice():
    """The server forgets which pushes it has applied."""
    right = Admission.verdict

    def verdict(self, sender, request, *footprint):
        found = right(self, sender, request, *footprint)
        log = self.logs.get(sender)
        applied = log is not None and log.outcomes.get(request.seq) == "applied"
        return "fresh" if found == "seen" and applied and hasattr(request, "pushes") else found

    with patch.object(Admission, "verdict", verdict):
        yield


@contextmanager
def pull_admitted_one_clock_early():
    right = wait_queue_module.needed
    early = lambda rule, clock: max(0, right(rule, clock) - 1)  # noqa: E731
    with patch.object(wait_queue_module, "needed", early):
        yield


@contextmanager
def stale_view_accepted():
    """The server takes requests of whatever view."""
    right = Admission.verdict

    def verdict(self, sender, request, *footprint):
        found = right(self, sender, request, *footprint)
        return "fresh" if found == "stale" and hasattr(request, "pushes") else found

    with patch.object(Admission, "verdict", verdict):
        yield


@contextmanager
def waiting_pull_forgotten():
    """When a round closes, only the first waiting pull is looked at again."""
    right = Executor._serve

    def serve(self, *args):
        if len(self.wait_queue.pulls) != 2:
            right(self, *args)

    with patch.object(Executor, "_serve", serve):
        yield


@contextmanager
def advance_overtakes_its_push():
    """The worker tells of its clock before its pushes are accepted everywhere."""
    right = InFlight.add

    def add(self, *args):
        sub_request = right(self, *args)
        sub_request.gates = []
        return sub_request

    rides = lambda self, ask: not ask.assign  # noqa: E731
    with patch.object(InFlight, "add", add), patch.object(Router, "rides", rides):
        yield


@contextmanager
def pull_overtakes_its_push():
    """A server does not look whether it has what a request follows."""
    right = Admission.verdict

    def verdict(self, sender, request, *footprint):
        if isinstance(request, Request):
            request = replace(request, follows=())
        return right(self, sender, request, *footprint)

    with patch.object(Admission, "verdict", verdict):
        yield


@contextmanager
def late_pull_lands():
    """A sink is not revoked when its request is given up."""
    with patch.object(Sink, "revoke", lambda self: None):
        yield


@contextmanager
def torn_fragment():
    """The last element of a fragment never reaches its sink, which holds zero there."""
    right = lending.Envelope.payload

    def payload(self):
        kept = self.nbytes - 4 if self.nbytes >= 12 else self.nbytes
        return right(self)[:kept] + bytes(self.nbytes - kept)

    with patch.object(lending.Envelope, "payload", payload):
        yield


@contextmanager
def fragment_applied_twice():
    """Which fragments of a push are applied is forgotten when it comes again."""
    right = RequestStaging.take

    def take(self, sender, request, footprint):
        log = self._admission.logs[sender]
        if request.seq not in log.outcomes:
            log.parts.pop(request.seq, None)
        return right(self, sender, request, footprint)

    with patch.object(RequestStaging, "take", take):
        yield


@contextmanager
def rows_change_on_their_way():
    """Rows in an answer that has not left yet are not copied before they change."""
    with patch.object(CopyOnWriteGuard, "recall", lambda self: None):
        yield


@contextmanager
def unseeded_choice():
    """A delay is drawn from the global generator."""
    right = World.at

    def at(self, when, action):
        right(self, when + random.random() * 1e-4, action)

    with patch.object(World, "at", at):
        yield


@contextmanager
def keys_reused_before_they_are_read():
    """The memory of a push's keys is another request's before the pull of them is answered."""

    def release(self, staged):
        self._staging.give(staged.memory)

    with patch.object(SparseShard, "release", release):
        yield


@contextmanager
def call_done_whenever_it_comes():
    """A custom table forgets a client's calls as soon as they are settled, late copies too."""

    def forget(self, below):
        for number in [each for each in self.answers if each < below]:
            del self.answers[number]

    with patch.object(Answered, "forget", forget):
        yield


@contextmanager
def key_on_two_servers():
    """The router and the servers do not agree on which slot a key is in."""
    with patch.object(routing_module, "slot_of", lambda key: key * 64 % SLOTS):
        yield


@contextmanager
def dead_worker_counts_on_one_server_only():
    """A server drops a dead worker's pushes whatever its last clock was."""
    right = Rounds.drop
    drop = lambda self, worker, last_clock: right(self, worker, 0)  # noqa: E731
    with patch.object(Rounds, "drop", drop):
        yield


@contextmanager
def timed_out_push_dropped():
    """A push that times out is forgotten although some servers hold it."""
    right = WorkerMachine._abandon

    def abandon(self, sub_request, out):
        if sub_request.advance >= 0:
            right(self, sub_request, out)
        else:
            self._in_flight.drop(sub_request)

    with patch.object(WorkerMachine, "_abandon", abandon):
        yield


@contextmanager
def view_told_before_it_is_persisted():
    right = SchedulerMachine.handle

    def handle(self, event, now):
        effects = right(self, event, now)
        told = [e for e in effects if isinstance(e, Send) and isinstance(e.message, NewView)]
        return [*told, *(e for e in effects if not any(e is each for each in told))]

    with patch.object(SchedulerMachine, "handle", handle):
        yield


@contextmanager
def scheduler_forgets_to_persist():
    right = SchedulerMachine.handle

    def handle(self, event, now):
        return [e for e in right(self, event, now) if not isinstance(e, Persist) or now < 0.2]

    with patch.object(SchedulerMachine, "handle", handle):
        yield


@contextmanager
def frozen_server_acts():
    """A server that has promised a view goes on in the present one."""

    def forgetful(right):
        def asked(self, *args):
            frozen, self.frozen = self.frozen, False
            try:
                return right(self, *args)
            finally:
                self.frozen = frozen

        return asked

    with (
        patch.object(Admission, "verdict", forgetful(Admission.verdict)),
        patch.object(Admission, "still_fresh", forgetful(Admission.still_fresh)),
    ):
        yield


@contextmanager
def credit_held_until_applied():
    """A server's credit is not given back before a push is applied."""
    right = InFlight.land

    def land(self, sub_request, part):
        right(self, sub_request, part)
        if not part.done and sub_request.seq in self.sub_requests and part.server_part.nbytes:
            self._under_way[part.server_part.server] += part.server_part.nbytes
            held.append((sub_request, part))

    def drop(self, sub_request):
        wrong_drop(self, sub_request)
        for other, part in [each for each in held if each[0] is sub_request]:
            self._under_way[part.server_part.server] -= part.server_part.nbytes
            held.remove((other, part))

    held, wrong_drop = [], InFlight.drop
    with patch.object(InFlight, "land", land), patch.object(InFlight, "drop", drop):
        yield


@contextmanager
def advance_given_up_with_its_request():
    """A request that times out or is cancelled takes its advance with it."""

    def abandon(self, sub_request, out):
        if (
            sub_request.sent
            and sub_request.plan.pushed
            and not sub_request.done
            and not self.session.ended
        ):
            self._in_flight.orphan(sub_request)
        else:
            self._in_flight.drop(sub_request)

    with patch.object(WorkerMachine, "_abandon", abandon):
        yield


@contextmanager
def lease_begun_again():
    """What a dead worker had of the data is done again from its beginning."""
    with patch.object(Granted, "after", lambda self, clock: self.span):
        yield


@contextmanager
def lease_dies_with_its_worker():
    """Nobody does what a dead worker had not done."""
    right = Leases.gone

    def gone(self, incarnation, last_clock):
        return right(self, incarnation, FOREVER)

    with patch.object(Leases, "gone", gone):
        yield


@contextmanager
def lease_told_before_it_is_persisted():
    """The next scheduler does not know who has which batches."""
    with patch.object(Leases, "record", lambda self: LedgerRecord()):
        yield


@contextmanager
def every_question_is_a_new_one():
    """A question that comes again is taken for that of a worker which has moved on."""

    def move_on(self, asked):
        known = self._granted.pop(asked.incarnation, None)
        if known is not None:
            self._return(known.after(FOREVER))

    with patch.object(Leases, "_move_on", move_on):
        yield


@contextmanager
def change_is_not_marked():
    """What has changed since a checkpoint is not in the next."""
    with patch.object(Touched, "mark", lambda self, places, count: None):
        yield


@contextmanager
def room_is_not_noticed():
    """A worker that has read its answers is not answered any more."""
    with patch.object(WaitQueue, "has_room", lambda self, worker: None):
        yield


@contextmanager
def keys_are_taken_for_ordered():
    """Keys that were for one server are cut for several as if they were in order."""
    with patch.object(Router, "_unordered", lambda self, op: False):
        yield


@contextmanager
def rows_stay_where_keys_move():
    """Keys are put in the order of their slots, and not the rows that belong to them."""
    right = slot_order._rows
    with patch.object(slot_order, "_rows", lambda buffer, order: right(buffer, sorted(order))):
        yield


@contextmanager
def a_scan_keeps_its_last_piece():
    """Of a scan that is cut for several servers, only the last answer is kept."""

    def take(self, data):
        self.pieces[:] = [data]

    with patch.object(Scan, "take", take):
        yield


@contextmanager
def a_scan_brings_other_slots():
    """A server answers a scan with all of its rows, whatever slots it names."""
    right = SparseShard.scan

    def scan(self, rows):
        return right(self, self.held)

    with patch.object(SparseShard, "scan", scan):
        yield


@contextmanager
def fragments_are_applied_after_they_are_given_back():
    """A fragment is applied when the next one has landed: where it was, the sender writes."""
    right, kept = RequestStaging._apply, {}

    def late(self, admitted, index, number, landed):
        for before in kept.pop(id(admitted), ()):
            right(self, admitted, *before)
        if number + 1 < len(admitted.loads[index].views):
            kept[id(admitted)] = [(index, number, landed)]
        else:
            right(self, admitted, index, number, landed)

    with patch.object(RequestStaging, "_apply", late):
        yield
