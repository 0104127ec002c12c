"""Lists of keys that a server keeps: what names one gets its keys, and nothing else."""

import numpy as np
import pytest

from shoal.errors import InvalidValue
from shoal.keys import SLOTS, digest128
from shoal.protocol.machine import Discard, Received, Send
from shoal.protocol.messages.base import SAME, KeyList, Part
from shoal.protocol.messages.membership import NewView
from shoal.protocol.messages.requests import ListedRequest, Probe, Reply
from shoal.protocol.scheduler.rows.placement import place
from shoal.protocol.server.machine import ServerMachine
from shoal.protocol.server.requests.key_lists import LIST_BYTES, KeyLists
from shoal.protocol.server.requests.requests import RequestOptions
from shoal.protocol.session import Session
from shoal.protocol.views import Member, View
from shoal.tables.opening import open_shard
from shoal.tables.spec import TableSpec

SPEC = TableSpec("e", kind="sparse", merge="sum", key_lists="cached", fragment_rows=16)
KEYS = np.array([3, 9, 27], np.uint64)
DIGEST = digest128(KEYS.tobytes())
THREE = Part(0, 0, SLOTS, 3)


class Server:
    """A server with all of a sparse table, and the requests of one worker."""

    def __init__(self, **options):
        self.machine = ServerMachine(
            Session("s", "server"), open_shard, requests=RequestOptions(**options)
        )
        servers, workers = (Member("s", "server", 0, 1),), (Member("w", "worker", 0, 2),)
        placements = (tuple(place(SPEC, servers, 1, 0)),)
        view = View(1, 1, servers, workers, (SPEC,), placements)
        self.machine.handle(Received("scheduler", NewView(view)), 0.0)

    def ask(self, seq, lists, payload=b"", pushes=(), pulls=()):
        """Return the reply to a request, and the rows that it brings."""
        request = ListedRequest((1, 1), 2, seq, 0, 0, pushes, pulls=pulls, lists=tuple(lists))
        sink = None
        if payload:
            arrival = self.machine.arriving("w", request, len(payload))
            if not isinstance(arrival, Discard):
                sink = arrival
                sink.fill(memoryview(payload))
        out = self.machine.handle(Received("w", request, sink), 0.0)
        [sent] = [each for each in out if isinstance(each, Send) and type(each.message) is Reply]
        rows = b"".join(bytes(view) for view in sent.buffers)
        return sent.message, np.frombuffer(rows, np.float32).tolist()

    def push(self, seq, values, told=True, digest=DIGEST, keys=KEYS, part=THREE):
        payload = (keys.tobytes() if told else b"") + np.array(values, np.float32).tobytes()
        one = KeyList(digest, keys.nbytes if told else 0)
        return self.ask(seq, [one], payload, pushes=(part,))[0]

    def pull(self, seq, told=False, digest=DIGEST, keys=KEYS, part=THREE):
        payload = keys.tobytes() if told else b""
        return self.ask(seq, [KeyList(digest, len(payload))], payload, pulls=(part,))


@pytest.fixture
def server():
    return Server()


def test_a_list_that_has_come_is_named_after_that(server):
    assert server.push(0, [1, 2, 3]).code == "applied"
    assert server.push(1, [10, 20, 30], told=False).code == "applied"
    reply, rows = server.pull(2)
    assert (reply.code, rows) == ("applied", [11, 22, 33])


def test_a_push_and_a_pull_of_the_same_keys_name_them_once(server):
    server.push(0, [1, 2, 3])
    values = np.ones(3, np.float32).tobytes()
    same = Part(0, 0, SLOTS, SAME)
    reply, rows = server.ask(1, [KeyList(DIGEST, 0)], values, pushes=(THREE,), pulls=(same,))
    assert (reply.code, rows) == ("applied", [2, 3, 4])


def test_a_pull_may_bring_a_list(server):
    assert server.pull(0, told=True)[1] == [0, 0, 0]
    assert server.push(1, [1, 2, 3], told=False).code == "applied"


@pytest.mark.parametrize("what", ["push", "pull"])
def test_a_list_that_is_not_here_is_asked_for_and_nothing_is_changed(server, what):
    for seq in range(2):  # again and again
        if what == "push":
            assert server.push(0, [1, 2, 3], told=False).code == "keys", seq
        else:
            assert server.pull(0)[0].code == "keys", seq
    probe = server.machine.handle(Received("w", Probe((1, 1), 2, 0)), 0.0)
    assert [each.message.code for each in probe if isinstance(each, Send)] == ["missing"]
    if what == "push":
        assert server.push(0, [1, 2, 3]).code == "applied"
    assert server.pull(1, told=True)[1] == ([1, 2, 3] if what == "push" else [0, 0, 0])


def test_a_list_of_another_length_is_not_that_list(server):
    server.push(0, [1, 2, 3])
    two = Part(0, 0, SLOTS, 2)
    assert server.pull(1, part=two)[0].code == "keys"
    assert server.push(1, [1, 2], told=False, keys=KEYS[:2], part=two).code == "keys"
    assert server.pull(1)[1] == [1, 2, 3]


def test_a_list_with_a_wrong_digest_is_refused_and_not_kept(server):
    other = digest128(b"another")
    reply = server.push(0, [1, 2, 3], digest=other)
    assert (reply.code, reply.reason) == (
        "refused",
        "a list of keys has another digest than the request says",
    )
    assert server.pull(1, digest=other)[0].code == "keys"
    assert server.pull(1, told=True)[1] == [0, 0, 0]


@pytest.mark.parametrize(
    "lists",
    [
        [],
        [KeyList(b"", 0)],
        [KeyList(b"", 16)],
        [KeyList(DIGEST, 16)],
        [KeyList(DIGEST, 24), KeyList(DIGEST, 24)],
    ],
)
def test_lists_that_do_not_fit_their_parts_are_refused(server, lists):
    reply, _ = server.ask(0, lists, bytes(sum(each.nbytes for each in lists) + 12), (THREE,))
    if lists:
        assert (reply.code, reply.reason[:13]) == ("refused", "it names rows")
    else:
        assert reply.code == "missing"  # it says nothing of lists, and its payload is too short
    assert server.pull(1, told=True)[1] == [0, 0, 0]


@pytest.mark.parametrize("what", ["push", "pull"])
def test_no_keys_have_no_list(server, what):
    """A part without keys names none: a server that looked for its list would not find it."""
    none = (Part(0, 0, SLOTS, 0),)
    parts = {"pushes": none} if what == "push" else {"pulls": none}
    assert server.ask(0, [KeyList(DIGEST, 0)], **parts)[0].code == "refused"
    assert server.ask(1, [KeyList(b"", 0)], **parts)[0].code == "applied"


def test_a_payload_of_another_size_is_not_taken(server):
    server.push(0, [1, 2, 3])
    request = ListedRequest((1, 1), 2, 1, 0, 0, (THREE,), lists=(KeyList(DIGEST, 0),))
    for nbytes in (8, 16, 36):
        assert isinstance(server.machine.arriving("w", request, nbytes), Discard)


def test_the_lists_that_were_used_last_are_kept():
    server = Server(key_lists_bytes=3 * (KEYS.nbytes + LIST_BYTES))
    lists = [KEYS + np.uint64(100 * number) for number in range(4)]
    digests = [digest128(each.tobytes()) for each in lists]
    for number in range(3):
        server.pull(number, True, digests[number], lists[number])
    assert server.pull(3, digest=digests[0])[0].code == "applied"  # used again
    server.pull(4, True, digests[3], lists[3])
    codes = [server.pull(5 + n, digest=each)[0].code for n, each in enumerate(digests)]
    assert codes == ["applied", "keys", "applied", "applied"]
    server.pull(9, True, digests[0], lists[0])  # told again, so it was used
    server.pull(10, True, digests[1], lists[1])
    assert server.pull(11, digest=digests[0])[0].code == "applied"


def test_a_list_beyond_the_bound_is_not_kept():
    server = Server(key_lists_bytes=KEYS.nbytes + LIST_BYTES - 1)
    for seq in range(3):
        assert server.push(seq, [1, 2, 3]).code == "applied"
    assert server.pull(3)[0].code == "keys"


def test_the_bytes_of_lists_are_counted():
    class Load:
        def __init__(self, keys):
            self.keys = keys
            self.views = [memoryview(keys.tobytes())]

    kept = KeyLists(4 * (KEYS.nbytes + LIST_BYTES) + 7)
    for number in range(40):
        keys = KEYS + np.uint64(number)
        one = KeyList(digest128(keys.tobytes()), keys.nbytes)
        request = ListedRequest((1, 1), 2, 0, 0, 0, (THREE,), lists=(one,))
        assert kept.keep(request, [Load(keys)]) == ""
        each = [len(some) + LIST_BYTES for some in kept._kept.values()]
        assert kept.nbytes == sum(each) <= 4 * (KEYS.nbytes + LIST_BYTES) + 7
    assert len(kept._kept) == 4


def test_a_table_without_keys_has_no_lists():
    for kind in ({"rows": 3}, {"kind": "custom"}):
        with pytest.raises(InvalidValue, match="key_lists='cached' is for sparse tables"):
            TableSpec("w", key_lists="cached", **kind)
