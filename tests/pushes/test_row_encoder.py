"""Pushes and pulls of sparse tables with codecs, on a cluster in this process."""

import numpy as np
import pytest
import torch

import shoal
from shoal.errors import InvalidValue, NotFinite, Refused
from shoal.protocol.requests import Exchange, PullOp, PushOp
from shoal.tables.consistency import asp, bsp
from shoal.tables.spec import Access, TableSpec
from shoal.tables.values import bytes_of

WIDTH = 16
KEYS = torch.arange(300) * 7919 % 5003


def table(client, name="e", **more):
    given = {"codec": "int:8", "server_codec": "int:8", "merge": "sum", **more}
    return client.create_table(TableSpec(name, row_shape=(WIDTH,), kind="sparse", **given))


def normal(count=300):
    values = np.random.default_rng(0).standard_normal((count, WIDTH))
    return torch.from_numpy(values.astype(np.float32))


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("key_lists", ["sent", "cached"])
@pytest.mark.parametrize("codec", ["int:8", "fp16", "qsgd:8"])
def test_rows_reach_their_keys_in_fewer_bytes(cluster, codec, key_lists, servers):
    _, [client] = cluster(servers=servers)
    table(client, codec=codec, server_codec=codec, key_lists=key_lists)
    values, before = normal(), (client.bytes_pushed, client.bytes_pulled)
    for _ in range(4):
        rows = client.push_pull("e", values, KEYS).wait()
    pushed, pulled = client.bytes_pushed - before[0], client.bytes_pulled - before[1]
    assert pulled <= 4 * values.nbytes * 0.5
    assert pushed <= 4 * (values.nbytes * 0.5 + 2 * 8 * len(KEYS))
    assert (rows - 4 * values).abs().max() < 0.15
    exact = client.pull("e", KEYS, exact=True).wait()
    assert (exact - 4 * values).abs().max() < 0.12
    some = client.pull("e", KEYS[[5, 5, 299, 0]]).wait()  # any keys, also twice
    assert (some - 4 * values[[5, 5, 299, 0]]).abs().max() < 0.15


def test_equal_keys_of_a_push_are_merged_before_they_are_encoded(cluster):
    _, [client] = cluster(servers=2)
    table(client, codec="fp16", server_codec="")
    client.push("e", torch.ones(3, WIDTH), [4, 9, 4]).wait()
    assert client.pull("e", [4, 9]).wait()[:, 0].tolist() == [2, 1]


def test_a_round_merges_what_was_decoded(cluster):
    _, clients = cluster(servers=2, workers=2)
    for each in clients:
        table(each, consistency=bsp(), merge="mean", access=Access("sum"))
    for number, each in enumerate(clients):
        each.push("e", normal() * (number + 1), KEYS)
        each.advance()
    rows = [each.pull("e", KEYS).wait() for each in clients]
    assert torch.equal(*rows)
    assert (rows[0] - 1.5 * normal()).abs().max() < 0.1


def test_values_may_be_written_to_once_the_push_is_on_its_way(cluster):
    _, [client] = cluster()
    table(client)
    values = normal()
    future = client.push("e", values, KEYS)
    values.zero_()
    future.wait()
    assert (client.pull("e", KEYS).wait() - normal()).abs().max() < 0.1


def test_assigned_rows_are_exact(cluster):
    _, [client] = cluster(servers=2)
    table(client)
    client.push("e", normal(), KEYS, assign=True).wait()
    assert torch.equal(client.pull("e", KEYS, exact=True).wait(), normal())


@pytest.mark.parametrize("nonfinite", ["reject", "zero"])
def test_a_nan_is_refused_by_key_or_replaced(cluster, nonfinite):
    _, [client] = cluster()
    table(client, nonfinite=nonfinite)
    values = normal()
    values[7, 3] = torch.nan
    if nonfinite == "reject":
        with pytest.raises(NotFinite, match=f"of key {KEYS[7]}, element 3"):
            client.push("e", values, KEYS)
        assert not client.pull("e", KEYS).wait().any()
    else:
        client.push("e", values, KEYS).wait()
        assert (client.pull("e", KEYS).wait() - values.nan_to_num(0)).abs().max() < 0.1


def test_values_too_large_for_the_codec_say_so(cluster):
    _, [client] = cluster()
    table(client, codec="fp16", server_codec="fp16")
    with pytest.raises(NotFinite, match=r"up to 65504\..*Nothing was sent"):
        client.push("e", normal() * 1e6, KEYS)
    client.push("e", normal() * 1e6, KEYS, assign=True).wait()
    with pytest.raises(Refused, match="up to 65504"):
        client.pull("e", KEYS).wait()
    assert torch.equal(client.pull("e", KEYS, exact=True).wait(), normal() * 1e6)


def test_a_codec_may_begin_late(cluster):
    _, [client] = cluster()
    table(client, codec="fp16:after=2", server_codec="")
    sizes = []
    for _ in range(4):
        before = client.bytes_pushed
        client.push("e", normal(), KEYS).wait()
        client.advance().wait()
        sizes.append(client.bytes_pushed - before)
    assert sizes == [300 * (8 + 64)] * 2 + [300 * (8 + 32)] * 2


def test_no_keys_at_all(cluster):
    _, [client] = cluster(servers=2)
    table(client)
    none = torch.empty(0, dtype=torch.int64)
    assert client.push_pull("e", torch.empty(0, WIDTH), none).wait().shape == (0, WIDTH)


@pytest.mark.parametrize("damage", ["scale", "size", "short", "several", "none"])
def test_damaged_rows_are_refused_and_the_table_is_as_it_was(cluster, damage):
    _, [client] = cluster()
    spec = table(client)
    client.push("e", normal(), KEYS).wait()
    before = client.pull("e", KEYS).wait()
    keys = KEYS.numpy().astype(np.uint64)
    good = PushOp("e", spec.keys, bytes_of(normal()), keys.data)
    [op] = client._door.ready(Exchange((good,)), 0).pushes
    data, sizes = bytearray(op.values), op.sizes
    if damage == "scale":
        data[:4] = b"\xff\xff\xff\xff"
    elif damage == "size":
        data, sizes = data[: 300 * 19], (19,)
    elif damage == "short":
        data = data[:-1]
    elif damage == "several":
        sizes = (10, 10)
    else:
        sizes = (64,)
    bad = PushOp("e", spec.keys, memoryview(data), keys.data, sizes=tuple(sizes))
    with pytest.raises((Refused, InvalidValue)):
        client._driver.ask(Exchange((bad,))).wait()
    assert torch.equal(client.pull("e", KEYS).wait(), before)
    client.push("e", normal(), KEYS).wait()


def test_encoded_rows_of_a_table_without_a_codec(cluster):
    _, [client] = cluster()
    spec = table(client, codec="", server_codec="")
    keys = KEYS.numpy().astype(np.uint64)
    out = memoryview(bytearray(300 * 20))
    pull = PullOp("e", spec.keys, out, keys.data, sizes=(20,))
    with pytest.raises(Refused, match="does not have encoded rows of 20 bytes"):
        client._driver.ask(Exchange(pulls=(pull,))).wait()
    push = PushOp("e", spec.keys, out, keys.data, sizes=(20,))
    with pytest.raises(Refused, match="has no codec"):
        client._driver.ask(Exchange((push,))).wait()
    assert not client.pull("e", KEYS).wait().any()


def test_random_bits_differ_by_push_and_are_those_of_the_seed(cluster):
    def pushed(seed):
        _, [client] = cluster(seed=seed)
        table(client, codec="qsgd:4", server_codec="", consistency=asp())
        found = []
        for _ in range(2):
            client.push("e", normal(), KEYS).wait()
            found.append(client.pull("e", KEYS).wait())
        return found[0], found[1] - found[0]

    first, second = pushed(1)
    assert not torch.equal(first, second)
    assert torch.equal(first, pushed(1)[0])
    assert not torch.equal(first, pushed(2)[0])


def test_an_embedding_learns_with_codecs():
    context = shoal.init()
    how = {"codec": "int:8", "server_codec": "fp16", "access": Access("sgd", {"lr": 0.5})}
    words = shoal.nn.Embedding(None, 8, table="encoded words", **how)
    target, ids = torch.randn(50, 8), torch.arange(50)
    for _ in range(60):
        loss = (words(ids) - target).square().sum()
        loss.backward()
        shoal.nn.push(words).wait()
    assert loss < 0.05 * target.square().sum()
    assert context.client.bytes_pulled > 0
