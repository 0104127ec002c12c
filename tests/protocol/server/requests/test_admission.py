"""What a request may name, and what is refused before memory is taken or a loop is entered."""

import math
import time
from typing import ClassVar

import msgspec
import pytest

from shoal.errors import BadEncoding
from shoal.protocol.limits import PARTS_MAX, REPEATS_MAX
from shoal.protocol.machine import Discard, Offload, Offloaded, Received
from shoal.protocol.messages.base import SAME, Part
from shoal.protocol.messages.requests import EncodedRequest, Reply, Request
from shoal.protocol.server.requests import staging
from shoal.tables.consistency import bsp
from tests.protocol.rigs.shard import FakeShard, FakeStaged
from tests.protocol.rigs.views import as_bytes

ALL = Part(0, 0, 4)


def refusals(server, request):
    server.handle(Received("worker-0", request))
    return [reply.reason for reply in server.sent(Reply) if reply.code == "refused"]


@pytest.mark.parametrize(
    "more",
    [
        {"rates": (0.5, 0.5)},  # of one part
        {"weight": math.inf},
        {"forget_below": 1},
        {"pushes": (ALL,) * (REPEATS_MAX + 1)},
        {"pushes": (), "pulls": (ALL,) * (REPEATS_MAX + 1)},
        {"pushes": (Part(0, 0, 0),) * (4 * REPEATS_MAX + 1)},  # which take time, if no memory
        {"pushes": (), "pulls": (Part(0, 0, 0),) * (4 * REPEATS_MAX + 1)},
        {"pulls": (Part(0, 0, 4, SAME),)},  # of a push of all rows
        {"pushes": (Part(0, 0, 4, 2),) * 2, "pulls": (Part(0, 0, 4, SAME),)},
        {"pushes": (Part(0, 0, 4, 2),), "pulls": (Part(0, 0, 4, SAME),) * 2},
        {"pushes": (Part(0, 0, 4, -1, 1),), "assign": True},  # the table has no slots
        {"pushes": (), "pulls": (Part(0, 0, 4, -1, 1),)},
    ],
    ids=str,
)
def test_requests_that_no_worker_makes_are_refused(server, more):
    fields = {"forget_below": 0, "pushes": (ALL,), **more}
    request = Request((1, 1), 11, 0, fields.pop("forget_below"), 0, **fields)
    assert ["it names rows or a table" in each for each in refusals(server, request)] == [True]


def test_a_pull_of_the_keys_that_are_pushed_may_name_many_ranges(server):
    rows = [(start, stop) for start in range(4) for stop in range(start + 1, 5)]
    parts = tuple(Part(0, *rows[at % len(rows)], SAME) for at in range(PARTS_MAX))
    pushes = tuple(Part(0, *each, 1) for each in rows)
    began = time.perf_counter()
    assert refusals(server, Request((1, 1), 11, 0, 0, 0, pushes, pulls=parts))
    assert time.perf_counter() - began < 1.0  # seconds for a hundredth of it, once


def test_footprints_of_many_parts_are_not_kept_for_ever(server):
    for count in range(1, REPEATS_MAX + 1):
        for start in range(3):
            pulls = (Part(0, start, start + 1),) * count
            assert server.machine.requests.admission.footprint(
                Request((1, 1), 11, 0, 0, 0, pulls=pulls)
            )
    kept = server.machine.requests.admission._footprints
    assert sum(1 + len(each) for _, each in kept) <= 1 << 14


def test_memory_that_is_refused_is_a_refused_request_that_names_the_table(server, monkeypatch):
    def none(shard, rows, keys):
        raise MemoryError

    monkeypatch.setattr(FakeShard, "stage", none)
    request = Request((1, 1), 11, 0, 0, 0, (ALL,))
    arrival = server.machine.arriving("worker-0", request, 32)
    assert isinstance(arrival, Discard)
    [reason] = refusals(server, request)
    assert "no memory for 32 bytes" in reason
    assert "'w'" in reason
    monkeypatch.undo()
    server.handle(Received("worker-0", request))
    assert server.codes("worker-0") == ["missing"]  # there is room again


def test_what_a_worker_has_waiting_for_rounds_is_bounded(rigs, monkeypatch):
    server = rigs.ServerRig(rigs.table(bsp()))
    monkeypatch.setattr(staging, "COUNTED_BYTES", 1)
    monkeypatch.setattr(staging, "WAITING_BYTES", 80)
    for seq in range(2):
        server.receive("worker-0", Request((1, 1), 11, seq, 0, 0, (ALL,)), bytes(32))
        assert server.codes("worker-0") == ["accepted"]
    request = Request((1, 1), 11, 2, 0, 0, (ALL,))
    assert isinstance(server.machine.arriving("worker-0", request, 32), Discard)
    assert "wait for rounds to close" in refusals(server, request)[0]
    server.receive("worker-1", Request((1, 1), 12, 0, 0, 0, (ALL,)), bytes(32))
    assert server.codes("worker-1") == ["accepted"]  # another worker


# ---------------------------------------------------------------------------- encoded rows


def encoded_push(seq=0, *sizes, pulled=(), **more):
    parts = more.pop("pushes", (ALL,) if sizes else ())
    return EncodedRequest((1, 1), 11, seq, 0, 0, parts, sizes=sizes, pulled=pulled, **more)


def test_an_encoded_push_is_decoded_before_it_is_applied(server):
    server.receive("worker-0", encoded_push(0, (4,)), bytes([1, 2, 3, 4]))
    assert server.codes("worker-0") == ["applied"]
    assert server.rows == [1, 2, 3, 4]


def test_a_push_that_cannot_be_decoded_is_refused_whole(server):
    both = encoded_push(0, (4,), (4,), pushes=(ALL, ALL))
    server.receive("worker-0", both, bytes([1, 2, 3, 4, 5, 6, 7, 255]))
    assert [each.reason for each in server.sent(Reply)] == ["255 is no value"]
    assert server.rows == [0] * 4
    server.receive("worker-0", both, bytes([1, 2, 3, 4, 5, 6, 7, 8]))  # its outcome is known
    assert server.codes("worker-0") == ["refused"]


@pytest.mark.parametrize(
    ("sizes", "more"),
    [
        (((33,),), {}),  # more than its rows
        (((0,),), {}),
        (((2, 2),), {}),  # there is one fragment
        (((4,), ()), {}),  # of two parts
        (((4,),), {"assign": True}),
        (((4,),), {"pushes": (Part(0, 0, 4, 2),)}),
        (((4,),), {"pushes": (Part(0, 0, 0),)}),
        ((), {"pulls": (ALL,), "pulled": ((33,),)}),
        ((), {"pulls": (ALL,), "pulled": ((4,), (4,))}),
        ((), {"pulls": (Part(0, 0, 4, 1),), "pulled": ((4,),)}),
    ],
    ids=str,
)
def test_sizes_that_no_worker_says_are_refused_before_memory_is_taken(server, sizes, more):
    request = encoded_push(0, *sizes, **more)
    assert isinstance(server.machine.arriving("worker-0", request, 4), Discard)
    assert ["it names rows or a table" in each for each in refusals(server, request)] == [True]


def test_another_payload_than_the_sizes_say_is_not_taken(server):
    arrival = server.machine.arriving("worker-0", encoded_push(0, (4,)), 5)
    assert isinstance(arrival, Discard)
    assert "5 bytes announced where the parts need 4" in arrival.reason


def test_rows_are_pulled_encoded_if_their_sizes_are_as_the_worker_says(server):
    server.receive("worker-0", encoded_push(0, (4,)), bytes([1, 2, 3, 4]))
    server.receive("worker-0", encoded_push(1, pulls=(ALL,), pulled=((4,),)))
    [send] = server.sends(Reply)
    assert send.message.reason == ""
    assert b"".join(send.buffers) == bytes([1, 2, 3, 4])
    server.receive("worker-0", encoded_push(2, pulls=(ALL,), pulled=((5,),)))
    [reply] = server.sent(Reply)
    assert (reply.code, "encoded fragments of 5 bytes" in reply.reason) == ("refused", True)


def test_what_waits_for_rounds_is_bounded_in_decoded_bytes(rigs, monkeypatch):
    server = rigs.ServerRig(rigs.table(bsp()))
    monkeypatch.setattr(staging, "COUNTED_BYTES", 1)
    monkeypatch.setattr(staging, "WAITING_BYTES", 80)
    for seq in range(2):
        server.receive("worker-0", encoded_push(seq, (4,)), bytes(4))
        assert server.codes("worker-0") == ["accepted"]
    request = encoded_push(2, (4,))
    assert isinstance(server.machine.arriving("worker-0", request, 4), Discard)
    assert "wait for rounds to close" in refusals(server, request)[0]


def test_long_decoding_is_done_outside_of_the_loop(rigs):
    server = rigs.ServerRig(rigs.table(), long_bytes=32)
    server.receive("worker-0", encoded_push(0, (4,)), bytes([1, 2, 3, 255]))
    [offload] = [each for each in server.effects if isinstance(each, Offload)]
    assert server.rows == [0] * 4
    with pytest.raises(BadEncoding) as error:
        offload.work()
    server.handle(Offloaded(offload.ticket, None, error.value))
    assert server.codes("worker-0") == ["refused"]


class WithState(FakeShard):
    """A shard with one slot, which goes with the rows."""

    slots: ClassVar = {"momentum": None}

    def stage_state(self, rows):
        return FakeStaged(rows, -1, 2 * len(rows))

    def write_state(self, staged, updates):
        self.written = list(staged.values), updates

    def read_state(self, rows):
        return [as_bytes(*self.written[0])]

    def most_updates(self, rows):
        return self.written[1]


STATE = Part(0, 0, 4, -1, 1)


@pytest.fixture
def stateful(rigs, monkeypatch):
    monkeypatch.setattr("tests.protocol.rigs.machines.FakeShard", WithState)
    return rigs.ServerRig(rigs.table())


def test_a_whole_state_is_assigned_and_read_with_its_count(stateful):
    values = bytes(as_bytes(*range(8)))
    given = Request((1, 1), 11, 0, 0, 0, (STATE,), assign=True, updates=7)
    stateful.receive("worker-0", given, values)
    assert stateful.codes("worker-0") == ["applied"]
    assert stateful.machine.state.replicas[0].shard.written == (list(range(8)), 7)
    stateful.handle(Received("worker-0", Request((1, 1), 11, 1, 0, 0, pulls=(STATE,))))
    [answer] = stateful.sends(Reply)
    assert (answer.message.updates, b"".join(map(bytes, answer.buffers))) == (7, values)
    stateful.handle(Received("worker-0", Request((1, 1), 11, 2, 0, 0, pulls=(ALL,))))
    assert stateful.sent(Reply)[0].updates == -1


@pytest.mark.parametrize(
    "more",
    [
        {"pushes": (STATE,)},  # a gradient has no state
        {"pushes": (Part(0, 0, 4, -1, 2),), "assign": True},
        {"pushes": (Part(0, 0, 4, 2, 1),), "assign": True},
        {"pushes": (), "pulls": (Part(0, 0, 4, 2, 1),)},
        {"pushes": (), "pulls": (Part(0, 0, 4, -1, 2),)},
    ],
    ids=str,
)
def test_other_states_than_a_table_has_are_refused(stateful, more):
    assert refusals(stateful, Request((1, 1), 11, 0, 0, 0, **more))


def test_rows_that_another_server_heads_now_are_refused(rigs):
    """The same request as before: what it names is looked up in the view that it is of."""
    server = rigs.ServerRig(rigs.table(), servers=2, replicas=2)
    [here, there] = server.view.placements[0]
    assert server.ask(0, 0, as_bytes(1, 2), pushes=(Part(0, 0, 2),)) == []  # to be replicated
    placements = (msgspec.structs.replace(here, chain=here.chain[::-1]), there)
    server.adopt(msgspec.structs.replace(server.view, number=2, placements=(placements,)))
    assert server.ask(0, 1, as_bytes(1, 2), pushes=(Part(0, 0, 2),)) == ["refused"]
