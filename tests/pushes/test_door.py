"""Pushes and pulls of tables with codecs, on a cluster in this process."""

import numpy as np
import pytest
import torch

from shoal.errors import InvalidValue, NotFinite, Refused
from shoal.keys import KeyRange
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.tables.consistency import asp, bsp
from shoal.tables.spec import Access, TableSpec
from shoal.tables.values import bytes_of

ROWS = 3000


@pytest.fixture
def client(cluster):
    _, [client] = cluster(servers=2)
    return client


def table(client, name="w", **more):
    given = {"fragment_rows": 500, "codec": "int:8", "consistency": asp(), **more}
    return client.create_table(TableSpec(name, ROWS, **given))


def normal():
    return torch.from_numpy(np.random.default_rng(0).standard_normal(ROWS).astype(np.float32))


def left(client):
    [state] = client.residuals().values()
    return torch.from_numpy(state["residual"])


@pytest.mark.parametrize("codec", ["int:8", "onebit", "topk:0.1", "topk:0.1+int:4", "fp16"])
def test_what_servers_have_and_what_was_left_out_is_all_that_was_pushed(client, codec):
    table(client, codec=codec)
    values = normal()
    before = client.bytes_pushed
    for _ in range(5):
        rows = client.push_pull("w", values).wait()
    assert client.bytes_pushed - before < 5 * values.nbytes * 0.6
    lost = left(client) if codec != "fp16" else 0
    assert (rows + lost - 5 * values).abs().max() < 0.01


def test_a_round_merges_what_was_decoded(cluster):
    _, clients = cluster(servers=2, workers=2)
    for each in clients:
        table(each, consistency=bsp(), access=Access("sum"), merge="mean")
    values = normal()
    pushes = [each.push("w", values * (i + 1), weight=i + 1.0) for i, each in enumerate(clients)]
    for each in clients:
        each.advance()
    for each in pushes:
        each.wait()
    mean = (values + 4 * values) / 3
    assert (clients[0].pull("w").wait() - mean).abs().max() < 0.05


def test_values_may_be_written_to_once_the_push_is_on_its_way(client):
    table(client)
    values = normal()
    right = values.clone()
    future = client.push("w", values)
    values.zero_()
    future.wait()
    assert (client.pull("w").wait() - right).abs().max() < 0.05


def test_pushes_of_keys_and_assignments_are_exact(client):
    table(client)
    client.push("w", torch.full((2,), 0.123456), keys=[3, 7]).wait()
    assert client.pull("w", keys=[3, 7]).wait().tolist() == [torch.tensor(0.123456).item()] * 2
    values = normal()
    client.push("w", values, assign=True).wait()
    assert torch.equal(client.pull("w").wait(), values)


@pytest.mark.parametrize("nonfinite", ["reject", "zero"])
def test_a_nan_is_refused_by_key_or_replaced(client, nonfinite):
    table(client, nonfinite=nonfinite)
    values = normal()
    values[1234] = torch.nan
    if nonfinite == "reject":
        with pytest.raises(NotFinite, match="of key 1234, element 0"):
            client.push("w", values)
        assert not client.pull("w").wait().any()
    else:
        client.push("w", values).wait()
        assert (client.pull("w").wait() - values.nan_to_num(0)).abs().max() < 0.05


@pytest.mark.parametrize("damage", ["scale", "short", "long", "many"])
def test_damaged_pushes_are_refused_and_the_table_is_as_it_was(client, damage):
    """A worker that says what no codec has written."""
    spec = table(client)
    values = normal()
    client.push("w", values).wait()
    before = client.pull("w").wait()
    sent = client._door.ready(Exchange((PushOp("w", spec.keys, bytes_of(values)),)), 0)
    [op] = sent.pushes
    data, sizes = bytearray(op.values), [*op.sizes]
    if damage == "scale":
        data[-504:-500] = b"\xff\xff\xff\xff"
    elif damage in ("short", "long"):
        sizes[-1] += 1 if damage == "long" else -1
        data = (data + b"0")[: sum(sizes)]
    else:
        sizes = [sum(sizes) // len(sizes) * 2] * (len(sizes) // 2)
        data = data[: sum(sizes)]
    bad = PushOp("w", spec.keys, memoryview(data), sizes=tuple(sizes))
    with pytest.raises((Refused, InvalidValue)):
        client._driver.ask(Exchange((bad,))).wait()
    assert torch.equal(client.pull("w").wait()[1500:], before[1500:])  # of the second server
    client.push("w", values).wait()


@pytest.mark.parametrize("rows", [KeyRange(0, 10), KeyRange(2990, 3010), KeyRange(0, ROWS)])
def test_pushes_and_pulls_of_wrong_rows_are_refused_as_without_a_codec(client, rows):
    table(client, server_codec="fp16")
    values = torch.ones(20)
    with pytest.raises(InvalidValue, match=r"are not in table|need .* bytes|fit"):
        client.push("w", values, rows).wait()
    with pytest.raises(InvalidValue, match=r"are not in table|need .* bytes|fit"):
        client.pull("w", rows, out=values).wait()
    assert client.residuals() == {}


# ---------------------------------------------------------------------------- pulls


@pytest.mark.parametrize("codec", ["int:8", "fp16", "bf16", "qsgd:8"])
def test_pulled_rows_are_encoded_alike_for_all(cluster, codec):
    _, clients = cluster(servers=2, workers=2)
    for each in clients:
        table(each, codec="", server_codec=codec)
    values = normal()
    clients[0].push("w", values).wait()
    before = clients[0].bytes_pulled
    rows = [each.pull("w").wait() for each in clients]
    assert clients[0].bytes_pulled - before < values.nbytes * 0.55
    assert torch.equal(*rows)
    assert 0 < (rows[0] - values).abs().max() < 0.05
    out = torch.empty(700)
    assert clients[0].pull("w", KeyRange(100, 800), out=out).wait() is out
    assert (out - values[100:800]).abs().max() < 0.05


def test_exact_pulls_are_exact(client):
    table(client, server_codec="int:8", codec="")
    values = normal()
    client.push("w", values).wait()
    assert torch.equal(client.pull("w", exact=True).wait(), values)
    assert torch.equal(client.pull("w", keys=[5, 1]).wait(), values[[5, 1]])
    assert not torch.equal(client.pull("w").wait(), values)


def test_rows_are_encoded_anew_after_each_change(client):
    table(client, server_codec="fp16", codec="")
    for number in range(1, 4):
        client.push("w", torch.ones(ROWS)).wait()
        assert client.pull("w").wait().unique().tolist() == [number]
    client.push("w", torch.full((ROWS,), 7.0), assign=True).wait()
    assert client.pull("w").wait().unique().tolist() == [7]


def test_codecs_that_leave_something_out_are_not_for_pulls(client):
    with pytest.raises(InvalidValue, match="have no residual: for these there are bf16"):
        table(client, server_codec="onebit")


def test_a_push_whose_pull_is_refused_counts_once(client):
    """The push is in the rows by then: it does not go back."""
    table(client, server_codec="fp16", codec="onebit")
    for number in range(1, 4):
        with pytest.raises(Refused, match="up to 65504"):
            client.push_pull("w", torch.full((ROWS,), 70000.0)).wait()
        assert client.pull("w", exact=True).wait().unique().tolist() == [70000.0 * number]
    assert not left(client).any()


def test_encoded_rows_of_a_table_without_a_codec_are_as_they_are(client):
    """A worker that asks for what the table does not have ends no server."""
    table(client, codec="")
    client.push("w", normal()).wait()
    out = memoryview(bytearray(4 * ROWS - 6))
    pull = PullOp("w", KeyRange(0, ROWS), out, sizes=(1999,) * 6)
    with pytest.raises(Refused, match="do not have encoded fragments"):
        client._driver.ask(Exchange(pulls=(pull,))).wait()
    assert torch.equal(client.pull("w").wait(), normal())


def test_rows_that_cannot_be_encoded_fail_the_pull(client):
    table(client, server_codec="fp16", codec="", nonfinite="allow")
    client.push("w", torch.full((ROWS,), 1e6)).wait()
    with pytest.raises(Refused, match="encodes finite values up to 65504"):
        client.pull("w").wait()
    assert client.pull("w", exact=True).wait().max() == 1e6
