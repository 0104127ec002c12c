"""Views as members ask them."""

from shoal.keys import KeyRange
from shoal.protocol.views import Placement


def test_a_view_finds_members_and_tables_by_name(rigs):
    view = rigs.view_of(tables=(rigs.table(), rigs.table(name="v")))
    assert view.member("worker-1").incarnation == 12
    assert view.member("worker-9") is None
    assert (view.named("v"), view.named("u")) == (1, None)
    assert view.placements_of("v") == (Placement(KeyRange(0, 4), (0,)),)
