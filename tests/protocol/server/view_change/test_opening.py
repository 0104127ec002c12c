"""A server opens the shards of the next view before it is made."""

from typing import cast

import pytest

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.protocol.machine import Offload, Offloaded
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import Heartbeat, NewView, OpenShards, ShardsOpened
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.state.shard_store import OpenStore
from shoal.protocol.session import Session
from shoal.tables.dense.shard import DenseShard
from shoal.tables.spec import Access, TableSpec

ROWS = KeyRange(0, 8)


@pytest.fixture
def opened():
    """What was opened, in order."""
    return []


@pytest.fixture
def server(rigs, opened):
    def open_shard(spec, rows):
        opened.append((spec.name, rows))
        if spec.name == "huge":
            raise InvalidValue("table 'huge' does not fit")
        return DenseShard(spec, rows) if spec.kind == "dense" else object()

    rig = rigs.Rig(ServerMachine(Session("server-0", "server"), cast(OpenStore, open_shard)))
    rig.receive(SCHEDULER, NewView(rigs.view_of()))
    return rig


def ask(rig, number, *specs, view=(1, 1)):
    rig.receive(SCHEDULER, OpenShards((1, number), view, tuple((spec, (ROWS,)) for spec in specs)))


def work(rig):
    """Do what was offloaded."""
    for each in [each for each in rig.effects if isinstance(each, Offload)]:
        try:
            done = Offloaded(each.ticket, each.work())
        except InvalidValue as error:
            done = Offloaded(each.ticket, error=error)
        rig.handle(done)


def test_a_shard_is_opened_outside_of_the_loop_and_taken_by_the_view(server, rigs, opened):
    table = rigs.table(rows=8)
    ask(server, 1, table)
    assert server.sent() == [ShardsOpened(1, (1, 1))]
    assert opened == []
    work(server)
    assert server.sent() == [ShardsOpened(1, (1, 1), (("w", (ROWS,)),))]
    server.receive(SCHEDULER, NewView(rigs.view_of(number=2, tables=(table,))))
    assert opened == [("w", ROWS)]
    assert len(server.machine.state.replicas) == 1


def test_a_list_that_comes_again_opens_nothing_again(server, rigs, opened):
    table = rigs.table(rows=8)
    ask(server, 1, table)
    work(server)
    ask(server, 1, table)
    assert server.sent() == [ShardsOpened(1, (1, 1), (("w", (ROWS,)),))]
    server.receive(SCHEDULER, NewView(rigs.view_of(number=2, tables=(table,))))
    ask(server, 1, table)
    assert [each for each in server.effects if isinstance(each, Offload)] == []


def test_a_later_list_keeps_what_is_on_it_and_drops_the_rest(server, rigs, opened):
    one, two, three = (rigs.table(rows=8, name=name) for name in "abc")
    ask(server, 1, one, two)
    work(server)
    ask(server, 2, two, three)
    work(server)
    assert [name for name, _ in opened] == ["a", "b", "c"]
    assert [name for name, _ in server.sent(ShardsOpened)[-1].opened] == ["b", "c"]
    ask(server, 1, one, two)  # it comes late
    assert server.sent() == []


def test_what_cannot_be_opened_is_said_and_tried_again_with_another_list_only(server, rigs, opened):
    huge = rigs.table(rows=8, name="huge")
    ask(server, 1, huge)
    work(server)
    failed = (("huge", ROWS, "table 'huge' does not fit"),)
    assert server.sent() == [ShardsOpened(1, (1, 1), (), failed)]
    ask(server, 1, huge)
    assert [each for each in server.effects if isinstance(each, Offload)] == []
    ask(server, 2, huge)
    work(server)
    assert len(opened) == 2


def test_a_list_of_a_view_that_is_not_here_yet_waits_for_it(server, rigs):
    """It may drop what that view takes."""
    table = rigs.table(rows=8)
    ask(server, 1, table)
    work(server)
    ask(server, 2, view=(1, 2))
    assert [type(each) for each in server.sent()] == [Heartbeat]
    server.receive(SCHEDULER, NewView(rigs.view_of(number=2, tables=(table,))))
    assert len(server.machine.state.replicas) == 1


def test_smaller_shards_are_opened_first(server, rigs, opened):
    wide = TableSpec("wide", 8, (64,), fragment_rows=8)
    ask(server, 1, wide, rigs.table(rows=8, name="narrow"))
    work(server)
    assert [name for name, _ in opened] == ["narrow", "wide"]


def test_a_custom_tables_handler_is_made_in_the_loop(server, rigs, opened):
    """It may be bound to the thread that calls it."""
    ask(server, 1, TableSpec("calls", kind="custom", access=Access("lists"), fragment_rows=8))
    assert [each for each in server.effects if isinstance(each, Offload)] == []
    assert [name for name, _ in opened] == ["calls"]
    assert server.sent() == [ShardsOpened(1, (1, 1), (("calls", (ROWS,)),))]
