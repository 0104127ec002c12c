"""Decisions about views, each with its reason."""

import pytest
from msgspec.structs import replace

from shoal.protocol.messages.membership import Frozen, GroupProgress
from shoal.protocol.scheduler.membership import closed_up, decide_view, missing, next_view
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.protocol.scheduler.rows.rebalance import Moves
from shoal.protocol.views import Member, View
from shoal.tables.consistency import asp, bsp, ssp
from shoal.tables.spec import TableSpec

TWO_AND_TWO = SchedulerOptions(servers=2, workers=2)


def member(name, incarnation=1, **more):
    role, rank = name.split("-")
    return Member(name, role, int(rank), incarnation, **more)


def members(*names):
    return {name: member(name, number) for number, name in enumerate(names, 1)}


ALL = members("server-0", "server-1", "worker-0", "worker-1")


def at(clocks, open_round, group="", waits=True):
    """A promise of a server whose rounds have come so far, and are open or not."""
    return Frozen((1, 2), clocks, (GroupProgress(group, open_round, waits=waits),))


def first_view(present=ALL):
    return next_view((1, 1), present, None, (), [Frozen((1, 1), ())], "")


@pytest.mark.parametrize(
    ("present", "words"),
    [
        (
            members(),
            "2 of 2 servers (server-0, server-1) and 2 of 2 workers (worker-0, worker-1)",
        ),
        (members("server-1", "worker-0", "worker-1"), "1 of 2 servers (server-0)"),
        (members("server-0", "server-1", "worker-1"), "1 of 2 workers (worker-0)"),
        (ALL, ""),
        ({**ALL, "worker-2": member("worker-2", 9)}, ""),
    ],
)
def test_missing_names_the_members_that_have_not_joined(present, words):
    assert missing(present.values(), TWO_AND_TWO) == words


def test_a_gap_among_the_ranks_counts_as_nobody_missing():
    holed = members("server-0", "server-1", "worker-1", "worker-4")
    assert missing(holed.values(), TWO_AND_TWO) == ""
    closed = closed_up(holed.values())
    assert {n: m.rank for n, m in closed.items()} == {
        "server-0": 0, "server-1": 1, "worker-1": 0, "worker-4": 1,
    }  # fmt: skip
    assert [m.incarnation for m in closed.values()] == [1, 2, 3, 4]


def test_the_first_view_is_due_when_all_have_joined():
    some = members("server-0", "server-1", "worker-0")
    assert decide_view(some, None, TWO_AND_TWO) == (
        False,
        "waiting for 1 of 2 workers (worker-1)",
    )
    assert decide_view(ALL, None, TWO_AND_TWO) == (True, "all have joined")


def test_a_later_view_is_due_when_members_join_or_leave_and_names_them():
    view = first_view()
    assert decide_view(ALL, view, TWO_AND_TWO) == (False, "nobody came or went")
    joined = {**ALL, "worker-2": member("worker-2", 9)}
    assert decide_view(joined, view, TWO_AND_TWO) == (True, "worker-2 joined")
    changed = {n: m for n, m in joined.items() if n not in ("worker-0", "worker-1")}
    due, reason = decide_view(changed, view, TWO_AND_TWO)
    assert (due, reason) == (True, "worker-2 joined and worker-0, worker-1 left")


def test_a_views_members_are_in_rank_order():
    view = first_view(members("worker-1", "server-1", "worker-0", "server-0"))
    assert [m.name for m in (*view.servers, *view.workers)] == [
        "server-0",
        "server-1",
        "worker-0",
        "worker-1",
    ]


def test_a_new_worker_begins_at_the_latest_round_open_on_any_server():
    promises = [at(((3, 4),), 4), at(((3, 6),), 6)]
    joined = {**ALL, "worker-2": member("worker-2", 9)}
    view = next_view((1, 2), joined, first_view(), (), promises, "")
    assert [m.first_clock for m in view.workers] == [0, 0, 6]


def test_a_server_without_open_rounds_does_not_count_for_a_new_workers_clock():
    promises = [Frozen((1, 2), ()), at((), 3)]
    joined = {**ALL, "worker-2": member("worker-2", 9)}
    view = next_view((1, 2), joined, first_view(), (), promises, "")
    assert view.workers[-1].first_clock == 3


def test_a_dead_workers_last_clock_is_the_latest_that_any_server_saw():
    gone = ALL["worker-1"].incarnation
    promises = [at(((gone, 4),), 3), at(((gone, 5),), 3)]
    left = {n: m for n, m in ALL.items() if n != "worker-1"}
    view = next_view((1, 2), left, first_view(), (), promises, "")
    assert [(m.name, m.last_clock) for m in view.departed] == [("worker-1", 5)]


@pytest.mark.parametrize(("rule", "done"), [(asp(), 3), (ssp(2), 3), (bsp(), 5)])
def test_a_dead_workers_done_clock_is_what_every_server_saw_unless_rounds_hold_it(rule, done):
    """Where pushes settle on arrival its clock travelled with them, to each server."""
    clocks = [((3, 5), (4, 4)), ((3, 3), (4, 4))]
    promises = [at(each, 2) for each in clocks]
    left = {name: m for name, m in ALL.items() if name != "worker-0"}
    tables = (TableSpec("w", 4, consistency=rule, fragment_rows=2),)
    before = replace(first_view(), tables=tables, placements=((),))
    view = next_view((1, 2), left, before, tables, promises, "")
    (gone,) = view.departed
    assert (gone.last_clock, gone.done_clock) == (5, done)


def test_a_departed_worker_is_kept_until_every_server_has_closed_its_last_round():
    left = {n: m for n, m in ALL.items() if n != "worker-1"}
    gone = ALL["worker-1"].incarnation
    second = next_view((1, 2), left, first_view(), (), [at(((gone, 5),), 3)], "")
    behind = next_view((1, 3), left, second, (), [at((), 4)], "")
    assert [m.name for m in behind.departed] == ["worker-1"]
    past = next_view((1, 4), left, behind, (), [at((), 5)], "")
    assert past.departed == ()
    nothing_waits = next_view((1, 4), left, behind, (), [at((), 4, waits=False)], "")
    assert nothing_waits.departed == ()


def test_a_new_worker_does_not_begin_before_the_latest_one_began():
    """Servers whose rows are new do not know the clocks of workers that died meanwhile."""
    before = View(1, 4, (member("server-0"),), (member("worker-0", 7, first_clock=11),), ())
    present = {"server-0": member("server-0"), "worker-1": member("worker-1", 8)}
    view = next_view((1, 5), present, before, (), [at(((7, 0),), 0)], "")
    assert [(each.id, each.first_clock) for each in view.workers] == [("worker-1", 11)]


def test_a_view_has_a_server_of_the_one_before_though_all_of_them_leave():
    """All servers of a view may refuse the next one, so that one of them has to adopt it."""
    present = {**ALL, "server-2": member("server-2", 9)}
    moves = Moves(leaving={"server-0", "server-1"})
    promises = [Frozen((1, 2), ())] * 3
    second = next_view((1, 2), present, first_view(), (), promises, "", moves)
    assert [each.id for each in second.servers] == ["server-0", "server-2"]
    third = next_view((1, 3), present, second, (), promises, "", moves)
    assert [each.id for each in third.servers] == ["server-2"]
