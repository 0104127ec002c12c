"""Custom tables on a real cluster: keys, values and lengths; cmd; messages of one's own."""

import gc

import numpy as np
import pytest
import torch

from shoal.client.custom_calls import Calls
from shoal.errors import BadLength, InvalidValue, NotFinite, Refused
from shoal.protocol.views import Member, Placement, View
from shoal.tables.custom.calls import answer_of
from shoal.tables.spec import Access, TableSpec

pytestmark = pytest.mark.real
SPEC = TableSpec("kv", kind="custom", access=Access("lists"))
KEYS = np.sort(np.random.default_rng(0).integers(0, 1 << 63, 10_000).astype(np.uint64))


@pytest.mark.parametrize("servers", [1, 3])
def test_a_custom_table_stores_values_of_any_length(cluster, servers):
    _, [client] = cluster(servers=servers)
    client.create_table(SPEC)
    lens = np.random.default_rng(1).integers(0, 4, len(KEYS))
    values = torch.randn(int(lens.sum()))
    for _ in range(3):
        client.push("kv", values, KEYS, lens=lens).wait()
    found, counts = client.pull("kv", KEYS).wait()
    torch.testing.assert_close(found, 3 * values)
    assert counts.tolist() == lens.tolist()
    some = KEYS[100:300:2]
    client.blocking.push("kv", torch.ones(100), some, cmd=1)
    found, counts = client.blocking.pull("kv", some)
    assert found.tolist() == [1.0] * 100
    assert counts.tolist() == [1] * 100
    found, counts = client.pull("kv", [0]).wait()
    assert (found.tolist(), counts.tolist()) == ([], [0])


def test_an_invalid_call_is_refused_before_it_is_sent(cluster):
    _, [client] = cluster(servers=2)
    for spec in (SPEC, TableSpec("w", 10), TableSpec("e", 0, kind="sparse")):
        client.create_table(spec)
    values = torch.ones(3)
    for wrong, says in (
        (lambda: client.push("kv", values, [3, 2, 9]), "2 comes after 3"),
        (lambda: client.push("kv", values, [2, 2, 9]), "2 comes after 2"),
        (lambda: client.push("kv", values, [2, 9]), "not a multiple of 2 keys"),
        (lambda: client.push("kv", values, [2, 9], lens=[1, 1]), "lens add up to 2"),
        (lambda: client.push("kv", values, [2, 9], lens=[4, -1]), "0 to"),
        (lambda: client.push("kv", values, [2, 9], lens=[[1], [1, 2]]), "one integer per key"),
        (lambda: client.push("kv", values[:0], [2, 9], lens=[1 << 62] * 2), "one integer per key"),
        (lambda: client.push("kv", values * torch.nan, []), "not a multiple of 0 keys"),
        (lambda: client.push("kv", values, [2, 9], lens=[3]), "one integer per key"),
        (lambda: client.push("kv", values.double(), [1, 2, 3]), "float32"),
        (lambda: client.push("kv", values, [1, 2, 3], assign=True), "is custom"),
        (lambda: client.push("kv", values, [1, 2, 3], cmd=1.5), "integers of 64 bits"),
        (lambda: client.push("kv", values), "keys are a tensor"),
        (lambda: client.pull("kv", [1], values), "any number of values"),
        (lambda: client.push_pull("kv", values, [1, 2, 3]), "call push, then pull"),
        (lambda: client.push("w", torch.ones(10), cmd=1), "lens and cmd"),
        (lambda: client.push("e", values, [1, 2, 3], lens=[1, 1, 1]), "lens and cmd"),
        (lambda: client.pull("w", cmd=2), "lens and cmd"),
        (lambda: client.request("workers", 1, table="kv"), "'servers' or to one"),
        (lambda: client.request("servers", 1, "text", table="kv"), "is bytes"),
        (lambda: client.request("servers", 1, table="w"), "only the handlers of custom tables"),
    ):
        with pytest.raises(InvalidValue, match=says):
            wrong()
    with pytest.raises(NotFinite, match="value 1"):
        client.push("kv", torch.tensor([1, torch.nan, 2]), [1, 2, 3])
    with pytest.raises(Refused, match="it has no request"):
        client.request("servers", 1, table="kv").wait()
    client.push("kv", values, [5, 6], lens=[1, 2]).wait()
    with pytest.raises(Refused, match="key 6 has 2 values and the push has 1"):
        client.push("kv", torch.ones(1), [6]).wait()
    assert client.pull("kv", [1, 2, 5, 6]).wait()[1].tolist() == [0, 0, 1, 2]
    client.push("kv", values[:0], [], lens=[]).wait()  # nothing, rightly
    with pytest.raises(Refused, match="it has no request"):
        client.request("servers", 1, memoryview(b"abcdef")[::2], table="kv").wait()


def test_servers_forget_answers_that_no_client_holds(cluster):
    _, [client] = cluster()
    client.create_table(SPEC)
    for _ in range(50):
        client.push("kv", torch.ones(1), [3]).wait()
    gc.collect()
    assert len(client._exchanges.calls._open) <= 1


def test_an_answer_whose_lengths_do_not_add_up_is_refused():
    spec = TableSpec("t", kind="custom", access=Access("lists"))
    view = View(1, 1, (Member("s", "server", 0, 1),), (), (spec,), ((Placement(spec.keys, (0,)),),))
    calls = Calls(lambda: view, lambda: 1)
    exchange, finish = calls.pull(spec, torch.tensor([1, 2]), 0)
    for lens in ([1 << 62] * 4, [1 << 62, 1 << 62], [-1, 2], [1], [3, 0]):
        answer = answer_of(np.array(lens), memoryview(np.ones(1, np.float32)).cast("B"))
        exchange.pulls[0].out.take(memoryview(answer))
        with pytest.raises(BadLength, match="do not add up"):
            finish()
