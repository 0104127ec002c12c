"""Vector clocks against a dictionary and `min`; the two rules against tables."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.protocol.consistency import Clocks, VectorClock, apply_clock, needed
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.requests import Reply, Request
from shoal.protocol.views import FOREVER, Member
from shoal.tables.consistency import Cover, Quorum, asp, bsp, ssp

workers = st.integers(1, 4)
clocks = st.one_of(st.integers(0, 6), st.just(FOREVER))
steps = st.lists(st.tuples(st.sampled_from(["enter", "leave", "advance"]), workers, clocks))


@given(steps)
def test_a_vector_clock_equals_a_dictionary_with_a_minimum(history):
    clock, oracle = VectorClock(), {}
    for what, worker, to in history:
        if what == "enter" and worker not in oracle:
            clock.enter(worker, to)
            oracle[worker] = to
        elif what == "leave" and worker in oracle:
            assert clock.leave(worker) == oracle.pop(worker)
        elif what == "advance" and worker in oracle:
            assert clock.advance(worker, to) is (to > oracle[worker])
            oracle[worker] = max(to, oracle[worker])
        assert clock.minimum == min(oracle.values(), default=FOREVER)
        assert dict(clock.items()) == oracle
        assert all(clock[each] == at and each in clock for each, at in oracle.items())
        for limit in (0, 3, FOREVER):
            assert clock.behind(limit) == sorted(w for w, at in oracle.items() if at < limit)


rules = st.one_of(
    st.builds(Quorum, st.integers(1, 4), st.sampled_from([0.0, 2.0])),
    st.sampled_from([Cover(((1, 2), (3, 4))), Cover(((1, 2, 3),))]),
)
timed = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "advance"]), workers, clocks, st.integers(0, 3))
)


@given(rules, timed)
def test_closed_rounds_equal_those_of_a_loop_over_all_clocks(rule, history):
    """The oracle looks at every clock after every step; a rank is its worker's number."""
    clock, oracle, now, closed = VectorClock(), {}, 0, 0
    since = {}  # when enough had passed a clock, ever
    clock.close_by(rule)
    for what, worker, to, wait in history:
        now += wait
        if what == "enter" and worker not in oracle:
            clock.enter(worker, max(to, closed), worker)
            oracle[worker] = max(to, closed)
        elif what == "leave" and worker in oracle:
            clock.leave(worker)
            del oracle[worker]
        elif what == "advance" and worker in oracle:
            clock.advance(worker, to)
            oracle[worker] = max(to, oracle[worker])
        before = clock.closed
        assert clock.look(now) is (clock.closed > before)
        for at in range(7):
            if _enough(rule, oracle, at + 1):
                since.setdefault(at, now)
            grace = getattr(rule, "grace_s", 0.0)
            everybody = bool(oracle) and min(oracle.values()) > at
            if everybody or (at in since and now >= since[at] + grace):
                closed = max(closed, at + 1)
        everything = min(oracle.values(), default=FOREVER)
        assert clock.closed == (FOREVER if everything == FOREVER else max(closed, everything))


def _enough(rule, oracle, clock):
    """Whether a round below `clock` needs no more workers."""
    at_work = {worker: at for worker, at in oracle.items() if at < FOREVER}
    passed = {worker for worker, at in at_work.items() if at >= clock}
    if isinstance(rule, Quorum):
        return bool(at_work) and len(passed) >= min(rule.k, len(at_work))
    groups = [set(group) & at_work.keys() for group in rule.groups]
    alone = [{worker} for worker in at_work if not any(worker in group for group in rule.groups)]
    return bool(at_work) and all(group & passed for group in (*groups, *alone) if group)


def test_a_reset_takes_closed_rounds_back():
    clock = VectorClock()
    clock.close_by(Quorum(1, grace_s=1.0))
    clock.enter(1, 0, 0)
    clock.enter(2, 0, 1)
    clock.advance(1, 5)
    clock.look(0.0)
    assert (clock.closed, clock.due_at) == (0, 1.0)
    assert clock.look(1.0)
    assert (clock.closed, clock.due_at) == (5, inf)
    clock.reset(3)
    assert clock.closed == 3
    clock.advance(1, 5)
    clock.look(2.0)
    assert (clock.closed, clock.due_at) == (3, 3.0)


def test_an_empty_vector_clock_has_an_infinite_minimum():
    assert VectorClock().minimum == FOREVER
    assert 1 not in VectorClock()


@pytest.mark.parametrize(
    ("rule", "read_at", "slowest_needed"),
    [
        (bsp(), 0, 0),
        (bsp(), 5, 5),
        (ssp(0), 5, 5),
        (ssp(2), 5, 3),
        (ssp(2), 2, 0),
        (ssp(2), 1, 0),  # never below the first clock
        (asp(), 5, 0),
    ],
)
def test_a_read_is_admitted_once_the_slowest_worker_is_within_the_bound(
    rule, read_at, slowest_needed
):
    assert needed(rule, read_at) == slowest_needed


@pytest.mark.parametrize(
    ("rule", "when"),
    [
        (bsp(), 4),
        (ssp(0, "round_end"), 4),
        (ssp(2), 0),
        (ssp(2, "round_end"), 4),
        (asp(), 0),
    ],
)
def test_a_push_is_applied_on_arrival_or_at_its_rounds_end(rule, when):
    assert apply_clock(rule, 3) == when


# ---------------------------------------------------------------------------- worker groups


def test_clocks_of_a_departed_group_are_forgotten():
    clocks = Clocks()
    clocks.enter(1, 3)
    clocks.enter(2, 5, "eval")
    clocks.leave(2)
    assert 2 not in clocks
    clocks.keep({"", "more"})
    assert clocks.groups() == ["", "more"]
    assert (clocks.of("").minimum, clocks.of("more").minimum) == (3, FOREVER)


@pytest.fixture
def server(rigs):
    """A server of two workers and a guest, with a table of each kind."""
    theirs = replace(rigs.table(bsp(), name="eval/w", fragment_rows=4), group="eval")
    tables = (
        rigs.table(bsp(), fragment_rows=4),
        rigs.table(asp(), name="shared", fragment_rows=4),
        theirs,
    )
    view = rigs.view_of(servers=1, tables=tables)
    there = Member("guest", "worker", 0, 31, group="eval", group_size=1)
    rig = rigs.ServerRig()
    rig.adopt(replace(view, number=2, workers=(*view.workers, there)))
    return rig


def ask(rig, seq, table, push=True, **more):
    """A guest's request."""
    parts = (Part(table, 0, 4),)
    asked = {"pushes": parts} if push else {"pulls": parts}
    payload = (1).to_bytes(8, "little") * 4 if push else b""
    rig.receive("guest", Request(rig.view.id, 31, seq, 0, 0, **asked, **more), payload)
    return [(each.code, each.clock_min) for each in rig.sent(Reply)]


def test_a_server_takes_another_groups_push_only_to_its_own_or_asynchronous_tables(server):
    assert ask(server, 0, 0) == [("refused", 0)]
    assert ask(server, 1, 1) == [("applied", 0)]
    assert ask(server, 2, 2, advance=1) == [("applied", 1)]  # nobody else is in its rounds
    assert ask(server, 3, 0, push=False) == [("applied", 1)]  # and it waits for nobody
