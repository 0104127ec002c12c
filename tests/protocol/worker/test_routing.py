"""Cutting exchanges along the servers' rows, against a dictionary of single rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue
from shoal.keys import KeyRange
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.protocol.worker.routing import PLANS_KEPT, Router
from shoal.tables.spec import bsp, ssp


@pytest.fixture
def router(rigs):
    """Three servers, six rows: two rows each."""
    return Router(rigs.view_of(servers=3, tables=(rigs.table(rows=6),)))


def parts(server_parts, what="pushes"):
    return [
        (share.server[-1], part.start, part.stop, part.keys)
        for share in server_parts
        for part in getattr(share, what)
    ]


def test_a_range_is_cut_where_the_servers_meet(router, rigs):
    push = PushOp("w", KeyRange(1, 5), rigs.as_bytes(1, 2, 3, 4))
    plan, server_parts = router.cut((push,), (), everybody=False)
    assert parts(server_parts) == [("0", 1, 2, -1), ("1", 2, 4, -1), ("2", 4, 5, -1)]
    assert [bytes(b"".join(share.buffers)) for share in server_parts] == [
        bytes(rigs.as_bytes(*numbers)) for numbers in ((1,), (2, 3), (4,))
    ]
    assert [share.nbytes for share in server_parts] == [8, 16, 8]
    assert plan.pushed == (0,)


def test_servers_that_hold_none_of_the_rows_are_asked_only_where_everybody_is(router, rigs):
    push = PushOp("w", KeyRange(2, 4), rigs.as_bytes(1, 2))
    assert [s.server for s in router.cut((push,), (), False)[1]] == ["server-1"]
    server_parts = router.cut((push,), (), True)[1]
    assert [share.server for share in server_parts] == ["server-0", "server-1", "server-2"]
    assert parts(server_parts) == [("1", 2, 4, -1)]


def test_keys_go_to_those_that_hold_them_and_the_range_to_all_that_it_names(router, rigs):
    """Rows that are named and not carried take part in the clock."""
    push = PushOp("w", KeyRange(0, 6), rigs.as_bytes(10, 40, 50), rigs.ints(1, 4, 5))
    server_parts = router.cut((push,), (), False)[1]
    assert parts(server_parts) == [("0", 0, 2, 1), ("1", 2, 4, 0), ("2", 4, 6, 2)]
    assert [bytes(b"".join(share.buffers)) for share in server_parts] == [
        bytes(rigs.as_bytes(*numbers)) for numbers in ((1, 10), (), (4, 5, 40, 50))
    ]


def test_a_pull_of_keys_asks_nobody_in_vain(router, rigs):
    out = rigs.as_bytes(0, 0)
    pull = PullOp("w", KeyRange(0, 6), out, rigs.ints(1, 4))
    server_parts = router.cut((), (pull,), False)[1]
    assert parts(server_parts, "pulls") == [("0", 0, 2, 1), ("2", 4, 6, 1)]
    for share in server_parts:
        share.outs[0][:] = share.buffers[0]  # answer with the keys themselves
    assert out == rigs.as_bytes(1, 4)


def test_a_range_is_pulled_into_its_places(router, rigs):
    out = rigs.as_bytes(0, 0, 0)
    server_parts = router.cut((), (PullOp("w", KeyRange(1, 4), out),), False)[1]
    for number, share in enumerate(server_parts):
        for place in range(0, share.nbytes_out, 8):
            share.outs[0][place : place + 8] = rigs.as_bytes(number)
    assert out == rigs.as_bytes(0, 1, 1)


@given(st.data())
def test_every_key_arrives_where_it_lives_with_its_value(rigs, data):
    rows, servers = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    spec = rigs.table(rows=rows, fragment_rows=data.draw(st.integers(1, 4)))
    router = Router(rigs.view_of(servers=servers, tables=(spec,)))
    keys = sorted(data.draw(st.sets(st.integers(0, rows - 1))))
    values = [100 + key for key in keys]
    push = PushOp("w", KeyRange(0, rows), rigs.as_bytes(*values), rigs.ints(*keys))
    found = {}
    for share in router.cut((push,), (), False)[1]:
        held = rigs.held_by(router.view, int(share.server[-1]))
        at = share.buffers[0].cast("q") if share.buffers[0].nbytes else []
        for key, value in zip(at, share.buffers[1].cast("q") if len(at) else [], strict=True):
            assert key in held
            found[key] = value
    assert found == dict(zip(keys, values, strict=True))


@pytest.mark.parametrize(
    ("rule", "servers", "ask", "answer"),
    [
        (None, 2, {"advance": True, "pulls": True}, True),
        (bsp(), 1, {"advance": True, "pulls": True}, True),
        (bsp(), 2, {"advance": True}, False),  # all have to hold the push first
        (bsp(), 2, {}, True),
        (ssp(1, "round_end"), 1, {"advance": True}, False),
        (ssp(1), 2, {"advance": True, "pulls": True}, True),
        (None, 1, {"advance": True, "assign": True}, False),
        (None, 1, {"assign": True}, True),
    ],
)
def test_what_may_ride_in_one_message(rigs, rule, servers, ask, answer):
    router = Router(rigs.view_of(servers=servers, tables=(rigs.table(rule),)))
    pulls = (PullOp("w", KeyRange(0, 4), rigs.as_bytes(0, 0, 0, 0)),) if ask.pop("pulls", 0) else ()
    push = PushOp("w", KeyRange(0, 4), rigs.as_bytes(1, 2, 3, 4))
    assert router.rides(Exchange((push,), pulls=pulls, **ask)) is answer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": "v"}, "no table 'v' in this run \\(known: w\\)"),
        ({"rows": KeyRange(0, 7)}, "rows \\[0:7\\) are not in table 'w' of 6"),
        ({"rows": KeyRange(0, 1)}, "1 rows of 8 bytes need 8 bytes, not 16"),
    ],
)
def test_mistakes_are_named(router, rigs, change, words):
    asked = {"table": "w", "rows": KeyRange(0, 2), "values": rigs.as_bytes(1, 2), **change}
    with pytest.raises(InvalidValue, match=words):
        router.cut((PushOp(**asked),), (), False)


def test_nobody_pulls_into_a_read_only_buffer(router):
    with pytest.raises(InvalidValue, match="read-only"):
        router.cut((), (PullOp("w", KeyRange(0, 1), memoryview(bytes(8))),), False)


def test_plans_are_kept_and_bounded(router, rigs):
    def cut(stop):
        return router.cut((), (PullOp("w", KeyRange(0, stop), rigs.as_bytes(*range(stop))),), False)

    assert cut(3)[0] is cut(3)[0]
    for start in range(6):
        for table in range(2 * PLANS_KEPT):
            router._plans[(start, table)] = None
    cut(4)
    assert len(router._plans) == 1
