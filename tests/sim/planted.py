"""Bugs to plant, one method at a time, each with the checker that is for it.

`PLANTED[name]` is (checker, context manager). Within the context every machine has the bug.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

from shoal.keys import KeyRange
from shoal.protocol import server as server_module
from shoal.protocol.consistency import needed
from shoal.protocol.machine import Accept, PeerLost, Persist, Send, Sink
from shoal.protocol.messages import View
from shoal.protocol.scheduler import SchedulerMachine
from shoal.protocol.server import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.worker import WorkerMachine
from shoal.tables.dense import DenseShard

Plant = Callable[[], AbstractContextManager[object]]
PLANTED: dict[str, tuple[str, Plant]] = {}


def bug(checker: str) -> Callable[[Callable[[], Iterator[None]]], Plant]:
    """Name a bug by its function, and the checker that has to find it."""

    def plant(function: Callable[[], Iterator[None]]) -> Plant:
        context = contextmanager(function)
        PLANTED[function.__name__.replace("_", " ")] = (checker, context)
        return context

    return plant


def _verdict_of(mistaken: str) -> Plant:
    """Servers take requests of that verdict for new ones."""
    real = ServerMachine._verdict

    def verdict(self, sender, request):
        found = real(self, sender, request)
        return "fresh" if found == mistaken else found

    return patch.object(ServerMachine, "_verdict", verdict)


# ---------------------------------------------------------------------------- servers


@bug("exactly once")
def duplicate_applied_twice():
    with _verdict_of("seen"):
        yield


@bug("freshness")
def pull_admitted_one_clock_early():
    early = lambda rule, clock: max(0, needed(rule, clock) - 1)  # noqa: E731
    with patch.object(server_module, "needed", early):
        yield


@bug("view")
def stale_view_accepted():
    with _verdict_of("stale"):
        yield


@bug("view")
def server_acts_between_two_views():
    with patch.object(ServerMachine, "frozen", property(lambda self: False)):
        yield


@bug("old view")
def older_view_taken_after_a_newer():
    real = Session._adopt

    def adopt(self, view, out):
        if self.role == "server" and view.id < self.view_id:
            self.view_id = (0, 0)
        return real(self, view, out)

    with patch.object(Session, "_adopt", adopt):
        yield


@bug("invariant")
def parked_pull_not_looked_at_again():
    def settle(self, out):
        parked, self._parked = self._parked, {}
        real(self, out)
        self._parked = parked

    real = ServerMachine._settle
    with patch.object(ServerMachine, "_settle", settle):
        yield


@bug("forgotten")
def parked_pull_forgotten():
    real = ServerMachine._pull

    def pull(self, sender, request, keys, accepted, now, out):
        real(self, sender, request, keys, accepted, now, out)
        if len(self._parked) > 1:  # room for one
            del self._parked[request.incarnation, request.seq]

    with patch.object(ServerMachine, "_pull", pull):
        yield


@bug("torn")
def push_applied_before_it_is_whole():
    """A sender dies half-way, and the server makes do with what it has."""
    real_arriving, real_handle = ServerMachine.arriving, ServerMachine.handle
    halves = {}

    def arriving(self, sender, message, nbytes):
        arrival = real_arriving(self, sender, message, nbytes)
        if isinstance(arrival, Accept):
            halves[self, sender] = (message, arrival.sink)
        return arrival

    def handle(self, event, now):
        out = []
        if isinstance(event, PeerLost) and (self, event.node) in halves:
            message, sink = halves.pop((self, event.node))
            self._request(event.node, message, sink, now, out)
        return out + real_handle(self, event, now)

    with (
        patch.object(ServerMachine, "arriving", arriving),
        patch.object(ServerMachine, "handle", handle),
    ):
        yield


@bug("torn")
def fragment_half_applied():
    real = DenseShard._update

    def update(self, index, part, values, lr):
        half = KeyRange(part.start, part.start + (len(part) + 1) // 2)
        real(self, index, half, values[: len(half)], lr)

    with patch.object(DenseShard, "_update", update):
        yield


@bug("lost")
def push_acknowledged_and_not_applied():
    """A round is closed without its last contribution."""
    real = DenseShard.merge
    with patch.object(DenseShard, "merge", lambda self, pushes: real(self, pushes[:2])):
        yield


@bug("split round")
def round_of_the_dead_dropped_on_one_server():
    """The last clock that the view gives a dead worker is ignored."""
    real = ServerMachine._drop_worker
    with patch.object(
        ServerMachine, "_drop_worker", lambda self, worker, last_clock: real(self, worker, 0)
    ):
        yield


@bug("tiling")
def rows_held_twice():
    def rows_of(self, table, server):
        held = real(self, table, server)
        return KeyRange(max(0, held.start - 1), held.stop) if server else held

    real = View.rows_of
    with patch.object(View, "rows_of", rows_of):
        yield


# ---------------------------------------------------------------------------- workers


@bug("split round")
def advance_overtakes_its_push():
    """Nothing waits for the pushes before it to be accepted."""
    real = WorkerMachine._add_leg

    def add_leg(self, *args):
        waiting, self._unaccepted = self._unaccepted, {}
        try:
            real(self, *args)
        finally:
            self._unaccepted = waiting | self._unaccepted

    with patch.object(WorkerMachine, "_add_leg", add_leg):
        yield


@bug("own writes")
def pull_overtakes_its_push():
    real = WorkerMachine._pump

    def pump(self, now, out):
        for leg in self._legs.values():
            if any(part.message.advance < 0 for part in leg.parts.values()):
                leg.gates = []
        real(self, now, out)

    with patch.object(WorkerMachine, "_pump", pump):
        yield


@bug("split round")
def push_dropped_at_its_time_out():
    """A request that is given up takes its push with it, wherever that has got to."""

    def orphan(self, leg):
        self._drop_leg(next(seq for seq, each in self._legs.items() if each is leg), leg)

    with patch.object(WorkerMachine, "_orphan", orphan):
        yield


@bug("late pull")
def late_pull_lands_in_a_buffer_in_use():
    with patch.object(Sink, "revoke", lambda self: setattr(self, "revoked", True)):
        yield


@bug("stuck")
def question_asked_only_once():
    """A barrier's `Enter` is not repeated."""
    real = Session.tick

    def tick(self, now, out):
        for waiting in self._waiting.values():
            waiting.again_at = float("inf")
        real(self, now, out)

    with patch.object(Session, "tick", tick):
        yield


# ---------------------------------------------------------------------------- the scheduler


@bug("durable")
def view_told_before_it_is_on_disk():
    real = SchedulerMachine._conclude

    def conclude(self, now, out):
        mine = []
        real(self, now, mine)
        out += [each for each in mine if not isinstance(each, Persist)]
        out += [each for each in mine if isinstance(each, Persist)]

    with patch.object(SchedulerMachine, "_conclude", conclude):
        yield


@bug("durable")
def view_never_on_disk():
    real = SchedulerMachine._conclude

    def conclude(self, now, out):
        mine = []
        real(self, now, mine)
        out += [each for each in mine if not isinstance(each, Persist)]

    with patch.object(SchedulerMachine, "_conclude", conclude):
        yield


@bug("named death")
def death_without_a_name():
    real = SchedulerMachine._end

    def end(self, error, now, out):
        if error is not None:
            error.message = "something went wrong"
        real(self, error, now, out)

    with patch.object(SchedulerMachine, "_end", end):
        yield


@bug("orderly")
def members_forgotten_by_a_restart():
    real = SchedulerMachine.__init__

    def init(self, options, journal=None):
        real(self, options, journal)
        if journal is not None and self.view is not None:
            self.members = {n: m for n, m in self.members.items() if m.role == "server"}

    with patch.object(SchedulerMachine, "__init__", init):
        yield


# ---------------------------------------------------------------------------- unseeded choices


@contextmanager
def choice_from_the_global_generator():
    """Parked pulls are served in an order that no seed decides."""
    real = ServerMachine._settle

    def settle(self, out):
        parked = list(self._parked.items())
        random.shuffle(parked)
        self._parked = dict(parked)
        real(self, out)

    with patch.object(ServerMachine, "_settle", settle):
        yield


@contextmanager
def choice_by_the_order_of_a_set():
    """Members are told of a view in the order of a set of strings."""
    real = SchedulerMachine._conclude

    def conclude(self, now, out):
        mine = []
        real(self, now, mine)
        told = {each.to: each for each in mine if isinstance(each, Send)}
        out += [each for each in mine if not isinstance(each, Send)]
        out += [told[node] for node in set(told)]

    with patch.object(SchedulerMachine, "_conclude", conclude):
        yield


UNSEEDED: dict[str, Plant] = {
    "choice from the global generator": choice_from_the_global_generator,
    "choice by the order of a set": choice_by_the_order_of_a_set,
}
