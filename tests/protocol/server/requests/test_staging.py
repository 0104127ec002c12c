"""Pushes that are applied while they come in: by fragment, each exactly once."""

from weakref import ref

import numpy as np
import pytest

from shoal.errors import InvariantBroken
from shoal.keys import KeyRange
from shoal.protocol.machine import Discard, Loan, Note, Received, Send, Sink
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.membership import NewView
from shoal.protocol.messages.requests import Reply, Request
from shoal.protocol.scheduler.rows.placement import place
from shoal.protocol.server.chains.operations import Change, Operation
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.requests.requests import RequestOptions
from shoal.protocol.session import Session
from shoal.protocol.views import Member, Placement, View
from shoal.tables.consistency import asp, bsp, ssp
from shoal.tables.dense.shard import DenseShard
from shoal.tables.spec import Access, TableSpec

ROWS, FRAGMENT = 10, 4  # fragments of 4, 4 and 2 rows


def table(name="w", consistency=None, rows=ROWS):
    return TableSpec(
        name,
        rows,
        access=Access("sum"),
        consistency=consistency or asp(),
        merge="sum",
        fragment_rows=FRAGMENT,
    )


class Server:
    """A server machine that holds all of some tables, and one worker's requests to it."""

    def __init__(self, *specs):
        self.machine = ServerMachine(Session("s", "server"), DenseShard)
        self.specs = specs
        self.adopt(1)

    def adopt(self, number, joining=False, **more):
        """A view, in which another server may be about to get all rows."""
        servers, workers = (Member("s", "server", 0, 1),), (Member("w", "worker", 0, 2),)
        placements = tuple(place(spec, servers, 1, 0) for spec in self.specs)
        if joining:
            servers = (*servers, Member("t", "server", 1, 3))
            placements = ((Placement(KeyRange(0, ROWS), (0, 1), syncing_since=number),),)
        view = View(1, number, servers, workers, self.specs, placements, **more)
        self.machine.handle(Received("scheduler", NewView(view)), 0.0)
        self.view = (1, number)

    def request(self, seq, pushes=None, pulls=(), **options):
        parts = (Part(0, 0, ROWS),) if pushes is None else pushes
        return Request(self.view, 2, seq, 0, 0, parts, pulls=pulls, **options)

    def begin(self, request, data):
        """The header comes; returns a function that lands the next view."""
        sink = self.machine.arriving("w", request, data.nbytes)
        if isinstance(sink, Discard):
            return sink
        source = iter(memoryview(data).cast("B"))

        def land():
            view = sink.views[sink.landed]
            view[:] = bytes(next(source) for _ in range(view.nbytes))
            sink.landed += 1
            return self.machine.handle(Received("w", request, sink), 0.0)

        land.sink, land.request = sink, request
        return land

    def push(self, request, data):
        land = self.begin(request, data)
        if not land.sink.by_view:
            land.sink.fill(memoryview(data).cast("B"))
            return codes(self.machine.handle(Received("w", request, land.sink), 0.0))
        effects = []
        while not land.sink.whole:
            effects += land()
        return codes(effects)

    def rows(self, number=0):
        return self.machine.state.replicas[number].shard.rows.view(-1).tolist()


def codes(effects):
    return [e.message.code for e in effects if isinstance(e, Send) and isinstance(e.message, Reply)]


def ones(rows=ROWS):
    return np.ones(rows, np.float32)


def test_each_fragment_is_applied_when_it_has_landed():
    server = Server(table())
    land = server.begin(server.request(0), np.arange(1, 11, dtype=np.float32))
    assert land.sink.by_view
    assert [view.nbytes for view in land.sink.views] == [16, 16, 8]
    assert codes(land()) == []
    assert server.rows() == [1, 2, 3, 4, 0, 0, 0, 0, 0, 0]
    land()
    assert server.rows() == [1, 2, 3, 4, 5, 6, 7, 8, 0, 0]
    assert codes(land()) == ["applied"]
    assert server.rows() == list(range(1, 11))


def test_a_fragment_is_applied_from_lent_memory_before_that_is_given_back():
    server = Server(table())
    land = server.begin(server.request(0), np.arange(1, 11, dtype=np.float32))
    own = land.sink.views[0]
    lent = np.array([5, 6, 7, 8], np.float32)
    land.sink.views[0] = memoryview(lent).cast("B").toreadonly()
    land.sink.landed = 1
    server.machine.handle(Received("w", land.request, land.sink), 0.0)
    land.sink.views[0], lent[:] = own, np.nan
    assert server.rows() == [5, 6, 7, 8, 0, 0, 0, 0, 0, 0]


def test_the_last_fragment_is_never_lent():
    """The message that it completes may be kept while long work goes on, and applied later."""
    server = Server(table(), table("other"))
    both = (Part(0, 0, ROWS), Part(1, 0, ROWS))
    assert server.begin(server.request(0), ones()).sink.lends == 2
    assert server.begin(server.request(1, pushes=both), ones(2 * ROWS)).sink.lends == 5
    assert server.begin(server.request(2, assign=True), ones()).sink.lends == 0


def test_pushes_whose_access_method_may_fail_are_not_streamed():
    server = Server(table())
    server.machine.state.replicas[0].shard.streams = False
    assert not server.begin(server.request(0), ones()).sink.by_view


def test_updates_that_an_access_method_may_write_to_are_not_lent():
    server = Server(table())
    server.machine.state.replicas[0].shard.reads_lent = False
    sink = server.begin(server.request(0), ones()).sink
    assert (sink.by_view, sink.lends) == (True, 0)


def test_what_a_sender_left_half_done_is_finished_by_its_resend():
    server = Server(table())
    first = server.begin(server.request(0), ones())
    first()
    assert server.push(server.request(0), ones()) == ["applied"]
    assert server.rows() == [1] * ROWS


def test_what_was_half_done_before_its_rows_began_to_move_is_not_done_again():
    """A server that joins gets rows from one that has a push half: seed 108 lost that."""
    server = Server(table())
    server.begin(server.request(0), ones())()
    server.adopt(2, joining=True)
    assert server.push(server.request(0), ones()) == ["applied"]
    assert server.rows() == [1] * ROWS


def test_no_checkpoint_of_its_clock_or_before_contains_a_streamed_push_under_ssp():
    server = Server(table(consistency=ssp(3)))
    land = server.begin(server.request(0), ones())
    assert land.sink.by_view
    land()
    assert server.machine.state.replicas[0].closed == 1


def test_a_fragment_is_not_applied_while_a_checkpoint_is_due():
    """Its turn comes in the handler that has moved the clock: seed 40371."""
    server = Server(table())
    server.adopt(2, checkpoint_clocks=(1,))
    land = server.begin(server.request(0), ones())
    land()
    server.machine.state.clocks.of("").advance(2, 1)
    land()
    assert server.rows() == [1] * FRAGMENT + [0] * (ROWS - FRAGMENT)
    assert land.sink.revoked


def test_two_copies_at_once_are_applied_once():
    server = Server(table())
    one = server.begin(server.request(0), ones())
    two = server.begin(server.request(0), ones())
    assert codes([*one(), *two(), *two(), *one()]) == []
    assert codes(one()) == ["applied"]
    assert codes(two()) == ["applied"]  # it was: this is its state
    assert server.rows() == [1] * ROWS


def test_two_workers_streams_do_not_share_memory():
    server = Server(table())
    one = server.begin(server.request(0), np.full(ROWS, 1, np.float32))
    two = server.begin(server.request(1), np.full(ROWS, 10, np.float32))
    for _ in range(3):
        one()
        two()
    assert server.rows() == [11] * ROWS


def test_memory_is_used_again():
    server = Server(table())
    land = server.begin(server.request(0), ones())
    views = land.sink.views
    while not land.sink.whole:
        land()
    again = server.begin(server.request(1), ones()).sink.views
    assert all(one is other for one, other in zip(again, views, strict=True))


@pytest.mark.parametrize("landed", [0, 1, 2])
def test_nothing_is_applied_under_a_later_view(landed):
    server = Server(table())
    land = server.begin(server.request(0), ones())
    for _ in range(landed):
        land()
    before = server.rows()
    server.adopt(2)
    effects = []
    while not land.sink.whole:
        effects += land()
    assert codes(effects) == ["stale"]
    assert server.rows() == before
    assert server.push(server.request(0), ones()) == ["applied"]
    assert server.rows() == [1] * ROWS


def test_what_its_worker_gave_up_is_forgotten():
    server = Server(table())
    server.begin(server.request(0), ones())()
    log = server.machine.requests.admission.logs["w"]
    assert 0 in log.parts
    server.push(Request(server.view, 2, 1, 1, 0, (Part(0, 0, ROWS),)), ones())
    assert 0 not in log.parts


def test_an_answer_comes_after_all_of_the_push():
    server = Server(table())
    pull = (Part(0, 0, ROWS),)
    land = server.begin(server.request(0, pulls=pull), ones())
    effects = []
    while not land.sink.whole:
        effects += land()
    (answer,) = [e for e in effects if isinstance(e, Send)]
    assert b"".join(answer.buffers) == ones().tobytes()


def test_tables_in_one_request_land_one_after_the_other():
    server = Server(table("a"), table("b", rows=3))
    parts = (Part(0, 0, ROWS), Part(1, 0, 3))
    request = server.request(0, pushes=parts)
    assert server.push(request, np.arange(13, dtype=np.float32)) == ["applied"]
    assert server.rows(0) == list(range(10))
    assert server.rows(1) == [10, 11, 12]


def test_a_part_of_the_rows_lands_by_fragment_too():
    server = Server(table())
    land = server.begin(server.request(0, pushes=(Part(0, 2, 9),)), ones(7))
    assert [view.nbytes for view in land.sink.views] == [8, 16, 4]
    while not land.sink.whole:
        land()
    assert server.rows() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("spec", "parts", "options"),
    [
        (table(consistency=bsp()), (Part(0, 0, ROWS),), {}),
        (table(consistency=ssp(1, apply_at="round_end")), (Part(0, 0, ROWS),), {}),
        (table(), (Part(0, 0, ROWS),), {"assign": True}),
        (table(), (Part(0, 0, FRAGMENT),), {}),
        (table(), (Part(0, 0, ROWS, 3),), {}),
        (table(), (Part(0, 0, 8), Part(0, 4, ROWS)), {}),
    ],
    ids=["round", "close", "assign", "one fragment", "keys", "rows that are named twice"],
)
def test_others_are_staged_whole(spec, parts, options):
    server = Server(spec)
    request = server.request(0, pushes=parts, **options)
    nbytes = sum(
        4 * (part.stop - part.start) if part.keys < 0 else part.keys * 12 for part in parts
    )
    sink = server.machine.arriving("w", request, nbytes)
    assert not sink.by_view


def test_checkers_hear_of_every_fragment():
    server = Server(table())
    land = server.begin(server.request(0), ones())
    notes = []
    while not land.sink.whole:
        notes += [effect.kind for effect in land() if isinstance(effect, Note)]
    assert notes == ["landed", "landed", "landed", "pushed"]


def test_an_acknowledgement_without_a_fragment_is_a_bug_that_is_named():
    server = Server(table())
    land = server.begin(server.request(0), ones())
    land()
    land()
    server.machine.requests.admission.logs["w"].parts[0].clear()
    with pytest.raises(InvariantBroken, match="not applied"):
        land()


def test_the_optimizer_counts_one_step_a_fragment():
    shard = DenseShard(table(), KeyRange(0, ROWS))
    streamed = shard.stream(KeyRange(0, ROWS))
    for number in range(3):
        shard.apply_piece(streamed, number, streamed.views[number], None)
    assert shard.updates == shard.versions == [1, 1, 1]


# ---------------------------------------------------------------------------- borrowed payloads


class Borrowing(Server):
    """A server that may borrow payloads of all sizes in their senders' memory."""

    def __init__(self, *specs):
        options = RequestOptions(borrowed_bytes=0)
        self.machine = ServerMachine(Session("s", "server"), DenseShard, requests=options)
        self.specs = specs
        self.adopt(1)

    def borrow(self, request, *memories):
        """A payload comes and is borrowed: its loan, and the answers."""
        sink = self.machine.arriving("w", request, sum(each.nbytes for each in memories))
        assert sink.borrows
        sink.views = [memoryview(each).cast("B").toreadonly() for each in memories]
        sink.loan = Loan()
        loan = ref(sink.loan)
        return loan, self.machine.handle(Received("w", request, sink), 0.0)


def test_a_push_into_a_round_is_merged_from_its_senders_memory():
    server = Borrowing(table(consistency=bsp()))
    memory = ones()
    loan, effects = server.borrow(server.request(0), memory)
    assert codes(effects) == ["accepted"]
    assert loan() is not None
    memory[:] = 7  # not lawful: it shows that nothing was copied
    effects = server.machine.handle(Received("w", server.request(1, (), advance=1)), 0.0)
    assert "applied" in codes(effects)
    assert server.rows() == [7] * ROWS
    assert loan() is None, "the memory is not given back"


def test_a_push_that_is_applied_at_once_needs_no_copy():
    """Staging memory stays for pushes that do, with the update that is prepared for them."""
    server = Borrowing(table(rows=FRAGMENT))
    part = Part(0, 0, FRAGMENT)
    for seq in (0, 2):
        assert server.push(server.request(seq, (part,)), ones(FRAGMENT)) == ["applied"]
        loan, effects = server.borrow(server.request(seq + 1, (part,)), 5 * ones(FRAGMENT))
        assert codes(effects) == ["applied"]
        assert server.rows() == [3 * seq + 6] * FRAGMENT
        assert loan() is None
    [waiting] = server.machine.state.replicas[0].shard._ready.values()
    assert len(waiting) == 1, "each push took other memory"


def test_some_views_may_be_copied_and_others_borrowed():
    server = Borrowing(table(consistency=bsp()), table("other", bsp()))
    request = server.request(0, (Part(0, 0, ROWS), Part(1, 0, ROWS)))
    sink = server.machine.arriving("w", request, 80)
    sink.views[0][:] = (2 * ones()).tobytes()
    sink.views = [sink.views[0], memoryview(ones()).cast("B").toreadonly()]
    sink.loan = Loan()
    server.machine.handle(Received("w", request, sink), 0.0)
    other = server.machine.arriving("w", server.request(1, request.pushes), 80)
    other.fill(memoryview(bytes(80)))
    server.machine.handle(Received("w", server.request(2, (), advance=1)), 0.0)
    assert (server.rows(0), server.rows(1)) == ([2] * ROWS, [1] * ROWS)


def test_what_another_server_has_to_get_is_not_borrowed():
    server = Borrowing(table(consistency=bsp()))
    server.adopt(2, joining=True)
    assert not server.machine.arriving("w", server.request(0), 40).borrows


@pytest.mark.parametrize(
    ("part", "nbytes", "assign"),
    [(Part(0, 0, ROWS), 40, True), (Part(0, 0, ROWS, 3), 3 * (8 + 4), False)],
    ids=["assigned rows", "named keys"],
)
def test_which_pushes_are_not_borrowed(part, nbytes, assign):
    server = Borrowing(table(consistency=bsp()))
    request = server.request(0, (part,), assign=assign)
    assert not server.machine.arriving("w", request, nbytes).borrows


def test_updates_that_an_access_method_may_write_to_are_not_borrowed():
    server = Borrowing(table(consistency=bsp()))
    server.machine.state.replicas[0].shard.reads_lent = False
    assert not server.machine.arriving("w", server.request(0), 40).borrows


def test_small_payloads_are_not_borrowed():
    server = Server(table(consistency=bsp()))
    assert not server.machine.arriving("w", server.request(0), 40).borrows


def test_what_is_sent_to_another_server_is_copied_first():
    """That server gets what is applied here, whatever the worker does meanwhile."""
    server = Borrowing(table(consistency=bsp()))
    memory = ones()
    loan, _ = server.borrow(server.request(0), memory)
    [entry] = server.machine.state.rounds.entries()
    [part] = entry.parts
    replica = server.machine.state.replicas[part.number]
    replica.following = 1
    change = Change(replica, replica.part_of(part.staged), None, part.staged)
    operation = Operation("push", (0,), 0, [change])
    server.machine.requests.applier._changed(operation, {})
    sent = change.counted(1).buffers
    assert loan() is None
    memory[:] = 7
    assert b"".join(sent) == ones().tobytes()
    assert part.staged.values.view(-1).tolist() == [1] * ROWS


def test_a_borrowed_payload_of_an_earlier_view_is_not_used():
    server = Borrowing(table(consistency=bsp()))
    request = server.request(0)
    sink = server.machine.arriving("w", request, 40)
    sink.views, sink.loan = [memoryview(ones()).cast("B").toreadonly()], Loan()
    loan = ref(sink.loan)
    server.adopt(2)
    effects = server.machine.handle(Received("w", request, sink), 0.0)
    del sink
    assert codes(effects) == ["stale"]
    assert loan() is None


def test_empty_parts_are_carried_out_though_they_have_no_view():
    server = Borrowing(table(consistency=bsp()))
    request = server.request(0, (Part(0, 0, 0), Part(0, 0, ROWS)))
    arrival = server.machine.arriving("w", request, 40)
    assert not isinstance(arrival, Sink) or not arrival.borrows
