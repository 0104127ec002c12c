"""Long work suspends the handler that has come to it, and the server goes on meanwhile."""

from itertools import count

import pytest

from shoal.errors import InvalidValue
from shoal.protocol.machine import HasRoom, Offload, Offloaded, Ticked
from shoal.protocol.messages.admin import StatusRequest
from shoal.protocol.messages.base import SCHEDULER, Part
from shoal.protocol.messages.membership import Freeze, Frozen
from shoal.protocol.messages.requests import Computing, EncodedRequest, Probe
from shoal.protocol.server.notes import Kept
from shoal.protocol.server.requests.long_work import LongWork
from shoal.tables.consistency import asp, bsp
from tests.protocol.rigs.shard import FakeShard

LARGE, SMALL = Part(0, 0, 64), Part(1, 0, 4)


@pytest.fixture
def server(rigs):
    """A server with a large table and a small one; work on 64 rows is long."""

    def make(rule=None, other=None, **more):
        large = rigs.table(rule or asp(), 64, 64, "large")
        small = rigs.table(other or asp(), 4, 4, "small")
        return rigs.ServerRig(large, small, long_bytes=512, **more)

    return make


def push_large(rigs, rig, rank=0, seq=0, **more):
    rig.ask(rank, seq, rigs.as_bytes(*[1] * 64), pushes=(LARGE,), **more)
    return rig.effects


def offloaded(rig):
    [found] = [each for each in rig.effects if isinstance(each, Offload)]
    return found


def end(rig, effect):
    """Do the work, and have the server handle what it has kept, one event after the other."""
    rig.handle(Offloaded(effect.ticket, effect.work()))
    effects = list(rig.effects)
    while rig.machine.deadline() == rig.now:
        before = len(rig.machine.requests.interim.kept)
        rig.handle(Ticked())
        effects += rig.effects
        if not before:
            break
    rig.effects = effects


def test_a_large_push_is_applied_outside_of_the_loop_and_answered_after_that(server, rigs):
    rig = server()
    push_large(rigs, rig)
    work = offloaded(rig)
    assert rig.machine.suspended
    assert rig.codes("worker-0") == []
    assert rig.rows[0] == 0
    end(rig, work)
    assert not rig.machine.suspended
    assert rig.codes("worker-0") == ["applied"]
    assert rig.rows == [1] * 64


def test_a_small_push_is_applied_in_place(server, rigs):
    rig = server()
    assert rig.ask(0, 0, rigs.as_bytes(1, 1, 1, 1), pushes=(SMALL,)) == ["applied"]
    assert not any(isinstance(each, Offload) for each in rig.effects)


def test_small_tables_are_pushed_to_and_pulled_from_meanwhile(server, rigs):
    rig = server()
    push_large(rigs, rig)
    work = offloaded(rig)
    assert rig.ask(1, 0, rigs.as_bytes(1, 2, 3, 4), pushes=(SMALL,)) == ["applied"]
    rig.ask(1, 1, pulls=(SMALL,), forget_below=1)
    [reply] = rig.sends()
    assert list(memoryview(b"".join(reply.buffers)).cast("q")) == [1, 2, 3, 4]
    end(rig, work)


def test_the_same_worker_goes_on_with_other_tables_unless_it_waits_for_the_push(server, rigs):
    rig = server()
    push_large(rigs, rig)
    work = offloaded(rig)
    assert rig.ask(0, 1, pulls=(SMALL,)) == ["applied"]
    assert rig.ask(0, 2, pulls=(SMALL,), follows=(0,)) == []
    end(rig, work)
    assert rig.codes("worker-0") == ["applied", "applied"]


def test_a_pull_of_busy_rows_waits_for_them(server, rigs):
    rig = server()
    push_large(rigs, rig)
    work = offloaded(rig)
    assert rig.ask(1, 0, pulls=(LARGE,)) == []
    rig.receive("worker-1", Probe(rig.view.id, 12, 0))
    assert [each.reason for each in rig.sent()] == ["waits for an update of its rows to end"]
    end(rig, work)
    rows = [each for each in rig.sends() if each.to == "worker-1"]
    assert list(memoryview(b"".join(rows[0].buffers)).cast("q")) == [1] * 64


def test_a_push_to_busy_rows_is_kept_and_applied_after_that(server, rigs):
    rig = server()
    push_large(rigs, rig)
    work = offloaded(rig)
    push_large(rigs, rig, rank=1)
    assert not any(isinstance(each, Offload) for each in rig.effects)
    assert rig.notes(Kept)
    rig.handle(Offloaded(work.ticket, work.work()))
    rig.handle(Ticked())
    end(rig, offloaded(rig))
    assert rig.codes("worker-1") == ["applied"]
    assert rig.rows == [2] * 64


def test_a_probe_of_what_is_kept_is_told_that_the_server_computes(server, rigs):
    rig = server()
    push_large(rigs, rig)
    work = offloaded(rig)
    rig.receive("worker-0", Probe(rig.view.id, 11, 0))
    assert rig.sent() == [Computing(1)]
    end(rig, work)


def test_a_freeze_waits_and_is_promised_with_the_push_counted(server, rigs):
    rig = server()
    push_large(rigs, rig)
    work = offloaded(rig)
    rig.receive(SCHEDULER, Freeze((1, 2), rig.view.id))
    assert rig.sent() == []
    end(rig, work)
    assert rig.codes("worker-0") == ["applied"]
    assert rig.sent(Frozen)


def test_status_is_told_meanwhile(server, rigs):
    rig = server()
    push_large(rigs, rig)
    work = offloaded(rig)
    rig.receive(SCHEDULER, StatusRequest())
    assert rig.sends()
    end(rig, work)


def test_while_a_round_closes_its_group_reads_what_waits_for_no_clock_only(server, rigs):
    rig = server(bsp(), bsp())
    for rank in (0, 1):
        push_large(rigs, rig, rank)
    rig.ask(0, 1, advance=1)
    rig.ask(1, 1, advance=1)
    work = offloaded(rig)
    assert rig.ask(1, 2, clock=1, pulls=(SMALL,)) == []
    end(rig, work)
    assert rig.codes("worker-1").count("applied") == 3
    assert rig.rows == [2] * 64


def test_a_push_of_the_group_whose_round_closes_is_kept(server, rigs):
    """Its operation would tell the next servers a clock whose round they do not have."""
    rig = server(bsp(), asp())
    for rank in (0, 1):
        push_large(rigs, rig, rank)
        rig.ask(rank, 1, advance=1)
    work = offloaded(rig)
    assert rig.ask(0, 2, rigs.as_bytes(1, 1, 1, 1), pushes=(SMALL,), clock=1) == []
    end(rig, work)
    assert "applied" in rig.codes("worker-0")


def test_what_was_kept_is_handled_one_at_a_time_so_that_lent_rows_are_sent_first(server, rigs):
    rig = server()
    push_large(rigs, rig)
    work = offloaded(rig)
    push_large(rigs, rig, rank=1)
    rig.handle(HasRoom("worker-0"))
    assert rig.handle(Offloaded(work.ticket, work.work()))
    assert rig.machine.deadline() == rig.now
    rig.handle(Ticked())
    assert offloaded(rig)


def test_rows_that_are_lent_while_a_shard_is_saved_are_recalled_before_they_change(server, rigs):
    """The round changes a small table too, which is read until it does."""
    rig = server(bsp(), bsp(), save_every=1)
    for clock in (0, 1):
        pushed = {"pushes": (LARGE, SMALL), "advance": clock + 1}
        rig.ask(0, clock, rigs.as_bytes(*[1] * 68), clock=clock, **pushed)
    rig.ask(1, 0, advance=2)
    first_round = offloaded(rig)
    rig.handle(Offloaded(first_round.ticket, first_round.work()))
    copy = offloaded(rig)
    rig.ask(1, 1, pulls=(SMALL,))
    [reply] = rig.sends()
    recalled = []
    reply.guard.keep(lambda: recalled.append(bytes(reply.buffers[0])))
    rig.handle(Offloaded(copy.ticket, copy.work()))
    assert recalled == [bytes(rigs.as_bytes(1, 1, 1, 1))]
    end(rig, offloaded(rig))
    assert bytes(reply.buffers[0]) == bytes(rigs.as_bytes(2, 2, 2, 2))


def test_a_push_to_a_small_shard_that_is_being_saved_is_kept(server, rigs, monkeypatch):
    """A handler of a custom table may take long to save rows that are few."""
    monkeypatch.setattr(rigs.FakeShard, "copy_bytes", 1024)
    rig = server(bsp(), bsp(), save_every=1, workers=1)
    rig.ask(0, 0, rigs.as_bytes(1, 1, 1, 1), pushes=(SMALL,), advance=1)
    small = next(n for n, each in replicas(rig).items() if each.shard.spec.name == "small")
    while rig.machine.requests.long_work.busy != {small}:
        work = offloaded(rig)
        rig.handle(Offloaded(work.ticket, work.work()))
    work = offloaded(rig)
    assert rig.ask(0, 1, rigs.as_bytes(1, 1, 1, 1), pushes=(SMALL,), clock=1) == []
    assert rig.notes(Kept)
    end(rig, work)
    assert "accepted" in rig.codes("worker-0")


def replicas(rig):
    return rig.machine.state.replicas


def test_a_deadline_waits_while_a_handler_is_suspended(server, rigs):
    rig = server()
    push_large(rigs, rig)
    assert rig.machine.deadline() is None
    rig.handle(Ticked())
    assert rig.effects == []
    assert rig.machine.suspended


def test_an_error_of_the_work_is_raised_where_it_was_asked_for():
    work, out, seen = LongWork(count(1), 0), [], []

    def handler(effects):
        try:
            work.do([], 1, lambda: None)
        except InvalidValue as error:
            seen.append(error.message)
        effects.append("done")

    work.run(handler, out)
    offload = out[-1]
    work.resume(Offloaded(offload.ticket, error=InvalidValue("no memory")), out)
    assert seen == ["no memory"]
    assert out[-1] == "done"
    assert not work.suspended


def test_a_handler_that_raises_leaves_the_next_one_its_coroutine():
    work, out = LongWork(count(1), 0), []

    def bad(effects):
        raise InvalidValue("wrong")

    with pytest.raises(InvalidValue):
        work.run(bad, out)
    work.run(lambda effects: effects.append("next"), out)
    assert out == ["next"]
    assert not work.running


def test_work_outside_of_a_handler_is_done_in_place():
    assert LongWork(count(1), 0).do([], 1 << 40, lambda: 7) == 7


def test_rows_are_encoded_before_the_first_of_several_answers(server, rigs, monkeypatch):
    """Meanwhile a pull may leave: it is not answered then. Planted: rows_are_encoded_between_..."""
    encoded = set()
    monkeypatch.setattr(FakeShard, "is_encoded", lambda shard, rows: rows in encoded)
    monkeypatch.setattr(FakeShard, "encode", lambda shard, rows: encoded.add(rows))
    rig = server()
    push_large(rigs, rig)
    work = offloaded(rig)
    for seq in range(2):
        pull = EncodedRequest(rig.view.id, 12, seq, 0, 0, pulls=(LARGE,), pulled=((64,),))
        rig.receive("worker-1", pull)
        assert rig.codes("worker-1") == []
    rig.handle(Offloaded(work.ticket, work.work()))
    encoding = offloaded(rig)
    assert rig.machine.suspended
    assert rig.codes("worker-1") == []
    assert list(rig.machine.requests.wait_queue.problems()) == []
    rig.ask(1, 5, pulls=(SMALL,), forget_below=1)  # it needs no answer to the first one
    end(rig, encoding)
    replies = [each.message for each in rig.sends() if each.to == "worker-1"]
    assert [each.seq for each in replies] == [1]
    assert not list(rig.machine.requests.wait_queue.pulls)
