"""A server by hand: arrival, pushes and pulls, duplicates, views."""

import pytest

from shoal.errors import InvalidValue, ProcessDied
from shoal.protocol.limits import WINDOW
from shoal.protocol.machine import Asked, Discard, Received, Sink, Stop
from shoal.protocol.messages.base import SCHEDULER, Part
from shoal.protocol.messages.membership import (
    Abort,
    BarrierArrival,
    Freeze,
    Frozen,
    GroupProgress,
    Heartbeat,
    NewView,
)
from shoal.protocol.messages.requests import Probe, Reply, Request
from shoal.protocol.requests import EnterBarrier
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.views import FOREVER, Member
from shoal.tables.consistency import bsp, ssp

ALL = Part(0, 0, 4)
PUSH, PULL = (ALL,), (ALL,)


@pytest.fixture
def synchronous(rigs):
    return rigs.ServerRig(rigs.table(bsp()))


# ---------------------------------------------------------------------------- arrival


@pytest.mark.parametrize(
    ("request_", "nbytes", "reason"),
    [
        (Request((1, 2), 11, 0, 0, 0, PUSH), 32, "stale"),
        (Request((1, 1), 99, 0, 0, 0, PUSH), 32, "stranger"),
        (Request((1, 1), 12, 0, 0, 0, PUSH), 32, "stranger"),  # another worker's incarnation
        (Request((1, 1), 11, 0, 0, 0, (Part(0, 0, 5),)), 40, "misfit"),
        (Request((1, 1), 11, 0, 0, 0, (Part(0, 3, 2),)), 0, "misfit"),
        (Request((1, 1), 11, 0, 0, 0, (Part(1, 0, 4),)), 32, "misfit"),
        (Request((1, 1), 11, 0, 0, 0, (Part(0, 0, 2, 3),)), 48, "misfit"),
        (Request((1, 1), 11, 0, 0, 0, PUSH, weight=0.0), 32, "misfit"),
        (Request((1, 1), 11, 0, 0, 0, PUSH, weight=float("nan")), 32, "misfit"),
        (Request((1, 1), 11, WINDOW, 0, 0, PUSH), 32, "too many"),
        (Request((1, 1), 11, 0, 0, 0, PUSH), 24, "24 bytes announced where the parts need 32"),
        (Probe((1, 1), 11, 0), 8, "a Probe has no payload"),
    ],
)
def test_payloads_that_are_drained_without_being_looked_at(server, request_, nbytes, reason):
    assert server.machine.arriving("worker-0", request_, nbytes) == Discard(reason)


def test_a_payload_goes_to_staging_memory_and_changes_nothing(server, values):
    arrival = server.machine.arriving("worker-0", Request((1, 1), 11, 0, 0, 0, PUSH), 32)
    assert isinstance(arrival, Sink)
    arrival.views[0][:] = values
    assert server.rows == [0, 0, 0, 0]


def test_a_request_whose_payload_was_discarded_is_asked_for_again(server):
    server.handle(Received("worker-0", Request((1, 1), 11, 0, 0, 0, PUSH)))
    assert server.codes("worker-0") == ["missing"]
    assert server.rows == [0, 0, 0, 0]


# ---------------------------------------------------------------------------- pushes and pulls


def test_a_push_and_a_pull(server, values):
    assert server.ask(0, 0, values, pushes=PUSH) == ["applied"]
    assert server.ask(1, 0, pulls=PULL) == ["applied"]
    (answer,) = server.sends(Reply)
    assert b"".join(answer.buffers) == values
    assert answer.message.payload == 32
    assert answer.guard is not None


def test_a_push_of_some_keys(server, rigs):
    some = Part(0, 0, 4, 2)
    payload = bytes(rigs.as_bytes(1, 3)) + bytes(rigs.as_bytes(10, 30))
    assert server.ask(0, 0, payload, pushes=(some,)) == ["applied"]
    assert server.rows == [0, 10, 0, 30]
    assert server.ask(0, 1, rigs.as_bytes(0, 3), pulls=(some,)) == ["applied"]
    assert b"".join(server.sends(Reply)[0].buffers) == rigs.as_bytes(0, 30)


def test_keys_out_of_their_range_are_refused_and_change_nothing(server, rigs):
    payload = bytes(rigs.as_bytes(1, 9)) + bytes(rigs.as_bytes(10, 30))
    assert server.ask(0, 0, payload, pushes=(Part(0, 0, 4, 2),)) == ["refused"]
    assert server.sent(Reply)[0].reason == "bad keys"
    assert server.rows == [0, 0, 0, 0]
    assert server.ask(0, 0, payload, pushes=(Part(0, 0, 4, 2),)) == ["refused"]  # a duplicate


def test_assigning_writes_past_the_access_method(server, values):
    server.ask(0, 0, values, pushes=PUSH)
    server.ask(0, 1, values, pushes=PUSH, assign=True)
    assert server.rows == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"seq": 0, "pushes": (Part(0, 2, 6),)}, "rows or a table that this server does not hold"),
        ({"seq": WINDOW, "pulls": PULL}, f"{WINDOW} requests after the oldest"),
    ],
)
def test_refusals_say_why(server, more, words):
    assert server.ask(0, **more) == ["refused"]
    assert words in server.sent(Reply)[0].reason


def test_a_server_that_cannot_open_its_part_of_a_view_ends_and_not_the_run(rigs):
    def open_shard(spec, held):
        raise InvalidValue("unknown access method 'adm'")

    rig = rigs.Rig(ServerMachine(Session("server-0", "server"), open_shard))
    rig.receive(SCHEDULER, NewView(rigs.view_of(tables=(rigs.table(),))))
    assert rig.sent(Abort) == []
    [stop] = [effect for effect in rig.effects if isinstance(effect, Stop)]
    assert isinstance(stop.error, ProcessDied)  # the engine starts it again
    assert "cannot open its part of a view: unknown access method 'adm'" in stop.error.message


# ---------------------------------------------------------------------------- duplicates


def test_a_duplicate_is_answered_and_not_applied(server, values):
    for _ in range(3):
        assert server.ask(0, 0, values, pushes=PUSH) == ["applied"]
    assert server.rows == [1, 2, 3, 4]
    assert server.declined["seen"] == 2


def test_a_copy_that_overtakes_its_payload_makes_the_payload_a_duplicate(server, values):
    request = Request((1, 1), 11, 0, 0, 0, PUSH)
    slow = server.machine.arriving("worker-0", request, 32)
    slow.views[0][:] = values
    server.receive("worker-0", request, values)
    server.handle(Received("worker-0", request, slow))
    assert server.rows == [1, 2, 3, 4]


def test_a_pull_whose_rows_were_lost_is_answered_again(server):
    assert server.ask(0, 0, pulls=PULL) == ["applied"]
    assert server.ask(0, 0, pulls=PULL) == ["applied"]
    assert server.sent(Reply)[0].payload == 32


def test_what_is_settled_is_forgotten_and_not_answered(server, values):
    server.ask(0, 0, values, pushes=PUSH)
    server.ask(0, 1, forget_below=1, advance=1)
    assert server.ask(0, 0, values, pushes=PUSH) == []
    assert server.declined["forgotten"] == 1
    assert server.rows == [1, 2, 3, 4]


def test_the_window_moves_with_what_is_settled(server):
    assert server.ask(0, WINDOW, pulls=PULL) == ["refused"]
    assert server.ask(0, WINDOW, forget_below=1, pulls=PULL) == ["applied"]
    assert server.ask(0, WINDOW - 1, forget_below=1, pulls=PULL) == ["applied"]


def test_a_window_is_bounded(server):
    for seq in range(300):
        assert server.ask(0, seq, forget_below=seq, pulls=PULL) == ["applied"]
    assert len(server.machine.requests.admission.logs["worker-0"].outcomes) == 1


# ---------------------------------------------------------------------------- views


def test_a_promise_tells_clocks_and_freezes(synchronous, values):
    synchronous.ask(0, 0, clock=0, advance=3)
    synchronous.ask(1, 0, clock=0, advance=2)
    synchronous.receive(SCHEDULER, Freeze((1, 2), (1, 1)))
    assert synchronous.sent() == [Frozen((1, 2), ((11, 3), (12, 2)), (GroupProgress("", 2),))]
    assert synchronous.ask(0, 1, values, clock=3, pushes=PUSH) == []
    synchronous.receive("worker-0", Probe((1, 1), 11, 1))
    assert synchronous.sent() == []
    assert synchronous.declined["frozen"] == 2


def test_a_promise_holds_against_older_views(server, rigs):
    server.receive(SCHEDULER, Freeze((1, 3)))
    server.receive(SCHEDULER, Freeze((1, 2)))
    assert server.sent() == []
    server.adopt(rigs.view_of(2, tables=server.view.tables))
    assert server.machine.frozen
    server.adopt(rigs.view_of(3, tables=server.view.tables))
    assert not server.machine.frozen
    server.receive(SCHEDULER, Freeze((1, 3)))  # late
    assert not server.machine.frozen


def test_a_view_older_than_the_promised_one_closes_no_round(synchronous, rigs, values):
    """It would be without worker-1; the clocks in the promise are to be true until the next."""
    synchronous.ask(0, 0, values, clock=0, pushes=PUSH, advance=1)
    synchronous.receive(SCHEDULER, Freeze((1, 3)))
    older = rigs.view_of(2, workers=1, tables=synchronous.view.tables)
    synchronous.receive(SCHEDULER, NewView(older))
    assert synchronous.sent() == []
    assert synchronous.machine.session.view_id == (1, 1)
    synchronous.adopt(rigs.view_of(3, workers=1, tables=synchronous.view.tables))
    assert synchronous.codes("worker-0") == ["applied"]


def test_a_pull_that_comes_again_names_what_is_here(server):
    for _ in range(2):
        assert server.ask(0, 0, pulls=(Part(0, 0, 4),)) == ["applied"]
    for elsewhere in (Part(7, 0, 4), Part(0, 0, 5), Part(0, 2, 1), Part(0, 0, 4, 5)):
        assert server.ask(0, 0, pulls=(elsewhere,)) == ["refused"]


def test_a_copy_of_a_pull_that_was_cut_for_the_view_before_is_stale(server, rigs):
    """Its rows may have gone elsewhere, and its worker asks for them there by now."""
    assert server.ask(0, 0, pulls=(Part(0, 0, 4),)) == ["applied"]
    server.adopt(rigs.view_of(2, tables=server.view.tables))
    for part in (Part(0, 0, 4), Part(0, 0, 5)):
        assert server.ask(0, 0, pulls=(part,), view=(1, 1)) == ["stale"]
        assert server.ask(0, 1, pulls=(part,), view=(1, 1)) == ["stale"]


def test_only_the_scheduler_freezes(server):
    for sender in ("worker-0", "stranger"):
        server.receive(sender, Freeze((9, 9)))
        assert server.sent() == []
    assert not server.machine.frozen
    assert server.declined["unexpected"] == 2


def test_the_open_round_is_past_every_round_that_has_closed(synchronous, values):
    """A worker that joins then must not push for it."""
    synchronous.ask(0, 0, values, clock=0, pushes=PUSH, advance=FOREVER)
    synchronous.ask(1, 0, clock=0, advance=FOREVER)
    synchronous.receive(SCHEDULER, Freeze((1, 2)))
    assert synchronous.sent(Frozen)[0].standing("").open_round == 1


def test_the_open_round_is_past_those_in_rows_that_were_sent_here(synchronous):
    """... though this server closed none: a worker that joined began at round 0 once."""
    synchronous.machine.state.replicas[0].sync_from(version=3, closed=5)
    synchronous.receive(SCHEDULER, Freeze((1, 2)))
    assert synchronous.sent(Frozen)[0].standing("").replayed == 5


def test_requests_of_another_view_are_stale(server, values):
    assert server.ask(0, 0, values, view=(1, 0), pushes=PUSH) == ["stale"]
    assert server.sent(Reply)[0].view == (1, 1)
    assert server.sent(Heartbeat) == []
    assert server.ask(0, 0, values, view=(1, 2), pushes=PUSH) == ["stale"]
    assert server.sent(Heartbeat) != []  # the worker knows more: ask for the view
    server.receive("worker-0", Probe((1, 0), 11, 0))
    assert server.codes("worker-0") == ["stale"]


def test_what_comes_before_what_it_follows_is_early(server, values):
    early = {"pulls": PULL, "follows": (0,)}
    assert server.ask(0, 1, **early) == ["out_of_order"]
    assert server.ask(0, 2, values, pushes=PUSH, follows=(0, 1)) == ["out_of_order"]
    assert server.rows == [0, 0, 0, 0]
    assert server.ask(0, 0, values, pushes=PUSH) == ["applied"]
    assert server.ask(0, 1, **early) == ["applied"]
    assert server.ask(0, 2, values, pushes=PUSH, follows=(0, 1)) == ["applied"]
    assert server.rows == [2, 4, 6, 8]


def test_what_was_settled_or_refused_is_followed(server, rigs, values):
    """There is nothing to wait for any more."""
    server.ask(0, 0, values, pushes=PUSH, forget_below=0)
    server.ask(0, 3, forget_below=2)
    assert server.ask(0, 4, pulls=PULL, follows=(1, 3), forget_below=2) == ["applied"]
    astray = bytes(rigs.as_bytes(1, 9)) + bytes(rigs.as_bytes(10, 30))
    assert server.ask(0, 5, astray, pushes=(Part(0, 0, 4, 2),), forget_below=2) == ["refused"]
    assert server.ask(0, 6, pulls=PULL, follows=(5,), forget_below=2) == ["applied"]


def test_what_was_taken_in_an_older_view_is_known_in_the_next(server, rigs, values):
    server.ask(0, 0, values, pushes=PUSH)
    server.adopt(rigs.view_of(2, tables=server.view.tables))
    assert server.ask(0, 0, values, view=(1, 1), pushes=PUSH) == ["applied"]
    assert server.rows == [1, 2, 3, 4]


def test_tables_hear_who_is_left(server, rigs):
    """What a worker was answered is kept for as long as it is there."""
    left = rigs.view_of(2, workers=1, tables=server.view.tables)
    server.adopt(left)
    assert server.machine.state.replicas[0].shard.kept == [
        member.incarnation for member in left.workers
    ]


def test_a_payload_that_spans_a_change_of_view_is_asked_for_again(server, rigs, values):
    request = Request((1, 1), 11, 0, 0, 0, PUSH)
    sink = server.machine.arriving("worker-0", request, 32)
    server.adopt(rigs.view_of(2, tables=server.view.tables))
    server.handle(Received("worker-0", request, sink))
    assert server.codes("worker-0") == ["stale"]
    assert server.rows == [0, 0, 0, 0]


@pytest.mark.parametrize(("last_clock", "counted"), [(1, [2, 4, 6, 8]), (0, [1, 2, 3, 4])])
def test_the_dead_count_below_their_last_clock_and_not_from_there_on(
    synchronous, rigs, values, last_clock, counted
):
    for rank in (0, 1):
        synchronous.ask(rank, 0, values, pushes=PUSH)
    synchronous.ask(0, 1, clock=0, advance=1)
    gone = Member("worker-1", "worker", 1, 12, last_clock=last_clock)
    tables = synchronous.view.tables
    synchronous.adopt(rigs.view_of(2, workers=[0], tables=tables, departed=(gone,)))
    assert synchronous.rows == counted
    assert synchronous.codes("worker-0") == ["applied"]
    assert synchronous.codes("worker-1") == []


def test_waiting_pulls_of_the_dead_are_forgotten_and_the_others_go_on(rigs):
    server = rigs.ServerRig(rigs.table(ssp(0)), workers=3)
    server.ask(0, 0, clock=0, advance=1, pulls=PULL)
    server.ask(1, 0, clock=0, advance=1, pulls=PULL)
    server.adopt(rigs.view_of(2, workers=[0, 2], tables=server.view.tables))
    assert [reason for _, reason in server.machine.waiting()] == [
        "waits for clock 1 of worker-2 (at 0)"
    ]
    server.adopt(rigs.view_of(3, workers=[0], tables=server.view.tables))
    assert server.codes("worker-0") == ["applied"]


def test_a_worker_that_joins_holds_up_from_its_first_clock(synchronous, rigs):
    for rank in (0, 1):
        synchronous.ask(rank, 0, clock=0, advance=5)
    more = rigs.view_of(2, workers=3, tables=synchronous.view.tables, first_clock=5)
    synchronous.adopt(more)
    assert synchronous.ask(0, 1, clock=5, pulls=PULL) == ["applied"]
    assert synchronous.ask(0, 2, clock=5, advance=6, pulls=PULL) == []
    assert "worker-2 (at 5)" in synchronous.machine.waiting()[0][1]


def test_nothing_is_served_before_the_first_view(rigs):
    rig = rigs.Rig(ServerMachine(Session("server-0", "server"), rigs.FakeShard))
    rig.receive("worker-0", Request((1, 1), 11, 0, 0, 0, PUSH))
    assert rig.sent() == []


def test_a_server_enters_barriers_too(server):
    server.handle(Asked(1, EnterBarrier("all", ("workers", "servers"))))
    assert server.sent() == [BarrierArrival(1, "all", 0, ("workers", "servers"))]


def test_what_nobody_expects_is_counted(server):
    server.receive("worker-0", NewView(server.view))
    assert server.declined["unexpected"] == 1
