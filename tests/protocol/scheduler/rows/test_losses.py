"""Rows that are lost with a server, and runs that cannot go on."""

import pytest

from shoal.keys import KeyRange
from shoal.protocol.scheduler.rows.losses import bereft, lost_with
from shoal.protocol.views import Member, Placement, View
from shoal.tables.spec import TableSpec

ZERO, ONE, WORKER = (
    Member("a", "server", 0, 1), Member("b", "server", 1, 2), Member("w", "worker", 0, 3)
)  # fmt: skip
ROWS = KeyRange(0, 8)


def view(*chain, servers=(ZERO, ONE)):
    tables = (TableSpec("w", 8),) if chain else ()
    return View(1, 1, servers, (WORKER,), tables, ((Placement(ROWS, chain),),) if chain else ())


@pytest.mark.parametrize(
    ("views", "dead", "servers", "found"),
    [
        ([view(0)], WORKER, ["a", "b"], [None]),
        ([view(0, 1)], ZERO, ["a", "b"], [None]),
        ([view(0)], ZERO, ["a", "b"], [["w[0:8)"]]),
        ([view(0), view(1)], ZERO, ["a", "b"], [["w[0:8)"], None]),
        ([view()], ZERO, ["a", "b"], [None]),
        ([view()], ZERO, ["a"], [[]]),
    ],
)
def test_rows_are_lost_where_no_other_server_has_them(views, dead, servers, found):
    assert lost_with(dead, views, servers) == found


def test_a_run_cannot_go_on_without_rows_or_without_servers():
    """Seed 1411: a server that had left and one that died left a view without any, and a table was
    placed on none."""
    assert bereft(view(0, 1), ["b"]) == ""
    assert bereft(view(0), ["b"]) == "server-0 died with the last replica of w[0:8)"
    assert bereft(view(), ["b"]) == ""
    assert bereft(view(), []) == "server-0, server-1 died or left, and there is no other"
    assert bereft(view(servers=()), []) == "the last server died or left, and there is no other"
