"""Requests of sparse tables: hash slots instead of rows, keys that travel once."""

import numpy as np
import pytest

from shoal.keys import SLOTS, KeyRange, slot_of
from shoal.protocol.limits import KEYS_MAX
from shoal.protocol.machine import Discard, Received, Send
from shoal.protocol.messages.base import SAME, Part
from shoal.protocol.messages.membership import NewView
from shoal.protocol.messages.requests import Request
from shoal.protocol.scheduler.rows.placement import place
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.views import Member, View
from shoal.tables.consistency import asp, bsp
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec

ALL = KeyRange(0, SLOTS)


def table(consistency=None):
    rule = consistency or asp()
    return TableSpec("e", kind="sparse", access=Access("sum"), merge="sum", consistency=rule).cut(1)


def ordered(*keys):
    return np.array(sorted(keys, key=slot_of), np.uint64).data


def values(*numbers):
    return np.array(numbers, np.float32).view(np.uint8).data


class Server:
    """A server machine with a sparse table, and one worker's requests to it."""

    def __init__(self, consistency=None):
        self.machine = ServerMachine(Session("s", "server"), open_shard)
        servers, workers = (Member("s", "server", 0, 1),), (Member("w", "worker", 0, 2),)
        spec = table(consistency)
        view = View(1, 1, servers, workers, (spec,), (place(spec, servers, 1, 0),))
        self.machine.handle(Received("scheduler", NewView(view)), 0.0)
        self.seq = -1

    def request(self, pushes=(), pulls=(), **options):
        self.seq += 1
        return Request((1, 1), 2, self.seq, 0, 0, pushes, pulls=pulls, **options)

    def ask(self, request, data=b""):
        """The request's answer: its code, and its rows."""
        sink = self.machine.arriving("w", request, len(data)) if data else None
        if sink is not None:
            if isinstance(sink, Discard):
                return sink.reason, None
            sink.fill(memoryview(data), 0)
            sink.landed = len(sink.views)
        effects = self.machine.handle(Received("w", request, sink), 0.0)
        answer = [each for each in effects if isinstance(each, Send) and each.to == "w"][-1]
        return answer.message.code, [np.frombuffer(b, np.float32).tolist() for b in answer.buffers]


# ---------------------------------------------------------------------------- cutting


# ---------------------------------------------------------------------------- serving

KEYS = bytes(ordered(7, 8))


def test_a_push_with_a_pull_of_its_keys_returns_the_updated_rows():
    server = Server()
    both = server.request((Part(0, 0, SLOTS, 2),), (Part(0, 0, SLOTS, SAME),))
    assert server.ask(both, KEYS + bytes(values(1, 2))) == ("applied", [[1, 2]])
    pull = server.request(pulls=(Part(0, 0, SLOTS, 2),))
    assert server.ask(pull, KEYS) == ("applied", [[1, 2]])


def test_a_pull_of_pushed_keys_under_bsp_returns_the_rows_after_the_round():
    server = Server(bsp())
    both = server.request((Part(0, 0, SLOTS, 2),), (Part(0, 0, SLOTS, SAME),), advance=1)
    code, rows = server.ask(both, KEYS + bytes(values(1, 2)))
    assert (code, rows) == ("applied", [[1, 2]])


@pytest.mark.parametrize(
    ("pushes", "pulls"),
    [
        ((Part(0, 0, SLOTS),), ()),
        ((), (Part(0, 0, SLOTS + 1),)),
        ((), (Part(0, 0, SLOTS, SAME),)),
        ((Part(0, 0, SLOTS, 1), Part(0, 0, SLOTS, 1)), (Part(0, 0, SLOTS, SAME),)),
        ((Part(0, 0, SLOTS, SAME),), ()),
        ((Part(0, 0, SLOTS, KEYS_MAX + 1),), ()),
        ((Part(0, 0, SLOTS + 1, 1),), ()),
        ((Part(0, 0, SLOTS, -3),), ()),
        ((Part(0, 0, SLOTS, 1),), (Part(0, 0, SLOTS, SAME), Part(0, 0, SLOTS, SAME))),
        ((Part(0, 0, SLOTS, 1),), (Part(0, 5, 1, SAME),)),
    ],
)
def test_a_request_with_impossible_keys_is_refused_and_changes_nothing(pushes, pulls):
    server = Server()
    code, _ = server.ask(server.request(pushes, pulls))
    assert code == "refused"
    assert len(server.machine.state.replicas[0].shard) == 0


def test_no_memory_is_kept_for_a_payload_of_another_size():
    server = Server()
    huge = server.request((Part(0, 0, SLOTS, KEYS_MAX),))
    assert "announced" in server.ask(huge, b"12345678")[0]
    assert server.ask(huge)[0] == "missing"
    assert not any(server.machine.state.replicas[0].shard._staging._free.values())


def test_a_key_outside_the_named_slots_is_refused():
    server = Server()
    key = next(key for key in range(100) if slot_of(key) >= 16)
    push = server.request((Part(0, 0, 16, 1),))
    assert server.ask(push, bytes(ordered(key)) + bytes(values(1)))[0] == "refused"
    assert len(server.machine.state.replicas[0].shard) == 0
