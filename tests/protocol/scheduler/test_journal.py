"""The journal: a scheduler that restarts goes on where the one before it ended."""

import msgspec
import pytest

from shoal.errors import DataCorrupt, InvalidValue
from shoal.protocol.messages.membership import (
    Abort,
    BarrierArrival,
    BarrierReleased,
    Declare,
    End,
    Freeze,
    Heartbeat,
)
from shoal.protocol.scheduler.journal import read_record
from shoal.protocol.scheduler.notes import MemberLost
from shoal.protocol.scheduler.options import SchedulerOptions, check_options
from shoal.tables.consistency import bsp


def test_a_restarted_scheduler_begins_a_new_term_with_the_same_members(started):
    again = started.restart()
    again.at(100.0)
    assert again.told(Freeze) == {"server-0": Freeze((2, 2), (1, 1))}
    again.promise()
    assert again.view.id == (2, 2)
    assert again.view.reason == "the scheduler restarted"
    assert again.view.workers == started.view.workers
    assert again.notes(MemberLost) == []
    again.at(109.0)
    assert again.notes(MemberLost) == []  # nobody is taken for dead for one detection period
    again.receive("server-0", Heartbeat(again.incarnation("server-0"), again.view.id))
    again.at(110.0)
    assert [note.name for note in again.notes(MemberLost)] == ["worker-0", "worker-1"]


def test_a_restarted_scheduler_grants_no_incarnation_twice(rigs):
    rig = rigs.SchedulerRig(elastic=True)
    rig.join("server-0", "worker-0", "worker-1")
    again = rig.restart()
    again.join("worker-2")
    assert again.machine.members.by_id["worker-2"].incarnation == 4


def test_a_restarted_scheduler_keeps_barriers_and_finished_workers(started):
    for node, incarnation in (("worker-0", 2), ("worker-1", 3)):
        started.receive(node, BarrierArrival(incarnation, "epoch", 0, ("workers",)))
    started.finish("worker-0")
    again = started.restart()
    again.receive("worker-1", BarrierArrival(3, "epoch", 0, ("workers",)))
    assert BarrierReleased("epoch", 0) in again.sent()
    again.finish("worker-1")
    again.confirm()
    assert End("") in again.sent()


def test_a_scheduler_restarted_during_the_shutdown_goes_on_with_it(started):
    started.receive("worker-1", Abort("out of memory"))
    again = started.restart()
    again.at(0.0)
    assert again.told(End)["worker-0"] == End("worker-1: out of memory")


def test_a_journal_record_decodes_to_what_was_written(started):
    record = read_record(started.journal)
    assert record.view == started.view
    assert [member.name for member in record.members] == ["server-0", "worker-0", "worker-1"]


def with_leaf(value, path, leaf):
    """A nested list with another leaf at a path of indices."""
    if not path:
        return leaf
    first, *rest = path
    return [with_leaf(each, rest, leaf) if i == first else each for i, each in enumerate(value)]


TERM, VIEW, NEXT, MEMBERS = 0, 1, 2, 3  # the fields of a record; then those of a view, of a member
NUMBER, SERVERS, INCARNATION, RANK = 1, 2, 3, 2


@pytest.mark.parametrize(
    ("path", "leaf", "words"),
    [
        ([TERM], "one", "Expected `int`"),
        ([TERM], -1, "out of its range"),
        ([TERM], (1 << 64) - 1, "out of its range"),
        ([VIEW, NUMBER], (1 << 63) - 1, "Expected `int` <= "),
        ([NEXT], 2, "incarnation was not granted"),
        ([NEXT], (1 << 64) - 1, "incarnation was not granted"),
        ([MEMBERS, 0, RANK], -1, "Expected `int` >= 0"),
        ([MEMBERS, 0, INCARNATION], 0, "incarnation was not granted"),
        ([VIEW, SERVERS], [], "servers that it does not have"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(started, rigs, path, leaf, words):
    started.receive("worker-0", Declare(2, rigs.table(bsp())))
    started.promise()
    record = msgspec.msgpack.decode(started.journal)
    assert read_record(started.journal).view.tables
    with pytest.raises(DataCorrupt, match=words):
        read_record(msgspec.msgpack.encode(with_leaf(record, path, leaf)))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93\x01\x02", b"\x98\x01\xc0\x01\x90\x90\x80\xc2\xa1\xff"]
)
def test_bytes_that_are_no_record_are_refused(data):
    with pytest.raises(DataCorrupt, match="is no record of a scheduler"):
        read_record(data)


@pytest.mark.parametrize(
    ("servers", "workers", "words"), [(-1, 1, "not -1"), (1, 0, "at least one worker")]
)
def test_impossible_cluster_sizes_are_refused(servers, workers, words):
    with pytest.raises(InvalidValue, match=words):
        check_options(SchedulerOptions(servers, workers))
    check_options(SchedulerOptions(0, 1))
