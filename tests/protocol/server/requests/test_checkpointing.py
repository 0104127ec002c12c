"""Checkpoints: whose rows are taken when, and which pushes wait until they are."""

import time
from itertools import count

import numpy as np
import pytest
from msgspec.structs import replace

from shoal.protocol.checkpoint_clocks import AT_ONCE, CheckpointClocks
from shoal.protocol.consistency import Clocks
from shoal.protocol.machine import Offloaded, Received, Save, Send
from shoal.protocol.messages.base import SCHEDULER, Part
from shoal.protocol.messages.membership import ConfirmRows, NewView, RowsConfirmed
from shoal.protocol.messages.replication import Replicate
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.notes import Unsaved
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.server.requests.long_work import LongWork
from shoal.protocol.server.state.replica import Replica
from shoal.protocol.views import Placement, View
from shoal.tables.consistency import asp, bsp, ssp
from shoal.tables.custom.calls import Pairs
from shoal.tables.custom.shard import handler
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec

WHOLE = Part(0, 0, 4)


@pytest.fixture
def ahead(rigs):
    """A worker that has passed the marker at 2, with a push of 10; the other is at 1."""

    def make(*rules, length=1):
        chain = rigs.Chain(*(rules or (ssp(2),)), length=length, save_every=2)
        chain.ask(0, 0, 0, advance=2)
        chain.ask(0, 1, 0, advance=1)
        chain.ask(0, 0, 1, 10, 10, 10, 10, clock=2)
        return chain

    return make


def test_a_push_past_the_marker_waits_until_the_rows_are_taken(ahead):
    chain = ahead()
    assert chain.told == [("worker-0", 1, "accepted", [])]
    assert chain.ask(0, 1, 1, 1, 1, 1, 1, clock=1) == [("worker-1", 1, "applied")]
    assert (chain.rows(0), chain.saved) == ([1] * 4, [])
    assert ("worker-0", 1, "applied") in chain.ask(0, 1, 2, advance=2)
    assert chain.saved == [(0, "w0", 2, [1] * 4)]
    assert chain.rows(0) == [11] * 4


def test_below_the_marker_nobody_waits(rigs):
    chain = rigs.Chain(ssp(2), length=1, save_every=2)
    chain.ask(0, 0, 0, advance=1)
    assert chain.ask(0, 0, 1, 5, 5, 5, 5, clock=1) == [("worker-0", 1, "applied")]


@pytest.mark.parametrize("rule", [asp(), ssp(2)])
def test_without_markers_nobody_waits(rigs, rule):
    chain = rigs.Chain(rule, length=1, save_every=2 if rule == asp() else 0)
    chain.ask(0, 0, 0, advance=2)
    assert chain.ask(0, 0, 1, 5, 5, 5, 5, clock=2) == [("worker-0", 1, "applied")]


def test_who_has_passed_it_reads_what_it_has_pushed(ahead):
    chain = ahead()
    assert chain.ask(0, 0, 2, pulls=(WHOLE,), clock=2) == []
    assert chain.ask(0, 1, 1, pulls=(WHOLE,), clock=1) == [
        ("worker-1", 1, "applied")
    ]  # who has not
    chain.ask(0, 1, 2, advance=2)
    assert ("worker-0", 2, "applied", [10] * 4) in chain.told


def test_the_tail_takes_them_before_what_waited_is_done_there(ahead):
    chain = ahead(length=2)
    chain.ask(0, 1, 1, 1, 1, 1, 1, clock=1)
    chain.ask(0, 1, 2, advance=2)
    assert (chain.rows(0), chain.saved) == ([11] * 4, [])
    chain.deliver()
    assert chain.saved == [(1, "w0", 2, [1] * 4)]
    assert chain.rows(1) == [11] * 4


def test_also_where_it_hears_of_it_in_another_view(ahead):
    chain = ahead(length=3)
    chain.ask(0, 1, 1, 1, 1, 1, 1, clock=1)
    chain.ask(0, 1, 2, advance=2)
    chain.ask(0, 0, 2, 100, 100, 100, 100, clock=2)  # came when nobody had to wait any more
    chain.under_way = []
    chain.without(1)
    chain.deliver()
    assert chain.saved == [(2, "w0", 2, [1] * 4)]
    assert chain.rows(2) == [111] * 4


def test_a_round_does_not_bring_its_clock_before_what_waited_for_the_same(ahead):
    chain = ahead(ssp(2), bsp(), length=2)
    chain.ask(0, 1, 1, 3, 3, 3, 3, table=1, clock=1)
    chain.ask(0, 1, 2, advance=2)
    told = [each[2] for each in chain.under_way if isinstance(each[2], Replicate)]
    waited = [number for number, each in enumerate(told) if each.what == "push"]
    reached = [number for number, each in enumerate(told) if each.clock >= 2]
    assert waited
    assert max(waited) < min(reached)


@pytest.fixture
def told(ahead):
    """... and the next server has been told what waits, as it is before rows move."""
    chain = ahead(length=2)
    chain.deliver()
    out = []
    chain.servers[0].replication._takeover.flush(out)
    chain._keep(0, out)
    chain.deliver()
    return chain


def test_a_push_that_waits_goes_with_its_rows(told):
    told.without(0)
    told.ask(1, 0, 3, advance=2)
    told.ask(1, 1, 1, advance=2)
    assert told.saved == [(1, "w0", 2, [0] * 4)]
    assert told.rows(1) == [10] * 4


def test_and_is_applied_once_where_it_waits_no_longer(told):
    told.ask(0, 1, 1, advance=2)
    told.deliver()
    assert told.rows(1) == [10] * 4
    told.without(0)
    told.ask(1, 0, 3, advance=3, forget_below=3)
    told.ask(1, 1, 2, advance=3)
    assert told.rows(1) == [10] * 4


def test_after_a_file_that_was_not_written_all_rows_are(rigs):
    spec = TableSpec("s", kind="sparse", access=Access("sum"), consistency=bsp())
    shard = open_shard(spec, spec.keys)
    replication = Chains({0: Replica(0, 0, Placement(spec.keys, (0,)), shard)})
    replication.rank = 0
    clocks = Clocks()
    clocks.enter(1, 0)
    saving = Checkpointer(CheckpointClocks(1), clocks, replication, LongWork(count()))
    since = []
    for clock in range(1, 22):
        if clock == 4:
            saving.begin_anew()
        out = []
        clocks.of("").advance(1, clock)
        saving.reached(out)
        since += [each.since for each in out]
        staged = shard.stage(spec.keys, 1)
        staged.keys[:], staged.values[:] = clock % 3, 1
        if clock == 1:
            staged = shard.stage(spec.keys, 10)
            staged.keys[:], staged.values[:] = range(10), 1
        shard.apply(staged, None)
    assert since == [-1, -1, 2, -1, *range(4, 19), -1, 20]  # and not too many in a row


def test_a_failure_while_rows_are_taken_is_not_forgotten():
    spec = TableSpec("s", kind="sparse", access=Access("sum"), consistency=bsp())
    shard = open_shard(spec, spec.keys)
    replication = Chains({0: Replica(0, 0, Placement(spec.keys, (0,)), shard)})
    replication.rank = 0
    clocks = Clocks()
    clocks.enter(1, 0)
    saving = Checkpointer(CheckpointClocks(1), clocks, replication, LongWork(count()))
    staged = shard.stage(spec.keys, 10)
    staged.keys[:], staged.values[:] = range(10), 1
    shard.apply(staged, None)
    right, since = shard.changes, []

    def changes():
        if len(since) == 1:
            saving.begin_anew()
        return right()

    shard.changes = changes
    for clock in (1, 2, 3):
        out = []
        clocks.of("").advance(1, clock)
        saving.reached(out)
        since += [each.since for each in out]
    assert since == [-1, 1, -1]


def test_a_checkpoint_is_taken_once_whatever_views_come():
    """A second file of changes would be built on itself."""
    spec = TableSpec("w", 4, fragment_rows=4, consistency=bsp())
    shard = open_shard(spec, spec.keys)
    replica = Replica(0, 0, Placement(spec.keys, (0, 1)), shard)
    chains = Chains({0: replica})
    chains.rank = 1  # the tail, which a round has reached before the head's word of its clock
    saving = Checkpointer(CheckpointClocks(1), Clocks(), chains, LongWork(count()))
    out = []
    for number in (1, 2):
        saving.adopt(View(1, number, (), (), (spec,)))
        saving.before(replica, 1, out)
    assert [each.clock for each in out] == [1]


class Saved:
    any_thread = True

    def __init__(self, fails=False):
        self.fails = fails

    def save(self):
        if self.fails:
            raise ValueError("disk of mine is full")
        return Pairs.of(np.array([1], np.uint64), [[2.0]], "f4")


@pytest.fixture
def of_a_handler():
    """A checkpointer of one custom shard, at its first clock with a checkpoint."""

    def make(long_work=None, **options):
        handler("saved", Saved)
        spec = TableSpec("h", kind="custom", access=Access("saved", options), consistency=asp())
        shard = open_shard(spec, spec.keys)
        replication = Chains({0: Replica(0, 0, Placement(spec.keys, (0,)), shard)})
        replication.rank = 0
        clocks = Clocks()
        clocks.enter(1, 0)
        clocks.of("").advance(1, 1)
        long_work = long_work or LongWork(count())
        return Checkpointer(CheckpointClocks(1), clocks, replication, long_work)

    return make


def test_a_handler_that_fails_to_save_costs_its_checkpoint_only(of_a_handler):
    out = []
    of_a_handler(fails=True).reached(out)
    [note] = out
    assert isinstance(note, Unsaved)
    assert "failed in save: ValueError: disk of mine is full" in note.reason


def test_a_handler_for_any_thread_is_saved_outside_of_the_loop(of_a_handler):
    long_work, out = LongWork(count(1)), []
    saving = of_a_handler(long_work)
    long_work.run(saving.reached, out)
    assert long_work.busy == {0}
    offload = out[-1]
    assert not any(isinstance(each, Save) for each in out)
    long_work.resume(Offloaded(offload.ticket, offload.work()), out)
    assert out[-1].state["values"].tolist() == [2.0]


def test_a_marker_is_not_taken_once_more_when_later_pushes_are_in_the_rows(ahead):
    chain = ahead(length=2)
    chain.ask(0, 1, 1, advance=2)
    chain.deliver()
    assert chain.saved == [(1, "w0", 2, [0] * 4)]
    saving = chain.servers[1].requests.checkpointer
    saving._taken.clear()  # as of a copy that is a piece of another
    out = []
    saving.before(chain.servers[1].state.replicas[0], 2, out)
    assert out == []


def test_a_clock_that_jumps_over_many_checkpoints_takes_the_latest(rigs):
    chain = rigs.Chain(bsp(), length=1, workers=1, save_every=1)
    began = time.perf_counter()
    chain.ask(0, 0, 0, advance=1 << 60)
    assert time.perf_counter() - began < 1.0  # it would be a loop of so many rounds
    assert len(chain.saved) == AT_ONCE
    assert chain.saved[-1][2] == 1 << 60


# ---------------------------------------------------------------------------- the end


@pytest.fixture
def promised(rigs):
    """Two servers of one chain, and a worker; a view has promised a checkpoint of clock 4."""
    chain = rigs.Chain(bsp(), workers=1)
    view(chain, checkpoint_clocks=(4,))
    return chain


def view(chain, ranks=(0, 1), **more):
    """The next view, on these servers."""
    chain.view = replace(chain.view, number=chain.view.number + 1, **more)
    for rank in ranks:
        chain.receive(rank, SCHEDULER, NewView(chain.view))


def confirmed(chain, rank):
    """Ask a server whether the run may end; return the view in which it may."""
    effects = chain.servers[rank].handle(Received(SCHEDULER, ConfirmRows(1, chain.view.id)), 0.0)
    chain._keep(rank, effects)
    sent = [each.message for each in effects if isinstance(each, Send)]
    return [each.view for each in sent if isinstance(each, RowsConfirmed)]


def test_a_worker_that_takes_the_place_of_the_last_one_comes_to_the_checkpoint(promised):
    """Seed 40228: it was taken when the last worker died, and lacked what the next one pushed."""
    before = promised.view.workers
    view(promised, workers=())
    promised.deliver()
    assert promised.saved == []
    view(promised, workers=before)
    promised.deliver()
    for clock in range(4):
        promised.ask(0, 0, 2 * clock, 1, 1, 1, 1, clock=clock)
        for rank in (0, 1):
            promised.ask(rank, 0, 2 * clock + 1, clock=clock, advance=clock + 1)
        promised.deliver()
    assert promised.saved == [(1, "w0", 4, [4] * 4)]


def test_a_run_does_not_end_before_a_promised_checkpoint_is_taken(promised):
    """Seed 40952: the last worker was lost, and the run was over before its view had come."""
    view(promised, ranks=(0,), workers=())
    assert confirmed(promised, 1) == []  # it is in the view before
    view(promised, ranks=(0, 1), workers=())
    assert confirmed(promised, 1) == []  # the head has not told that the rounds are closed
    promised.deliver()
    assert confirmed(promised, 1) == confirmed(promised, 0) == [promised.view.id]
    assert promised.saved == [(1, "w0", 4, [0] * 4)]
