"""Cutting exchanges along the servers' rows, against a dictionary of single rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue
from shoal.keys import SLOTS, KeyRange, slot_of
from shoal.protocol.messages.base import SAME
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.protocol.worker import routing
from shoal.protocol.worker.routing import PLANS_KEPT, Router
from shoal.tables.consistency import asp, bsp, ssp
from shoal.tables.spec import Access, TableSpec


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


def test_a_push_of_a_range_is_cut_at_the_shards_edges(router, rigs):
    push = PushOp("w", KeyRange(1, 5), rigs.as_bytes(1, 2, 3, 4))
    plan, server_parts = router.cut((push,), (), everybody=False)
    assert parts(server_parts) == [("0", 1, 2, -1), ("1", 2, 4, -1), ("2", 4, 5, -1)]
    assert [bytes(b"".join(share.buffers)) for share in server_parts] == [
        bytes(rigs.as_bytes(*numbers)) for numbers in ((1,), (2, 3), (4,))
    ]
    assert [share.nbytes for share in server_parts] == [8, 16, 8]
    assert plan.pushed == (0,)


def test_servers_without_the_rows_are_asked_only_if_everybody_is(router, rigs):
    push = PushOp("w", KeyRange(2, 4), rigs.as_bytes(1, 2))
    assert [s.server for s in router.cut((push,), (), False)[1]] == ["server-1"]
    server_parts = router.cut((push,), (), True)[1]
    assert [share.server for share in server_parts] == ["server-0", "server-1", "server-2"]
    assert parts(server_parts) == [("1", 2, 4, -1)]


def test_a_push_of_keys_sends_its_keys_to_their_heads_and_its_range_to_all(router, rigs):
    """Rows that are named and not carried take part in the clock."""
    push = PushOp("w", KeyRange(0, 6), rigs.as_bytes(10, 40, 50), rigs.ints(1, 4, 5))
    server_parts = router.cut((push,), (), False)[1]
    assert parts(server_parts) == [("0", 0, 2, 1), ("1", 2, 4, 0), ("2", 4, 6, 2)]
    assert [bytes(b"".join(share.buffers)) for share in server_parts] == [
        bytes(rigs.as_bytes(*numbers)) for numbers in ((1, 10), (), (4, 5, 40, 50))
    ]


def test_a_pull_of_keys_asks_only_servers_that_have_some(router, rigs):
    out = rigs.as_bytes(0, 0)
    pull = PullOp("w", KeyRange(0, 6), out, rigs.ints(1, 4))
    server_parts = router.cut((), (pull,), False)[1]
    assert parts(server_parts, "pulls") == [("0", 0, 2, 1), ("2", 4, 6, 1)]
    for share in server_parts:
        share.outs[0][:] = share.buffers[0]  # answer with the keys themselves
    assert out == rigs.as_bytes(1, 4)


def test_a_pull_of_a_range_writes_each_shards_rows_in_place(router, rigs):
    out = rigs.as_bytes(0, 0, 0)
    server_parts = router.cut((), (PullOp("w", KeyRange(1, 4), out),), False)[1]
    for number, share in enumerate(server_parts):
        for place in range(0, share.nbytes_out, 8):
            share.outs[0][place : place + 8] = rigs.as_bytes(number)
    assert out == rigs.as_bytes(0, 1, 1)


@given(st.data())
def test_every_key_goes_to_its_shard_with_its_value(rigs, data):
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
def test_push_advance_and_pull_share_a_request_if_consistency_allows(
    rigs, rule, servers, ask, answer
):
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
def test_an_invalid_push_is_refused_by_name(router, rigs, change, words):
    asked = {"table": "w", "rows": KeyRange(0, 2), "values": rigs.as_bytes(1, 2), **change}
    with pytest.raises(InvalidValue, match=words):
        router.cut((PushOp(**asked),), (), False)


def test_a_pull_into_a_read_only_buffer_is_refused(router):
    with pytest.raises(InvalidValue, match="read-only"):
        router.cut((), (PullOp("w", KeyRange(0, 1), memoryview(bytes(8))),), False)


def test_routing_plans_are_cached_up_to_a_bound(router, rigs):
    def cut(stop):
        return router.cut((), (PullOp("w", KeyRange(0, stop), rigs.as_bytes(*range(stop))),), False)

    assert cut(3)[0] is cut(3)[0]
    for start in range(6):
        for table in range(2 * PLANS_KEPT):
            router._plans[(start, table)] = None
    cut(4)
    assert len(router._plans) == 1


def test_a_push_to_another_groups_synchronous_table_is_refused(rigs):
    tables = (rigs.table(bsp()), rigs.table(asp(), name="shared"))
    view = rigs.view_of(servers=1, tables=tables)
    router, rows = Router(view, "eval"), KeyRange(0, 4)
    with pytest.raises(InvalidValue, match="table 'w' is bsp and goes by the clocks of the first"):
        router.sub_requests(Exchange((PushOp("w", rows, rigs.as_bytes(1, 1, 1, 1)),)))
    assert router.sub_requests(Exchange((PushOp("shared", rows, rigs.as_bytes(1, 1, 1, 1)),)))
    out = memoryview(bytearray(32))
    assert router.sub_requests(Exchange(pulls=(PullOp("w", rows, out),)))
    assert Router(view).sub_requests(Exchange(pulls=(PullOp("/w", rows, out),)))  # as others say it


# ---------------------------------------------------------------------------- sparse tables

ALL = KeyRange(0, SLOTS)


def sparse_table(consistency=None):
    rule = consistency or asp()
    return TableSpec("e", kind="sparse", access=Access("sum"), merge="sum", consistency=rule).cut(1)


def ordered(*keys):
    return np.array(sorted(keys, key=slot_of), np.uint64).data


def values(*numbers):
    return np.array(numbers, np.float32).view(np.uint8).data


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_sparse_key_goes_to_the_server_of_its_slot(rigs, servers):
    router = Router(rigs.view_of(servers=servers, tables=(sparse_table(),)))
    keys = ordered(*range(100))
    push = PushOp("e", ALL, values(*keys), keys)
    seen = []
    for at, share in enumerate(router.cut((push,), (), False)[1]):
        [part], held = share.pushes, rigs.held_by(router.view, at)
        sent = np.frombuffer(share.buffers[0], np.uint64)
        assert (part.start, part.stop, part.keys) == (held.start, held.stop, len(sent))
        assert all(slot_of(int(key)) in held for key in sent)
        assert np.frombuffer(share.buffers[1], np.float32).tolist() == sent.tolist()
        seen += sent.tolist()
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize("given_order", [True, False])
def test_keys_in_any_order_go_to_the_servers_of_their_slots_with_their_rows(rigs, given_order):
    """A worker does not sort them while one server has the table, and others may join."""
    router = Router(rigs.view_of(servers=3, tables=(sparse_table(),)))
    keys = np.arange(100, dtype=np.uint64)[:: 1 if given_order else -1].copy().data
    out = values(*[0] * 100)
    push, pull = PushOp("e", ALL, values(*keys), keys), PullOp("e", ALL, out, keys)
    for at, share in enumerate(router.cut((push,), (pull,), False)[1]):
        held, sent = rigs.held_by(router.view, at), np.frombuffer(share.buffers[0], np.uint64)
        assert all(slot_of(int(key)) in held for key in sent)
        assert np.frombuffer(share.buffers[1], np.float32).tolist() == sent.tolist()
        assert [part.keys for part in share.pulls] == [SAME]
        answer = memoryview(values(*sent))
        for view in share.destination(share.nbytes_out):
            view[:] = answer[: view.nbytes]
            answer = answer[view.nbytes :]
        assert not answer
    assert np.frombuffer(out, np.float32).tolist() == list(keys)


@pytest.mark.parametrize("numbers", [(1, 2), (1, 2, 3, 4)])
def test_values_that_do_not_fit_keys_in_any_order_are_refused(rigs, numbers):
    router = Router(rigs.view_of(servers=2, tables=(sparse_table(),)))
    keys = np.array([5, 3, 4], np.uint64).data
    for op in (PushOp("e", ALL, values(*numbers), keys), PullOp("e", ALL, values(*numbers), keys)):
        ops = ((op,), ()) if isinstance(op, PushOp) else ((), (op,))
        with pytest.raises(InvalidValue, match="3 rows of 4 bytes need 12 bytes"):
            router.cut(*ops, False)


def test_keys_both_pushed_and_pulled_travel_once(rigs):
    router = Router(rigs.view_of(servers=2, tables=(sparse_table(),)))
    keys, out = ordered(*range(50)), values(*[0] * 50)
    push, pull = PushOp("e", ALL, values(*range(50)), keys), PullOp("e", ALL, out, keys)
    for share in router.cut((push,), (pull,), False)[1]:
        assert [part.keys for part in share.pulls] == [SAME]
        assert len(share.buffers) == 2
        again = share.without_push()  # its rows were lost, the push was not
        assert [part.keys for part in again.pulls] == [share.pushes[0].keys]
        assert again.buffers == share.buffers[:1]
        assert not again.pushes
        assert again.nbytes == share.nbytes  # the credit that it took


@pytest.mark.parametrize("why", ["other memory", "two pushes", "another leg"])
def test_keys_travel_again_unless_push_and_pull_share_them(rigs, why):
    rule = bsp() if why == "another leg" else asp()
    router = Router(rigs.view_of(servers=2, tables=(sparse_table(rule),)))
    keys = ordered(1, 2, 3)
    push = PushOp("e", ALL, values(1, 2, 3), keys)
    pushes = (push, push) if why == "two pushes" else (push,)
    pulled = ordered(1, 2, 3) if why == "other memory" else keys
    pull = PullOp("e", ALL, values(0, 0, 0), pulled)
    for sub_request in router.sub_requests(Exchange(pushes, True, (pull,))):
        for share in sub_request.server_parts:
            assert all(part.keys >= 0 for part in share.pulls)


@pytest.mark.parametrize("keys", [None, "many"])
def test_a_sparse_pull_without_keys_or_with_too_many_is_refused(rigs, keys, monkeypatch):
    monkeypatch.setattr(routing, "KEYS_MAX", 2)
    router = Router(rigs.view_of(servers=2, tables=(sparse_table(),)))
    chosen = None if keys is None else ordered(1, 2, 3)
    with pytest.raises(InvalidValue, match="sparse"):
        router.cut((), (PullOp("e", ALL, values(0, 0, 0), chosen),), False)


def test_the_slots_of_a_state_follow_their_rows(router, rigs):
    rows, slot = rigs.as_bytes(1, 2, 3), rigs.as_bytes(4, 5, 6)
    push = PushOp("w", KeyRange(1, 4), rows, slots=(slot,))
    out, state = rigs.as_bytes(0, 0, 0), rigs.as_bytes(0, 0, 0)
    pull = PullOp("w", KeyRange(1, 4), out, slots=(state,))
    server_parts = router.cut((push,), (pull,), everybody=False)[1]
    assert [bytes(b"".join(share.buffers)) for share in server_parts] == [
        bytes(rigs.as_bytes(*numbers)) for numbers in ((1, 4), (2, 3, 5, 6))
    ]
    assert [part.slots for share in server_parts for part in (*share.pushes, *share.pulls)] == [
        1
    ] * 4
    assert [[each.nbytes for each in share.outs] for share in server_parts] == [[8, 8], [16, 16]]
    again = router.cut((PushOp("w", KeyRange(1, 4), rows),), (), everybody=False)[1]
    assert [part.slots for share in again for part in share.pushes] == [0, 0]  # another plan
    without = server_parts[1].without_push()
    assert (without.buffers, without.pushes) == ((), ())
    with pytest.raises(InvalidValue, match="need 24 bytes, not 8"):
        router.cut((PushOp("w", KeyRange(1, 4), rows, slots=(slot[:8],)),), (), everybody=False)


def test_an_exchange_that_was_routed_is_routed_anew_in_another_view(router, rigs):
    push = PushOp("w", KeyRange(0, 6), rigs.as_bytes(1, 2, 3, 4, 5, 6))
    ask = Exchange((push,))
    cuts = []
    for made in (router, Router(rigs.view_of(2, servers=2, tables=(rigs.table(rows=6),)))):
        [plan] = made.sub_requests(ask)
        assert ask.route == (made, (plan,))
        cuts.append([part.server for part in plan.server_parts])
    assert cuts == [["server-0", "server-1", "server-2"], ["server-0", "server-1"]]


def test_an_exchange_of_more_shards_than_a_request_names_is_refused(rigs, monkeypatch):
    monkeypatch.setattr(routing, "PARTS_ASKED_MAX", 3)
    tables = tuple(rigs.table(name=f"t{number}") for number in range(4))
    router = Router(rigs.view_of(tables=tables))
    pushes = tuple(PushOp(f"t{n}", KeyRange(0, 4), rigs.as_bytes(1, 2, 3, 4)) for n in range(4))
    assert router.cut(pushes[:3], (), False)
    with pytest.raises(InvalidValue, match=r"names 4 shards of one server.*at most 3"):
        router.cut(pushes, (), False)


# ---------------------------------------------------------------------------- encoded rows


@pytest.fixture
def encoding(rigs):
    """Three servers, twelve rows of 8 bytes in fragments of two: two fragments each."""
    table = TableSpec("w", 12, dtype="float64", fragment_rows=2, codec="int:4")
    return Router(rigs.view_of(servers=3, tables=(table,)))


def encoded_push(rows, *sizes):
    data = bytes(number for number, size in enumerate(sizes) for _ in range(size))
    return PushOp("w", rows, memoryview(data), sizes=sizes)


def test_an_encoded_push_is_cut_by_the_sizes_of_its_fragments(encoding):
    push = encoded_push(KeyRange(1, 9), 3, 4, 5, 6, 2)
    plan, server_parts = encoding.cut((push,), (), False)
    assert parts(server_parts) == [("0", 1, 4, -1), ("1", 4, 8, -1), ("2", 8, 9, -1)]
    assert [each.sizes for each in server_parts] == [((3, 4),), ((5, 6),), ((2,),)]
    assert [bytes(each.buffers[0]) for each in server_parts] == [
        b"\0" * 3 + b"\1" * 4, b"\2" * 5 + b"\3" * 6, b"\4" * 2
    ]  # fmt: skip
    assert plan is encoding.cut((push,), (), False)[0], "a plan does not depend on sizes"


def test_credit_counts_what_a_push_takes_at_the_server(encoding):
    server_parts = encoding.cut((encoded_push(KeyRange(0, 12), 1, 1, 1, 1, 1, 1),), (), False)[1]
    assert [each.nbytes for each in server_parts] == [32, 32, 32]
    assert [each.payload_bytes for each in server_parts] == [2, 2, 2]


def test_encoded_and_plain_pushes_in_one_exchange(rigs):
    tables = [TableSpec(n, 4, dtype="float64", fragment_rows=2, codec="int:4") for n in "vw"]
    router = Router(rigs.view_of(servers=2, tables=tables))
    plain = PushOp("v", KeyRange(0, 4), memoryview(bytes(32)))
    first, second = router.cut((plain, encoded_push(KeyRange(0, 4), 3, 5)), (), False)[1]
    assert (first.sizes, second.sizes) == (((), (3,)), ((), (5,)))
    assert [view.nbytes for view in first.buffers] == [16, 3]
    assert first.nbytes == 32
    assert first.payload_bytes == 19


@pytest.mark.parametrize(
    ("rows", "sizes", "words"),
    [
        (KeyRange(0, 4), (3,), "1 encoded fragments of .0:4., which has 2"),
        (KeyRange(0, 4), (3, 17), "of 17 bytes, whose rows have 16"),
        (KeyRange(0, 4), (3, 0), "of 0 bytes"),
        (KeyRange(1, 4), (9, 3), "of 9 bytes, whose rows have 8"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_is_sent(encoding, rows, sizes, words):
    with pytest.raises(InvalidValue, match=words):
        encoding.cut((encoded_push(rows, *sizes),), (), False)


def test_other_bytes_than_the_sizes_say_are_refused(encoding):
    push = PushOp("w", KeyRange(0, 4), memoryview(bytes(7)), sizes=(3, 3))
    with pytest.raises(InvalidValue, match="7 bytes of encoded rows of 6"):
        encoding.cut((push,), (), False)


def test_pulls_of_encoded_rows_are_cut_alike(encoding):
    out = memoryview(bytearray(20))
    pull = PullOp("w", KeyRange(0, 12), out, sizes=(1, 2, 3, 4, 5, 5))
    server_parts = encoding.cut((), (pull,), False)[1]
    assert [each.pulled for each in server_parts] == [((1, 2),), ((3, 4),), ((5, 5),)]
    assert [each.nbytes_out for each in server_parts] == [3, 7, 10]
