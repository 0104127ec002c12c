"""Differences: a worker's rows are moved by what servers have encoded once for all."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from shoal.errors import InvalidValue, Refused, UnknownName
from shoal.keys import KeyRange
from shoal.protocol.requests import Exchange, PullOp
from shoal.tables.consistency import asp, bsp, ssp
from shoal.tables.spec import TableSpec

ROWS = 3000


@pytest.fixture
def client(cluster):
    _, [client] = cluster(servers=2)
    return client


DELTAS = ["delta:qsgd:4", "delta:onebit", "delta:topk:0.1", "delta:topk:0.1+int:8", "delta:int:8"]


def train(clients, rounds, name="w", seed=1):
    """Push in rounds; return what each client has pulled after the last one."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        for each in clients:
            values = torch.randn(ROWS, generator=generator)
            each.push(name, values.to(getattr(torch, each.table(name).dtype)))
            each.advance()
        rows = [each.pull(name) for each in clients]
        rows = [each.wait() for each in rows]
    return rows


def normal():
    return torch.from_numpy(np.random.default_rng(0).standard_normal(ROWS).astype(np.float32))


def table(client, name="w", **more):
    given = {"fragment_rows": 500, "consistency": bsp(), **more}
    return client.create_table(TableSpec(name, ROWS, **given))


def delta_table(clients, codec="delta:int:8", **more):
    for each in clients:
        table(each, server_codec=codec, merge="sum", **more)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("codec", DELTAS)
def test_differences_are_alike_for_all_and_come_closer_to_the_rows(cluster, codec, dtype):
    _, clients = cluster(servers=2, workers=2)
    delta_table(clients, codec, dtype=dtype)
    before = train(clients, 1)
    first = clients[0].bytes_pulled
    rows = train(clients, 5)
    size = rows[0].nbytes
    assert clients[0].bytes_pulled - first < 5 * size * (0.6 if dtype == "bfloat16" else 0.3)
    assert torch.equal(*rows)
    assert torch.equal(*before)
    exact = clients[0].pull("w", exact=True).wait()
    assert 0 < (rows[0] - exact).float().norm() < exact.float().norm()
    for _ in range(60):  # with nothing added, what was left out comes in the end
        for each in clients:
            each.push("w", torch.zeros_like(exact))
            each.advance()
        rows = [each.pull("w").wait() for each in clients]
    assert torch.equal(*rows)
    near = 0.1 if codec == "delta:onebit" or dtype == "bfloat16" else 1e-3
    assert (rows[0] - exact).float().norm() < near * exact.float().norm()


@pytest.mark.parametrize("codec", DELTAS)
def test_a_worker_that_has_missed_rounds_gets_what_the_others_have(cluster, codec):
    _, clients = cluster(servers=2, workers=2)
    delta_table(clients, codec)
    train(clients, 2)
    for _ in range(3):  # only the first one pulls
        for each in clients:
            each.push("w", normal())
            each.advance()
        rows = clients[0].pull("w").wait()
    assert torch.equal(clients[1].pull("w").wait(), rows)
    assert torch.equal(*train(clients, 1))


@pytest.mark.parametrize("codec", ["fp16", "delta:fp16"])
def test_what_comes_after_a_pull_has_its_rows(cluster, codec):
    """Also where the pull needs a second request, because its worker has missed rounds."""
    _, [one, other] = cluster(servers=2, workers=2)
    delta_table([one, other], codec)
    one.create_table(TableSpec("v", ROWS, merge="sum"))
    for number in range(3):
        for each in (one, other):
            each.push("w", torch.ones(ROWS))
            each.advance()
        if number != 1:
            rows = [other.pull("w").wait()]
    into = torch.full((ROWS,), -7.0)
    pull = one.pull("w", out=into)
    one.push("v", into, after=pull).wait()
    assert one.pull("v").wait().unique().tolist() == [6] == into.unique().tolist()
    assert rows[0].unique().tolist() == [6]


def test_a_pull_that_needs_a_second_request_may_be_cancelled_or_late(cluster):
    _, [one, other] = cluster(servers=2, workers=2)
    delta_table([one, other])
    for each in (one, other):
        each.pull("w").wait()
    for _ in range(3):
        for each in (one, other):
            each.push("w", normal())
            each.advance()
        other.pull("w").wait()
    futures = [one.pull("w") for _ in range(20)]
    for each in futures[::2]:
        each.cancel()
    rows = [each.wait() for each in futures[1::2]]
    assert all(torch.equal(rows[0], each) for each in rows)
    assert torch.equal(*train([one, other], 1))


def test_an_assignment_by_keys_leaves_other_fragments_alone(cluster):
    _, [client] = cluster(servers=2)
    delta_table([client])
    train([client], 2)
    before = client.bytes_pulled
    client.push("w", torch.tensor([0.125, 0.25]), keys=[7, 2999], assign=True).wait()
    rows = client.pull("w").wait()
    assert rows[[7, 2999]].tolist() == [0.125, 0.25]
    exact = client.pull("w", exact=True).wait()
    assert torch.equal(rows[:500], exact[:500])
    assert torch.equal(rows[2500:], exact[2500:])
    assert not torch.equal(rows[500:2500], exact[500:2500])
    assert client.bytes_pulled - before < 2 * 4 * ROWS  # two fragments of six came whole


def test_rows_that_were_assigned_are_pulled_as_they_are(cluster):
    _, clients = cluster(servers=2, workers=2)
    delta_table(clients)
    train(clients, 2)
    clients[0].push("w", torch.full((10,), 0.1234), KeyRange(995, 1005), assign=True).wait()
    rows = [each.pull("w").wait() for each in clients]
    assert torch.equal(*rows)
    assert torch.equal(rows[0][500:1500], clients[0].pull("w", exact=True).wait()[500:1500])
    assert rows[0][995].item() == pytest.approx(0.1234)
    assert torch.equal(*train(clients, 2))


def test_pulls_of_some_fragments_keep_the_others(cluster):
    _, [client] = cluster(servers=2)
    delta_table([client])
    [rows] = train([client], 2)
    some = torch.empty(1000)
    client.pull("w", KeyRange(500, 1500), out=some).wait()
    assert torch.equal(some, rows[500:1500])
    exact = client.pull("w", exact=True).wait()
    client.pull("w", KeyRange(510, 1510), out=some).wait()  # cuts fragments, so they come exactly
    assert torch.equal(some, exact[510:1510])
    assert torch.equal(client.pull("w").wait(), rows)


def test_infinite_rows_are_pulled_whole(cluster):
    _, [client] = cluster(servers=2)
    delta_table([client], nonfinite="allow")
    train([client], 1)
    client.push("w", torch.full((ROWS,), torch.inf))
    client.advance()
    assert torch.isinf(client.pull("w").wait()).all()
    client.push("w", torch.zeros(ROWS), assign=True).wait()
    [rows] = train([client], 2)
    assert (rows - client.pull("w", exact=True).wait()).abs().max() < 0.1


def test_threads_that_pull_at_once_have_the_same_rows(cluster):
    _, [client] = cluster(servers=2)
    delta_table([client])
    for _ in range(10):
        client.push("w", normal())
        client.advance()
        with ThreadPoolExecutor(4) as pool:
            rows = [*pool.map(lambda _: client.pull("w").wait(), range(4))]
        assert all(torch.equal(rows[0], each) for each in rows)


@pytest.mark.parametrize("nbytes", [-1, 1, 17])
def test_differences_of_another_size_are_refused(cluster, nbytes):
    _, [client] = cluster()
    delta_table([client])
    size = 500 * 4 + nbytes
    pull = PullOp("w", KeyRange(0, ROWS), memoryview(bytearray(6 * size)), sizes=(size,) * 6)
    with pytest.raises((Refused, InvalidValue), match=r"differences are of whole fragments|whose"):
        client._driver.ask(Exchange(pulls=(pull,))).wait()
    train([client], 1)


@pytest.mark.parametrize("rule", [asp(), ssp(1)], ids=str)
def test_differences_are_for_rounds(client, rule):
    with pytest.raises(InvalidValue, match=r"tables under bsp\(\).* choose 'int:8'"):
        table(client, consistency=rule, server_codec="delta:int:8")


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        ("delta:", "unknown codec ''"),
        ("delta:int:9", "bits"),
        ("delta:zlib", "leave out the lossless stage"),
        ("delta:delta:int:8", "is for rows that workers pull"),
        ("delta:powersgd:2", "for sums over the workers"),
    ],
)
def test_codecs_that_no_difference_is_encoded_by(client, codec, words):
    with pytest.raises((InvalidValue, UnknownName), match=words):
        table(client, server_codec=codec)


def test_pushes_are_no_differences(client):
    with pytest.raises(InvalidValue, match="is for rows that workers pull"):
        table(client, codec="delta:int:8")
