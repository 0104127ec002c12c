"""Tables that worker groups declare, and shards that servers open before a view has them."""

import pytest
from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.messages.admin import DeathReport
from shoal.protocol.messages.membership import (
    Declare,
    Freeze,
    Join,
    NewView,
    NotDeclared,
    OpenShards,
    ShardsOpened,
)
from shoal.protocol.scheduler import table_catalog
from shoal.protocol.scheduler.notes import ShardUnopened
from shoal.tables.consistency import Quorum, asp, bsp, ssp


@pytest.mark.parametrize(
    ("name", "rule", "owner"),
    [
        ("eval/w", bsp(), "eval"),
        ("w", asp(), ""),
        ("other/w", asp(), ""),
        ("w", bsp(), None),
        ("a//b", asp(), None),
        ("eval/", asp(), None),
    ],
)
def test_a_tables_name_decides_which_groups_clocks_it_follows(attached, rigs, name, rule, owner):
    spec = replace(rigs.table(rule, name=name), group="somebody's")
    attached.receive("guest-0", Declare(attached.incarnation("guest-0"), spec))
    if owner is None:
        assert attached.told(NotDeclared)["guest-0"].table == name
        return
    attached.promise()
    assert [(each.name, each.group) for each in attached.view.tables] == [(name, owner)]


def test_another_group_may_declare_an_existing_table(attached, rigs):
    attached.receive("worker-0", Declare(2, rigs.table(bsp())))
    attached.promise()
    attached.receive("guest-0", Declare(attached.incarnation("guest-0"), rigs.table(bsp())))
    assert attached.told(NewView)["guest-0"].view.tables[0].group == ""


def test_tables_of_a_group_close_their_rounds_by_one_rule(attached, rigs):
    """A group has one clock. Tables of another group, and asynchronous ones, may differ."""
    attached.receive("worker-0", Declare(2, rigs.table(bsp(Quorum(2)))))
    attached.receive("worker-0", Declare(2, rigs.table(bsp(), name="v")))
    refused = attached.told(NotDeclared)["worker-0"]
    assert refused.reason == (
        "rounds of table 'v' close by all workers, and those of table 'w' by "
        "Quorum(k=2, grace_s=0.0): all tables of a worker group that go by clocks have the same "
        "rule; give both the same, or make one asp()"
    )
    attached.receive("worker-0", Declare(2, rigs.table(ssp(2, "round_end", Quorum(2)), name="x")))
    attached.receive("worker-0", Declare(2, rigs.table(asp(), name="y")))
    guest = attached.incarnation("guest-0")
    attached.receive("guest-0", Declare(guest, rigs.table(bsp(), name="eval/v")))
    attached.promise()
    assert [each.name for each in attached.view.tables] == ["w", "x", "y", "eval/v"]


@pytest.mark.parametrize(("given", "size"), [(0, 3), (5, 5)])
def test_a_table_keeps_the_fragments_that_it_had_in_the_run_that_is_continued(rigs, given, size):
    rig = joined(rigs, fragment_rows={"w": 3})
    rig.receive("worker-0", Declare(3, rigs.table(rows=20, fragment_rows=given)))
    rig.receive("worker-0", Declare(3, rigs.table(rows=20, fragment_rows=0, name="new")))
    rig.promise()
    assert [spec.fragment_rows for spec in rig.view.tables] == [size, 20]


def test_a_table_that_all_servers_together_cannot_hold_is_not_cut_for_them(rigs):
    """A table of 10**12 rows has 65,000 fragments; servers are asked for what could fit."""
    rig = rigs.SchedulerRig(servers=2, workers=1)
    for rank in range(2):
        node = f"server-{rank}"
        rig.receive(node, Join(node, "server", "", "", memory=1 << 30))
    rig.receive("worker-0", Join("worker-0", "worker", "", ""))
    rig.promise()
    rig.receive("worker-0", Declare(3, rigs.table(rows=10**12, fragment_rows=0)))
    told = rig.told(NotDeclared)["worker-0"]
    assert told.reason.startswith("table 'w' has rows of 7.3 TiB, and the servers of this run")
    assert "together have 2.0 GiB for tables; give servers more with --memory" in told.reason
    assert not rig.told(OpenShards)
    rig.receive("worker-0", Declare(3, rigs.table(rows=1000, fragment_rows=0)))
    rig.promise()
    assert [spec.name for spec in rig.view.tables] == ["w"]


def test_of_servers_that_have_said_nothing_any_table_is_asked(rigs):
    rig = joined(rigs)
    rig.receive("worker-0", Declare(3, rigs.table(rows=10**12, fragment_rows=10**9)))
    assert not rig.told(NotDeclared)
    assert rig.told(OpenShards)


@pytest.fixture
def rig(rigs):
    """Two servers and two replicas."""
    return joined(rigs)


def joined(rigs, **options):
    rig = rigs.SchedulerRig(servers=2, replicas=2, pause_s=5.0, **options)
    for number, name in enumerate(("server-0", "server-1", "worker-0", "worker-1"), start=10):
        rig.receive(name, Join(name, name.split("-")[0], "", "here", launch=str(number)))
    rig.promise()
    return rig


def asked(rig):
    """By server: the tables that it is asked to open shards of."""
    told = rig.told(OpenShards).items()
    return {node: [spec.name for spec, _ in message.tables] for node, message in told}


def test_a_table_is_in_a_view_when_all_its_shards_are_open(rig, rigs):
    rig.receive("worker-0", Declare(3, rigs.table()))
    assert asked(rig) == {"server-0": ["w"], "server-1": ["w"]}
    assert rig.sent(Freeze) == []
    lists = rig.told(OpenShards)
    for node, incarnation in (("server-0", 1), ("server-1", 2)):
        opened = tuple((spec.name, rows) for spec, rows in lists[node].tables)
        rig.receive(node, ShardsOpened(incarnation, lists[node].number, opened))
        assert bool(rig.sent(Freeze)) == (node == "server-1")
    rig.promise()
    assert [spec.name for spec in rig.view.tables] == ["w"]


def test_a_table_that_a_server_cannot_open_is_not_declared_and_nothing_else_happens(rig, rigs):
    rig.receive("worker-0", Declare(3, rigs.table()))
    rig.receive("worker-1", Declare(4, rigs.table()))
    rig.machine._views._openings._lists["server-1"].shards.clear()  # one that can
    rig.open("no memory")
    refused = NotDeclared("w", "server-0: no memory")
    assert rig.told(NotDeclared) == {"worker-0": refused, "worker-1": refused}
    assert rig.machine.ended is False
    assert rig.view.number == 1
    rig.receive("worker-0", Declare(3, rigs.table()))  # it may fit now
    rig.promise()
    assert [spec.name for spec in rig.view.tables] == ["w"]


def test_a_question_is_repeated_until_all_is_open(rig, rigs):
    rig.receive("worker-0", Declare(3, rigs.table()))
    rig.at(1.0)
    assert asked(rig).keys() == {"server-0", "server-1"}
    rig.open()
    rig.at(2.0)
    assert asked(rig) == {}


@pytest.fixture
def short(rig, rigs):
    """Three servers, one of which dies: its rows are to go to another."""
    rig.receive("worker-0", Declare(3, rigs.table()))
    rig.promise()
    rig.receive("server-2", Join("server-2", "server", "", "here", launch="20"))
    rig.promise()
    rig.receive("engine", DeathReport("11"))
    rig.promise()
    return rig


def test_a_server_that_cannot_open_a_shard_in_repair_ends_nothing_and_is_asked_again(short):
    assert asked(short)["server-2"]
    short.open("no memory")
    assert {note.name for note in short.notes(ShardUnopened)} == {"server-2"}
    assert short.machine.ended is False
    assert not any(p.syncing_since for p in short.view.placements[0])
    assert any("cannot open it" in each.reason for each in short.why())
    short.at(4.9)
    assert not asked(short).get("server-2")
    short.at(5.0)
    assert asked(short)["server-2"]
    short.open()
    short.at(5.5)
    assert "rows move" in short.machine._views._proposal.reason


def test_a_shard_that_a_view_has_placed_is_not_open_for_the_next_one(short, monkeypatch):
    """A transfer of its rows that begins anew, from another giver, needs another shard."""
    [asked] = [each for node, each in short.told(OpenShards).items() if node == "server-2"]
    rows = {(spec.name, each) for spec, ranges in asked.tables for each in ranges}
    openings = short.machine._views._openings
    short.receive("engine", DeathReport("13"))  # of worker-1: a view is due at once
    short.open()
    assert {each[:2] for each in openings.opened} == rows
    with monkeypatch.context() as patch:
        patch.setattr(short, "adopt", lambda: None)
        short.promise()
    # the view after it is due at once
    short.receive("server-3", Join("server-3", "server", "", "here", launch="21"))
    short.adopt()
    placed = {each.rows for each in short.view.placements[0] if each.syncing_since}
    assert placed == {each for _, each in rows}
    assert openings.opened == frozenset()
    here = short.incarnation("server-2")
    again = ShardsOpened(here, asked.number, (("w", tuple(placed)),))
    short.receive("server-2", again)  # it arrives late
    assert openings.opened == frozenset()
    openings.want(replace(short.view, number=99, placements=anew(short.view)), short.view, 9.0, [])
    assert openings._lists["server-2"].number > asked.number
    assert openings._lists["server-2"].missing


def anew(view):
    """The placements of a view in which all transfers begin."""
    return tuple(
        tuple(replace(each, syncing_since=99 * (each.syncing_since > 0)) for each in parts)
        for parts in view.placements
    )


def test_rows_are_repaired_elsewhere_where_one_server_cannot_take_them(short):
    short.receive("server-3", Join("server-3", "server", "", "here", launch="21"))
    short.promise()
    views = short.machine._views
    views._openings._barred["w", "server-2"] = (100.0, "no memory")
    views.consider(short.now, effects := [])
    assert {each.to for each in effects if isinstance(each.message, OpenShards)} >= {"server-3"}
    assert not views._openings._lists["server-2"].shards


def test_shards_that_a_server_was_not_asked_for_are_not_taken_in(started, rigs):
    started.receive("worker-0", Declare(2, rigs.table(bsp())))
    [asked] = started.sent(OpenShards)
    answer = ShardsOpened(
        1, asked.number, (("v", (KeyRange(0, 9),)),), (("u", KeyRange(0, 1), "no memory"),)
    )
    started.receive("server-0", answer)
    openings = started.machine._views._openings
    assert (openings.opened, openings.barred) == (frozenset(), frozenset())


@pytest.mark.parametrize("limit", ["TABLES_MAX", "TABLES_BYTES_MAX"])
def test_a_table_for_which_views_have_no_room_is_refused(rig, rigs, monkeypatch, limit):
    """Every member is sent a description of all tables, and refuses what is too long."""
    monkeypatch.setattr(table_catalog, limit, {"TABLES_MAX": 2, "TABLES_BYTES_MAX": 400}[limit])
    refused = []
    for number in range(4):
        spec = rigs.table(asp(), name=f"t{number}")
        rig.receive("worker-0", Declare(rig.incarnation("worker-0"), spec))
        refused += [each.reason for each in rig.told(NotDeclared).values()]
    assert 0 < len(refused) < 4
    words = {"TABLES_MAX": "a run has at most 2 tables", "TABLES_BYTES_MAX": "into one table"}
    assert all(words[limit] in reason for reason in refused)
