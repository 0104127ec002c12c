"""Sparse tables through the client: any list of keys, on one server and on several."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.client.sparse.exchanges import Batch, keys_of, pull_op, push_op
from shoal.errors import InvalidValue, NotFinite, Refused, UnknownName
from shoal.keys import KeyRange, slot_of
from shoal.protocol.scheduler.rows.placement import place
from shoal.protocol.views import Member, View
from shoal.tables.consistency import asp, bsp
from shoal.tables.init import Init
from shoal.tables.spec import Access, TableSpec

SPEC = TableSpec("e", kind="sparse", row_shape=(2,), merge="sum", init=Init("uniform", seed=4))
KEYS = st.lists(st.integers(0, 20) | st.integers(0, (1 << 64) - 1), max_size=50)


class Dumb:
    """Rows in a dictionary."""

    def __init__(self, client):
        self.client, self.rows = client, {}

    def pull(self, keys):
        for key in keys:
            if key not in self.rows:
                self.rows[key] = self.client.pull("e", keys=[key]).wait()[0].clone()
        return torch.stack([self.rows[key] for key in keys])

    def push(self, keys, values):
        self.pull(keys)
        for key, value in zip(keys, values, strict=True):
            self.rows[key] += value


# ---------------------------------------------------------------------------- what travels


def view_of(servers):
    members = tuple(Member(f"server-{rank}", "server", rank, 1 + rank) for rank in range(servers))
    return View(1, 1, members, (), (SPEC,), (place(SPEC.cut(servers), members, 1, 0),))


@settings(deadline=None)
@given(KEYS, st.integers(1, 3))
def test_each_key_travels_once_and_to_several_servers_in_the_order_of_slots(keys, servers):
    values = torch.arange(2.0 * len(keys)).view(-1, 2)
    given_keys = np.array(keys, np.uint64)
    batch = Batch(SPEC, given_keys, view_of(servers))
    op = push_op(SPEC, batch, values)
    rows = np.frombuffer(op.values, np.float32).reshape(-1, 2)
    expected = {}
    for key, value in zip(keys, values.numpy(), strict=True):
        expected[key] = expected.get(key, 0) + value
    assert len(op.keys) == len(expected)
    for key, row in zip(op.keys, rows, strict=True):
        np.testing.assert_array_equal(row, expected[key])
    assert op.ordered == (servers > 1)
    if op.ordered:
        slots = [slot_of(key) for key in op.keys]
        assert slots == sorted(slots)
    pull, finish = pull_op(SPEC, batch, None)
    assert list(pull.keys) == list(op.keys)
    np.frombuffer(pull.out, np.float32).reshape(-1, 2)[:] = rows
    for key, row in zip(keys, finish().numpy(), strict=True):
        np.testing.assert_array_equal(row, expected[key])


def test_distinct_keys_and_their_values_are_not_copied_for_one_server():
    values, out = torch.ones(3, 2), torch.empty(3, 2)
    batch = Batch(SPEC, [9, 7, 8], view_of(1))
    op = push_op(SPEC, batch, values)
    assert np.frombuffer(op.values, np.uint8).ctypes.data == values.data_ptr()
    pull, finish = pull_op(SPEC, batch, out)
    assert np.frombuffer(pull.out, np.uint8).ctypes.data == out.data_ptr()
    assert finish() is out


@pytest.mark.parametrize("servers", [1, 2])
def test_the_last_of_several_assigned_values_counts(servers):
    batch = Batch(SPEC, [5, 6, 5], view_of(servers))
    rows = batch.merged(np.array([[1.0], [2.0], [3.0]]), assign=True)
    assert dict(zip(batch.chosen.tolist(), rows[:, 0], strict=True)) == {5: 3, 6: 2}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([1, 2], [1, 2]),
        ((1,), [1]),
        ([], []),
        (np.array([3, 4], np.int32), [3, 4]),
        (np.array([1 << 63], np.uint64), [1 << 63]),
        (torch.tensor([-1, 5]), [(1 << 64) - 1, 5]),
        ([(1 << 64) - 1], [(1 << 64) - 1]),
        (np.arange(10, dtype=np.uint64)[::3], [0, 3, 6, 9]),
    ],
)
def test_keys_may_be_lists_arrays_or_tensors(keys, expected):
    found = keys_of(SPEC, keys)
    assert found.tolist() == expected
    assert found.dtype == np.uint64


@pytest.mark.parametrize(
    "keys",
    [
        None,
        5,
        "12",
        b"12",
        [1.5],
        [[1, 2]],
        ["a"],
        [1 << 64],
        [None],
        torch.tensor([1.0]),
        [[1], []],
    ],
)
def test_an_invalid_list_of_keys_is_refused(keys):
    with pytest.raises(InvalidValue, match="'e'"):
        keys_of(SPEC, keys)


# ---------------------------------------------------------------------------- a cluster


@pytest.mark.real
@pytest.mark.parametrize("servers", [1, 3])
def test_a_sparse_table_takes_any_list_of_keys(cluster, servers):
    _, [client] = cluster(servers)
    client.create_table(SPEC)
    dumb, random = Dumb(client), np.random.default_rng(servers)
    some = np.array([0, 1, 2, 1 << 63, (1 << 64) - 1, *range(100, 120)], np.uint64)
    for _ in range(20):
        keys = random.choice(some, 12).tolist()
        values = torch.from_numpy(random.integers(0, 9, (12, 2)).astype(np.float32))
        dumb.push(keys, values)
        client.push("e", values, keys=keys).wait()
        asked = [*keys[::-1], int(random.integers(0, 50))]
        torch.testing.assert_close(client.pull("e", keys=asked).wait(), dumb.pull(asked))
    out = torch.empty(2, 2)
    both = client.blocking.push_pull("e", torch.ones(2, 2), keys=[7, 7], out=out)
    dumb.push([7, 7], torch.ones(2, 2))
    assert both is out
    torch.testing.assert_close(out, dumb.pull([7, 7]))
    client.push("e", torch.tensor([[1.0, 2], [3, 4]]), keys=[7, 8], assign=True).wait()
    assert client.pull("e", keys=[8, 7]).wait().tolist() == [[3, 4], [1, 2]]
    assert client.pull("e", keys=[]).wait().shape == (0, 2)


@pytest.mark.real
@pytest.mark.parametrize("servers", [1, 2])
def test_a_sparse_table_is_updated_in_rounds(cluster, servers):
    """BSP: both workers' pushes are averaged, and what one does not carry counts as zero."""
    _, clients = cluster(servers, 2)
    access = Access("sgd", {"lr": 1.0})
    spec = TableSpec("e", kind="sparse", row_shape=(1,), access=access, consistency=bsp())
    for client in clients:
        client.create_table(spec)
    keys = [[1, 2, 3, 99], [3, 4, 99]]
    pulls = []
    for client, mine in zip(clients, keys, strict=True):
        values = torch.full((len(mine), 1), 2.0)
        pulls.append(client.push_pull("e", values, keys=mine, advance=True))
    assert pulls[0].wait().ravel().tolist() == [-1, -1, -2, -2]
    assert pulls[1].wait().ravel().tolist() == [-2, -1, -2]


@pytest.mark.real
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_push_that_is_not_finite_is_refused(cluster, kind):
    _, [client] = cluster(2)
    rows = 0 if kind == "sparse" else 10
    for policy in ("reject", "zero", "allow"):
        client.create_table(TableSpec(policy, rows, (2,), merge="sum", kind=kind, nonfinite=policy))
    for bad in (float("nan"), float("inf"), -float("inf")):
        values = torch.ones(3, 2)
        values[2, 1] = bad
        with pytest.raises(NotFinite, match=r"'reject'.*key 6, element 1"):
            client.push("reject", values, keys=[2, 4, 6])
        with pytest.raises(NotFinite):
            client.blocking.push_pull("reject", values, keys=[2, 4, 6])
    assert not client.pull("reject", keys=[2, 4, 6]).wait().any()
    for policy in ("zero", "allow"):
        client.push(policy, values, keys=[2, 4, 6]).wait()
    assert torch.equal(values[2], torch.tensor([1.0, bad]))  # the caller's is left alone
    assert client.pull("zero", keys=[6, 2]).wait().tolist() == [[1, 0], [1, 1]]
    assert client.pull("allow", keys=[6]).wait().tolist() == [[1, bad]]
    large = torch.full((1, 2), 3e38)  # its square is no float32, and it is one
    client.push("reject", large, keys=[2]).wait()
    client.push("reject", values, keys=[2, 4, 6], assign=True).wait()  # a write is what it is


@pytest.mark.real
def test_a_request_that_does_not_fit_a_sparse_table_is_refused(cluster):
    _, [client] = cluster()
    client.create_table(SPEC)
    with pytest.raises(UnknownName, match="sparse"):
        client.create_table(TableSpec("x", kind="sparse", access=Access("rmsprop")))
    for wrong in (
        lambda: client.push("e", torch.ones(2, 2)),
        lambda: client.pull("e"),
        lambda: client.push("e", torch.ones(2, 2), keys=[1]),
        lambda: client.push("e", torch.ones(1, 2, dtype=torch.float64), keys=[1]),
        lambda: client.pull("e", keys=[1], out=torch.empty(2, 2)),
        lambda: client.pull("e", keys=[1], out=torch.empty(2, 2).t()[:1]),
        lambda: client.push("e", torch.ones(2, 3), keys=[1, 2, 3]),
        lambda: client.push("e", torch.ones(1, 2), keys=[1], within=KeyRange(0, 5)),
        lambda: client.push("e", torch.ones(1, 2), keys=torch.ones(1, requires_grad=True)),
    ):
        with pytest.raises(InvalidValue, match=r"'e'|contiguous"):
            wrong()
    with pytest.raises(InvalidValue, match="lr"):
        client.push("e", torch.ones(1, 2), keys=[1], lr=float("nan"))
    client.push("e", torch.ones(1, 2), keys=[1]).wait()  # and it goes on


@pytest.mark.real
def test_the_callers_keys_may_change_after_the_push(cluster):
    _, [client] = cluster()
    client.create_table(TableSpec("e", kind="sparse"))
    keys = np.arange(200_000, dtype=np.uint64)
    pushes = []
    for _ in range(3):
        pushes.append(client.push("e", torch.ones(len(keys)), keys=keys))
        keys += np.uint64(len(keys))
    for push in pushes:
        push.wait()
    assert bool((client.pull("e", keys=np.arange(600_000)).wait() == 1).all())


@pytest.mark.real
@pytest.mark.parametrize(
    "huge",
    [
        TableSpec("huge", kind="sparse", row_shape=(1 << 20,), max_rows=1 << 40),
        TableSpec("huge", 10**12, (4,)),
    ],
    ids=["sparse", "dense"],
)
def test_a_table_that_fits_no_server_is_refused_and_the_run_goes_on(cluster, huge):
    _, [client] = cluster()
    client.create_table(TableSpec("w", 4, consistency=asp()))
    with pytest.raises(Refused, match=r"table 'huge' (has rows of|needs) .* TiB.* --memory"):
        client.create_table(huge)
    client.push("w", torch.ones(4)).wait()
    assert client.pull("w").wait().tolist() == [1.0] * 4
    client.create_table(replace(huge, rows=4 * (huge.rows > 0), row_shape=(), max_rows=0))
    assert (client.pull("huge", keys=[1]).wait() == 0).all()


@pytest.mark.real
def test_ftrl_in_rounds_equals_a_single_process(cluster):
    """Two workers' logistic regression under BSP, on two servers, beside algorithm 1 in numpy."""
    _, clients = cluster(2, 2)
    rate, beta, l1, l2 = 0.3, 1.0, 0.5, 0.1
    options = {"lr": rate, "beta": beta, "l1": l1, "l2": l2}
    spec = TableSpec(
        "e", 0, (), "float64", Init(), Access("ftrl", options), bsp(), "sum", kind="sparse"
    )
    for client in clients:
        client.create_table(spec)
    random = np.random.default_rng(0)
    x = (random.random((2, 12, 16, 40)) < 0.2).astype(float)  # worker, round, row, feature
    y = (random.random((2, 12, 16)) < 0.4).astype(float)
    z, n, w = np.zeros(40), np.zeros(40), np.zeros(40)
    for at in range(12):
        pulls = [client.pull("e", keys=range(40)) for client in clients]
        weights = [pull.wait().numpy() for pull in pulls]
        np.testing.assert_allclose(weights[0], w, atol=1e-6)
        np.testing.assert_array_equal(weights[0], weights[1])
        for worker, client in enumerate(clients):
            seen = np.flatnonzero(x[worker, at].any(0))
            chances = 1 / (1 + np.exp(-x[worker, at] @ weights[worker]))
            gradient = (chances - y[worker, at]) @ x[worker, at]
            client.push("e", torch.from_numpy(gradient[seen]), keys=seen)
            client.advance()
        everything, labels = x[:, at].reshape(-1, 40), y[:, at].ravel()
        g = (1 / (1 + np.exp(-everything @ w)) - labels) @ everything
        more = n + g * g
        z += g - (np.sqrt(more) - np.sqrt(n)) / rate * w
        n = more
        w = -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / rate + l2) * (np.abs(z) > l1)
    assert 0 < (w == 0).sum() < 40
