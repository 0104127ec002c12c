"""When rounds close: by all workers, by a quorum, by a cover of groups."""

from math import inf

import pytest

from shoal.protocol.machine import Ticked
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.replication import Replicate
from shoal.protocol.messages.requests import Reply
from shoal.protocol.views import FOREVER
from shoal.tables.consistency import Cover, Quorum, bsp

ALL = Part(0, 0, 4)
PUSH, PULL = (ALL,), (ALL,)
STEP = {"pushes": PUSH, "pulls": PULL}


@pytest.fixture
def server(rigs):
    """Make a server of four workers whose rounds close by a rule."""

    def make(closes, workers=4):
        tables = (rigs.table(bsp(closes)),)
        rig = rigs.ServerRig(*tables)
        rig.adopt(rigs.view_of(2, workers=range(workers), tables=tables))
        return rig

    return make


def step(rig, worker, values, clock=0, seq=0):
    """One exchange: push, advance, pull; return the codes that came at once."""
    return rig.ask(worker, seq, values, clock=clock, advance=clock + 1, **STEP)


def test_a_quorum_closes_a_round_without_the_last_worker(server, values):
    rig = server(Quorum(3))
    assert step(rig, 0, values) == []
    assert step(rig, 1, values) == []
    assert rig.rows == [0, 0, 0, 0]
    assert step(rig, 2, values) == ["applied"]
    assert rig.rows == [3, 6, 9, 12]
    assert {each.to for each in rig.sends(Reply)} == {"worker-0", "worker-1", "worker-2"}
    assert {each.message.round_weight for each in rig.sends(Reply)} == {3.0}


def test_a_late_push_is_refused_and_its_worker_moves_on(server, values):
    rig = server(Quorum(3))
    for worker in range(3):
        step(rig, worker, values)
    assert step(rig, 3, values) == ["round_closed"]
    reply = rig.sent(Reply)[0]
    assert (reply.reason, reply.clock_min) == ("round 0 has closed", 1)
    assert rig.rows == [3, 6, 9, 12]
    assert rig.machine.state.clocks[rig.view.workers[3].incarnation] == 1


def test_workers_that_come_in_the_grace_window_are_in_the_round(server, values):
    rig = server(Quorum(2, grace_s=0.5))
    step(rig, 0, values)
    rig.handle(Ticked())
    assert rig.machine.state.clocks.due_at == inf
    rig.now = 1.0
    assert step(rig, 1, values) == []  # the window begins
    assert rig.machine.deadline() <= rig.machine.state.clocks.due_at == 1.5
    rig.now = 1.4
    assert step(rig, 2, values) == []
    rig.now = 1.49
    rig.handle(Ticked())
    assert rig.rows == [0, 0, 0, 0]
    rig.now = 1.5
    rig.handle(Ticked())
    assert [each.code for each in rig.sent(Reply)] == ["applied"] * 3
    assert rig.rows == [3, 6, 9, 12]


def test_a_round_closes_in_its_grace_window_once_all_are_there(server, values):
    rig = server(Quorum(2, grace_s=60.0), workers=3)
    for worker in range(2):
        assert step(rig, worker, values) == []
    assert step(rig, 2, values) == ["applied"]
    assert rig.machine.state.clocks.due_at == inf


def test_a_window_that_is_over_ends_with_whatever_comes_next(server, values):
    """The loop may be late, and the tick comes after a message."""
    rig = server(Quorum(1, grace_s=0.5))
    step(rig, 0, values)
    rig.now = 3.0
    assert step(rig, 1, values) == ["round_closed"]


def test_a_reader_waits_for_the_round_and_not_for_the_slowest(server, values):
    rig = server(Quorum(3))
    for clock in range(3):
        for worker in range(3):
            step(rig, worker, values, clock, seq=clock)
    assert rig.rows == [9, 18, 27, 36]
    assert rig.ask(0, 3, clock=3, pulls=PULL) == ["applied"]  # worker-3 is at clock 0
    assert rig.ask(0, 4, clock=3, advance=4, pulls=PULL) == []
    [(_, reason)] = rig.machine.waiting()
    assert reason == (
        "waits for clock 4 of worker-1 (at 3), worker-2 (at 3), worker-3 (at 0), or for "
        "Quorum(k=3, grace_s=0.0)"
    )


def test_fewer_workers_than_a_quorum_are_all_waited_for(server, values, rigs):
    rig = server(Quorum(3))
    step(rig, 0, values)
    step(rig, 1, values)
    rig.adopt(rigs.view_of(3, workers=[0, 1], tables=rig.view.tables))
    assert [each.code for each in rig.sent(Reply)] == ["applied"] * 2
    step(rig, 0, values, clock=1, seq=1)
    assert rig.rows == [2, 4, 6, 8]
    step(rig, 1, values, clock=1, seq=1)
    assert rig.rows == [4, 8, 12, 16]


def test_workers_that_have_finished_do_not_count_in_a_quorum(server, values):
    rig = server(Quorum(2))
    for worker in range(2):
        rig.ask(worker, 0, clock=0, advance=FOREVER)
    assert step(rig, 2, values) == []
    assert step(rig, 3, values) == ["applied"]
    assert rig.rows == [2, 4, 6, 8]


def test_the_next_server_of_the_chain_hears_of_the_round_and_not_of_the_slowest(rigs, values):
    rig = rigs.ServerRig(rigs.table(bsp(Quorum(1))), servers=2, replicas=2)
    half = values[:16]
    rig.ask(0, 0, half, pushes=(Part(0, 0, 2),), advance=1)
    [told] = [each.message for each in rig.sends(Replicate) if each.message.what == "round"]
    assert told.clock == 1  # and worker-1 is at 0


def test_a_push_counts_in_the_shards_that_have_it_only(rigs, values):
    """Seeds 3035 and 3286: after a takeover one part of a push was in a round, and the rest came
    late. It counted as applied to all shards of the server."""
    rule = bsp(Quorum(1))
    rig = rigs.ServerRig(rigs.table(rule), rigs.table(rule, name="v"))
    both = (ALL, Part(1, 0, 4))
    two = bytes(values) + bytes(values)
    rig.ask(0, 0, two, pushes=both)
    rig.ask(1, 0, two, pushes=both)
    rounds, log = rig.machine.state.rounds, rig.machine.requests.admission.logs["worker-1"]
    [of_second] = [number for number in rig.machine.state.replicas if number]
    rounds.remove(log.incarnation, 0, [of_second])
    log.refuse(0, of_second)
    rig.ask(0, 1, clock=0, advance=1)
    shards = [each.shard for each in rig.machine.state.replicas.values()]
    assert [shard.merged for shard in shards] == [[[1.0, 1.0]], [[1.0]]]
    assert log.missing(0, Part(0, 0, 4)) == []
    assert [len(rows) for rows in log.missing(0, Part(1, 0, 4))] == [4]


def test_what_was_refused_is_not_taken_when_it_comes_again_in_a_new_view(server, values, rigs):
    """Its worker has its buffers back: a copy that is under way may have other values by now."""
    rig = server(Quorum(1), workers=2)
    step(rig, 0, values)
    assert step(rig, 1, values) == ["round_closed"]
    rig.machine.requests.admission.logs["worker-1"].placements_changed()
    rig.machine.requests.admission.logs["worker-0"].placements_changed()
    assert rig.machine.requests.admission.logs["worker-0"].recheck == {0}
    assert rig.machine.requests.admission.logs["worker-1"].recheck == set()
    assert rig.ask(1, 0, values, clock=9, pushes=PUSH) == ["round_closed"]


# ---------------------------------------------------------------------------- covers

PAIRS = Cover(((0, 1), (2, 3)))


def test_a_cover_closes_with_one_worker_of_each_group(server, values):
    rig = server(PAIRS)
    assert step(rig, 1, values) == []
    assert step(rig, 0, values) == []  # the same values again
    assert step(rig, 3, values) == ["applied"]
    assert {each.to for each in rig.sends(Reply)} == {"worker-0", "worker-1", "worker-3"}
    assert rig.rows == [2, 4, 6, 8]  # those of worker-0 and worker-3
    assert {each.message.round_weight for each in rig.sends(Reply)} == {2.0}
    assert step(rig, 2, values) == ["round_closed"]


def test_a_worker_in_no_group_of_a_cover_is_waited_for(server, values):
    rig = server(Cover(((0, 1),)), workers=3)
    assert step(rig, 1, values) == []
    assert step(rig, 2, values) == ["applied"]


def test_a_group_that_has_left_is_not_waited_for(server, values, rigs):
    rig = server(PAIRS)
    step(rig, 1, values)
    rig.adopt(rigs.view_of(3, workers=[0, 1], tables=rig.view.tables))
    assert [each.code for each in rig.sent(Reply)] == ["applied"]
