"""Views as members ask them."""

import pytest
from msgspec.structs import replace

from shoal.keys import KeyRange
from shoal.protocol.views import Member, Placement


def test_a_view_finds_members_and_tables_by_name(rigs):
    view = rigs.view_of(tables=(rigs.table(), rigs.table(name="v")))
    assert view.member("worker-1").incarnation == 12
    assert view.member("worker-9") is None
    assert (view.named("v"), view.named("u")) == (1, None)
    assert view.placements_of("v") == (Placement(KeyRange(0, 4), (0,)),)


def test_a_view_that_a_scheduler_makes_has_no_problem(rigs):
    assert rigs.view_of(servers=2, tables=(rigs.table(),)).problem() == ""


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"placements": ()}, "placements of 0 tables"),
        ({"placements": ((),)}, "not all of table 'w'"),
        ({"placements": ((Placement(KeyRange(0, 4), (7,)),),)}, "servers that it does not have"),
        ({"placements": ((Placement(KeyRange(0, 4), (0, 0)),),)}, "or twice"),
        ({"placements": ((Placement(KeyRange(0, 4), (0,), 3),),)}, "without another"),
        ({"servers": (Member("a", "server", 0, 1), Member("b", "server", 0, 2))}, "one name"),
        ({"servers": (Member("a", "worker", 0, 1),)}, "servers of another role"),
        ({"workers": (Member("a", "server", 0, 9),)}, "workers of another role"),
    ],
)
def test_a_view_that_no_scheduler_makes(rigs, changed, says):
    view = rigs.view_of(tables=(rigs.table(),))
    assert says in replace(view, **changed).problem()
