"""Requests of sparse tables: hash slots instead of rows, keys that travel once."""

import numpy as np
import pytest

from shoal.errors import InvalidValue
from shoal.keys import SLOTS, KeyRange, slot_of
from shoal.protocol.limits import KEYS_MAX
from shoal.protocol.machine import Discard, Received, Send
from shoal.protocol.messages import SAME, NewView, Part, Request
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.protocol.scheduler.placement import place
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.session import Session
from shoal.protocol.views import Member, View
from shoal.protocol.worker import routing
from shoal.protocol.worker.routing import Router
from shoal.tables.opening import open_shard
from shoal.tables.spec import Access, TableSpec, asp, bsp

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


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_key_goes_to_the_server_of_its_slot(rigs, servers):
    router = Router(rigs.view_of(servers=servers, tables=(table(),)))
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


def test_keys_that_are_pushed_and_pulled_travel_once(rigs):
    router = Router(rigs.view_of(servers=2, tables=(table(),)))
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
def test_keys_travel_again_where_they_are_not_the_same(rigs, why):
    rule = bsp() if why == "another leg" else asp()
    router = Router(rigs.view_of(servers=2, tables=(table(rule),)))
    keys = ordered(1, 2, 3)
    push = PushOp("e", ALL, values(1, 2, 3), keys)
    pushes = (push, push) if why == "two pushes" else (push,)
    pulled = ordered(1, 2, 3) if why == "other memory" else keys
    pull = PullOp("e", ALL, values(0, 0, 0), pulled)
    for sub_request in router.sub_requests(Exchange(pushes, True, (pull,))):
        for share in sub_request.server_parts:
            assert all(part.keys >= 0 for part in share.pulls)


@pytest.mark.parametrize("keys", [None, "many"])
def test_what_cannot_be_cut(rigs, keys, monkeypatch):
    monkeypatch.setattr(routing, "KEYS_MAX", 2)
    router = Router(rigs.view_of(servers=2, tables=(table(),)))
    chosen = None if keys is None else ordered(1, 2, 3)
    with pytest.raises(InvalidValue, match="sparse"):
        router.cut((), (PullOp("e", ALL, values(0, 0, 0), chosen),), False)


# ---------------------------------------------------------------------------- serving

KEYS = bytes(ordered(7, 8))


def test_a_push_and_a_pull_of_its_keys():
    server = Server()
    both = server.request((Part(0, 0, SLOTS, 2),), (Part(0, 0, SLOTS, SAME),))
    assert server.ask(both, KEYS + bytes(values(1, 2))) == ("applied", [[1, 2]])
    pull = server.request(pulls=(Part(0, 0, SLOTS, 2),))
    assert server.ask(pull, KEYS) == ("applied", [[1, 2]])


def test_a_pull_of_pushed_keys_may_wait_for_its_round():
    server = Server(bsp())
    both = server.request((Part(0, 0, SLOTS, 2),), (Part(0, 0, SLOTS, SAME),), advance=1)
    code, rows = server.ask(both, KEYS + bytes(values(1, 2)))
    assert (code, rows) == ("applied", [[1, 2]])


@pytest.mark.parametrize(
    ("pushes", "pulls"),
    [
        ((Part(0, 0, SLOTS),), ()),
        ((), (Part(0, 0, SLOTS),)),
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
def test_requests_that_name_no_keys_of_this_table(pushes, pulls):
    server = Server()
    code, _ = server.ask(server.request(pushes, pulls))
    assert code == "refused"
    assert len(server.machine.shards[0]) == 0


def test_no_memory_is_taken_for_a_payload_that_does_not_come():
    server = Server()
    huge = server.request((Part(0, 0, SLOTS, KEYS_MAX),))
    assert "announced" in server.ask(huge, b"12345678")[0]
    assert server.ask(huge)[0] == "missing"
    assert not any(server.machine.shards[0]._staging._free.values())


def test_a_key_in_the_wrong_slots_is_refused_and_named():
    server = Server()
    key = next(key for key in range(100) if slot_of(key) >= 16)
    push = server.request((Part(0, 0, 16, 1),))
    assert server.ask(push, bytes(ordered(key)) + bytes(values(1)))[0] == "refused"
    assert len(server.machine.shards[0]) == 0
