"""The client against real servers in processes of their own."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import shoal
from shoal.errors import (
    AddressInvalid,
    BufferInUse,
    Cancelled,
    InvalidValue,
    Refused,
    RequestTimeout,
    SyncTimeout,
    UnknownName,
    UsageError,
    WaitsForever,
)
from shoal.keys import KeyRange
from shoal.node.future import Future
from shoal.protocol.requests import DeclareTable, Exchange, FinishWork, PushOp, Start, Wait
from shoal.pushes import finite
from shoal.tables.consistency import bsp
from shoal.tables.spec import Access, TableSpec
from shoal.tables.values import bytes_of
from tests.real.waiting import until

pytestmark = pytest.mark.real


@pytest.mark.parametrize("servers", [1, 3])
def test_push_and_pull_work_on_tables_ranges_and_keys(cluster, servers):
    _, [client] = cluster(servers)
    client.create_table(TableSpec("w", 30, (2,), merge="sum", fragment_rows=4))
    client.push("w", torch.ones(30, 2)).wait()
    client.push("w", torch.full((3, 2), 2.0), keys=KeyRange(5, 8)).wait()
    client.push("w", torch.tensor([[1.0, 0], [2, 0], [3, 0]]), keys=[29, 0, 29]).wait()
    rows = client.pull("w").wait()
    expected = torch.ones(30, 2)
    expected[5:8] += 2
    expected[0, 0] += 2
    expected[29, 0] += 4
    assert torch.equal(rows, expected)
    assert torch.equal(client.pull("w", keys=KeyRange(4, 9)).wait(), expected[4:9])
    assert torch.equal(client.pull("w", keys=[29, 3, 29]).wait(), expected[[29, 3, 29]])
    out = torch.empty(30, 2)
    assert client.blocking.push_pull("w", torch.ones(30, 2), out=out) is out
    assert torch.equal(out, expected + 1)


def test_each_way_of_a_push_looks_at_its_values_once(cluster, monkeypatch):
    looked = []
    monkeypatch.setattr(finite, "_finite", lambda values, dtype: looked.append(dtype) or True)
    _, [client] = cluster()
    client.create_table(TableSpec("w", 2, merge="sum"))
    values, rows = torch.ones(2), torch.empty(2)

    def ask():
        return Exchange((PushOp("w", KeyRange(0, 2), bytes_of(values)),))

    def program():
        yield ask()
        ticket = yield Start(ask())
        yield Wait(ticket)

    ways = [
        lambda: client.push("w", values).wait(),
        lambda: client.push("w", values, keys=[0, 1]).wait(),
        lambda: client.push_pull("w", values, out=rows).wait(),
        lambda: client.exchange(ask()).wait(),
        lambda: client.blocking.push("w", values),
        lambda: client.blocking.push_pull("w", values, out=rows),
    ]
    for way in 2 * ways:  # the second time as cached
        looked.clear()
        way()
        assert looked == ["float32"]
    looked.clear()
    client.drive(program())
    assert looked == 2 * ["float32"]
    client.push("w", values, assign=True).wait()  # is not looked at
    assert len(looked) == 2
    assert torch.equal(client.pull("w").wait(), values)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64", "uint8"])
def test_push_and_pull_work_on_every_dtype(cluster, dtype):
    _, [client] = cluster()
    client.create_table(TableSpec("w", 5, dtype=dtype, merge="sum"))
    values = torch.arange(5).to(getattr(torch, dtype))
    client.push("w", values).wait()
    client.push("w", values).wait()
    assert torch.equal(client.pull("w").wait(), values + values)


def test_a_pull_with_after_sees_the_pushes_before_it(cluster):
    _, [client] = cluster(2)
    client.create_table(TableSpec("w", 4, merge="sum"))
    values = [torch.full((4,), float(each)) for each in range(20)]
    pushes = [client.push("w", each) for each in values]
    assert client.pull("w", after=pushes).wait().tolist() == [190.0] * 4
    called = []
    future = client.push("w", torch.ones(4))
    future.add_done_callback(called.append)
    future.wait()
    assert called == [future]
    assert future.done()
    assert future.exception() is None


def test_a_push_completes_while_nobody_waits(cluster):
    _, [client] = cluster()
    client.create_table(TableSpec("w", 4, merge="sum"))
    done = threading.Event()
    client.push("w", torch.ones(4)).add_done_callback(lambda future: done.set())
    assert done.wait(5)


def test_threads_share_a_client(cluster):
    _, [client] = cluster(2)
    client.create_table(TableSpec("w", 8, merge="sum"))

    def work():
        for _ in range(50):
            client.push("w", torch.ones(8)).wait()
            client.blocking.pull("w")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert client.pull("w").wait().tolist() == [150.0] * 8


def test_waiting_for_a_bsp_push_before_advance_raises(cluster):
    _, [client] = cluster()
    client.create_table(TableSpec("w", 4, consistency=bsp()))
    push = client.push("w", torch.ones(4))
    with pytest.raises(WaitsForever, match="call advance"):
        push.wait()
    client.advance().wait()
    push.wait()
    assert client.clock == 1
    assert client.pull("w").wait().tolist() == [1.0] * 4


def test_bsp_averages_pushes_by_weight(cluster):
    _, [one, two] = cluster(2, 2)
    for client in (one, two):
        client.create_table(
            TableSpec("w", 2048, access=Access("sgd", {"lr": 1.0}), consistency=bsp())
        )
    futures = [
        client.push_pull("w", torch.full((2048,), value), advance=True, weight=weight)
        for client, value, weight in ((one, 4.0, 3.0), (two, 8.0, 1.0))
    ]
    for future in futures:
        assert future.wait()[[0, -1]].tolist() == [-5.0, -5.0]  # -(3*4 + 1*8) / 4


def test_a_pull_that_times_out_names_the_missing_worker(cluster):
    _, [one, two] = cluster(1, 2, sync_timeout_s=0.3)
    for client in (one, two):
        client.create_table(TableSpec("w", 4, consistency=bsp()))
    one.advance().wait()
    with pytest.raises(SyncTimeout, match=r"waits for clock 1 of worker-1 \(at 0\)"):
        one.pull("w", timeout_s=0.3).wait()
    pull = one.pull("w", timeout_s=60)
    with pytest.raises(RequestTimeout, match="the request goes on"):
        pull.wait(timeout=0.1)
    two.advance().wait()
    pull.wait()


def test_a_worker_that_computes_is_waited_for(cluster):
    _, [one, two] = cluster(1, 2, sync_timeout_s=1.0)
    for client in (one, two):
        client.create_table(TableSpec("w", 4, consistency=bsp()))
    pull = one.push_pull("w", torch.ones(4), advance=True)
    with pytest.raises(RequestTimeout, match="the request goes on"):
        pull.wait(timeout=4.0)  # worker-1 evaluates, or saves
    two.push_pull("w", torch.ones(4), advance=True)
    assert pull.wait().tolist() == [1.0] * 4


def test_a_worker_that_waits_elsewhere_is_not_waited_for(cluster):
    _, [one, two] = cluster(1, 2, sync_timeout_s=0.3)
    for client in (one, two):
        client.create_table(TableSpec("w", 4, consistency=bsp()))
    barrier = threading.Thread(target=two.barrier, args=("epoch",))
    barrier.start()
    with pytest.raises(SyncTimeout, match=r"waits for clock 1 of worker-1 \(at 0\)"):
        one.push_pull("w", torch.ones(4), advance=True).wait()
    one.barrier("epoch")
    barrier.join()


def test_a_cancelled_pull_does_not_write_to_its_buffer(cluster):
    _, [one, two] = cluster(1, 2)
    for client in (one, two):
        client.create_table(TableSpec("w", 4, consistency=bsp()))
    one.advance().wait()
    out = torch.full((4,), 7.0)
    pull = one.pull("w", out=out)
    assert pull.cancel()
    with pytest.raises(Cancelled):
        pull.wait()
    two.push("w", torch.ones(4))
    two.advance().wait()
    assert one.pull("w").wait().tolist() == [1.0] * 4
    assert out.tolist() == [7.0] * 4
    assert not pull.cancel()


def test_debug_mode_detects_a_write_to_a_borrowed_buffer(cluster):
    _, [client] = cluster(debug=True)
    client.create_table(TableSpec("w", 4, consistency=bsp()))
    values = torch.ones(4)
    push = client.push("w", values)
    values.zero_()
    client.advance().wait()
    with pytest.raises(BufferInUse, match="'w'"):
        push.wait()


def test_debug_mode_watches_blocking_operations(cluster):
    _, [one, other] = cluster(workers=2, debug=True)
    for client in (one, other):
        client.create_table(TableSpec("w", 4, consistency=bsp()))
    values, rows = torch.ones(4), torch.empty(4)
    with ThreadPoolExecutor() as pool:
        pushed = pool.submit(one.blocking.push_pull, "w", values, out=rows, advance=True)
        until(one.waiting)
        values.zero_()
        other.push_pull("w", torch.ones(4), advance=True).wait()
        with pytest.raises(BufferInUse, match="'w'"):
            pushed.result(30.0)


def declaring(spec):
    """A strategy's program that asks for a table."""
    yield DeclareTable(spec)


def test_invalid_requests_are_refused_by_name_and_change_nothing(cluster):
    _, [client] = cluster(2)
    client.create_table(TableSpec("w", 10, merge="sum"))
    with pytest.raises(InvalidValue, match=r"no table 'v' in this run \(known: w\)"):
        client.push("v", torch.ones(10))
    with pytest.raises(InvalidValue, match=r"holds float32 values, not torch\.float64"):
        client.push("w", torch.ones(10, dtype=torch.float64))
    with pytest.raises(InvalidValue, match="need 40 bytes"):
        client.push("w", torch.ones(9)).wait()
    with pytest.raises(InvalidValue, match="not in table"):
        client.push("w", torch.ones(5), keys=KeyRange(8, 13)).wait()
    with pytest.raises(InvalidValue, match="keys outside the range"):
        client.push("w", torch.ones(1), keys=[11]).wait()
    with pytest.raises(InvalidValue, match="contiguous"):
        client.push("w", torch.ones(20)[::2]).wait()
    with pytest.raises(UnknownName, match="did you mean 'adam'"):
        client.create_table(TableSpec("v", 10, access=Access("adm")))
    with pytest.raises(UnknownName, match="did you mean 'adam'"):
        client.drive(declaring(TableSpec("v", 10, access=Access("adm"))))
    with pytest.raises(Refused, match="exists with another specification"):
        client.create_table(TableSpec("w", 11, merge="sum"))
    with pytest.raises(InvalidValue, match="connect has no option tokn"):
        shoal.connect("tcp://127.0.0.1:1", tokn="x")
    assert client.clock == 0
    assert client.pull("w").wait().tolist() == [0.0] * 10


def test_heartbeats_go_on_while_the_caller_computes(cluster):
    _, [client] = cluster()
    before = client._driver.machine.session._again_at
    until = time.monotonic() + 5
    while client._driver.machine.session._again_at == before and time.monotonic() < until:
        sum(range(1000))  # computes, and asks for nothing
    assert client._driver.machine.session._again_at > before


def test_a_closed_client_refuses_requests(cluster):
    _, [client] = cluster()
    client.close()
    with pytest.raises(UsageError, match="closed"):
        client.barrier("late")


def test_a_client_finishes_although_its_last_advance_has_timed_out(cluster, monkeypatch):
    """Its work is done; without the farewell it would count as lost."""
    _, [client] = cluster()
    ask, asked = client._driver.ask, []

    class Late:
        def wait(self):
            raise RequestTimeout("no answer within 20 s")

    monkeypatch.setattr(client, "advance", lambda last: Late())
    monkeypatch.setattr(client._driver, "ask", lambda each: (asked.append(each), ask(each))[1])
    client.close()
    assert asked == [FinishWork()]


def test_a_done_callback_may_use_the_client(cluster):
    _, (client,) = cluster()
    client.create_table(TableSpec("w", 8, merge="sum"))
    seen = []

    def then(future):
        client.blocking.push("w", torch.ones(8))
        seen.append(client.pull("w").wait())

    client.push("w", torch.ones(8)).add_done_callback(then)
    until = time.monotonic() + 20
    while not seen and time.monotonic() < until:  # nobody waits: the pump drives
        client.blocking.pull("w")
    assert seen[0].tolist() == [2.0] * 8


def test_a_callback_that_waits_is_woken_though_its_thread_was_about_to_sleep(cluster):
    """The thread that runs it has one place among those that sleep, not two."""
    _, (client,) = cluster()
    driver = client._driver
    places = []
    waits, other = Future(driver, -1, None), Future(driver, -2, None)

    def then(future):
        with driver.own():
            places.append(len(driver._asleep))

    driver._lock.acquire()
    driver.due.append((then, other))
    driver._sleep(waits, 0.01)
    driver._lock.release()
    assert places == [0]


def test_a_done_callback_that_raises_is_logged_and_harms_nothing(cluster, caplog):
    _, (client,) = cluster()
    client.create_table(TableSpec("w", 8))

    def fail(future):
        raise ValueError("my own mistake")

    future = client.push("w", torch.ones(8))
    future.add_done_callback(fail)
    future.wait()
    future.add_done_callback(fail)
    assert caplog.text.count("a done callback of request") == 2
    assert client.blocking.pull("w").tolist() == [1.0] * 8


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.push("w", [1.0]), "torch.as_tensor"),
        (lambda c: c.push("w", torch.ones(8), weight=0), "weight is a finite number > 0"),
        (lambda c: c.pull("w", 5), "a list of row numbers, not a int"),
        (lambda c: c.pull("w", slice(0, 2)), "a list of row numbers, not a slice"),
        (lambda c: c.create_table(TableSpec("x", 5.5)), "rows has type int, not float"),
        (lambda c: c.create_table(TableSpec("x", "5")), "rows has type int, not str"),
    ],
)
def test_values_and_keys_of_a_wrong_kind_are_refused_by_name(cluster, call, text):
    _, (client,) = cluster()
    client.create_table(TableSpec("w", 8))
    with pytest.raises(InvalidValue, match=text):
        call(client)
    assert client.pull("w", after=client.push("w", torch.ones(8))).wait().sum() == 8


def test_a_malformed_address_is_refused_at_once():
    with pytest.raises(AddressInvalid, match="tcp://HOST:PORT"):
        shoal.connect("127.0.0.1:4123")


def test_a_waiter_is_not_kept_by_another_threads_longer_wait(cluster):
    _, (one, two) = cluster(workers=2)
    for client in (one, two):
        client.create_table(TableSpec("w", 8, consistency=bsp()))
    one.advance().wait()
    pulled = one.pull("w")  # waiting until the other has advanced
    first = threading.Thread(target=pulled.wait, args=(20,))
    second = threading.Thread(target=one.barrier, args=("both",))
    for waiting, each in enumerate((first, second), 1):
        each.start()
        until(lambda waiting=waiting: one._driver._drivers == waiting)
    with pytest.raises(RequestTimeout):
        pulled.wait(timeout=0.2)
    two.advance().wait()
    first.join(5)
    assert not first.is_alive()
    assert second.is_alive()
    two.barrier("both")
    second.join(5)
    assert not second.is_alive()


def test_a_waiting_thread_is_told_when_the_client_is_closed(cluster):
    _, (one, two) = cluster(workers=2)
    for client in (one, two):
        client.create_table(TableSpec("w", 8, consistency=bsp()))
    one.advance().wait()
    told = []

    def wait():
        try:
            one.pull("w").wait()
        except UsageError as error:
            told.append(error.message)

    waiting = threading.Thread(target=wait)
    waiting.start()
    left_alone = one.pull("w")
    until(lambda: one._driver._drivers == 1)
    one._driver.close()
    waiting.join(5)
    assert told == ["this client was closed"]
    assert isinstance(left_alone.exception(), UsageError)


def test_a_driver_that_fails_fails_all_requests(cluster, monkeypatch):
    _, (client,) = cluster()
    client.create_table(TableSpec("w", 8))

    def fail(limit_s):
        raise ValueError("a bug of ours")

    monkeypatch.setattr(client._driver.node, "poll", fail)
    told = threading.Event()
    future = client.push("w", torch.ones(8))
    future.add_done_callback(lambda _: told.set())
    assert told.wait(20)
    with pytest.raises(UsageError, match="ValueError: a bug of ours"):
        future.result()


def test_a_request_with_an_unusable_argument_does_not_harm_the_next(cluster):
    _, (client,) = cluster()
    client.create_table(TableSpec("w", 4, merge="sum"))
    out = torch.nn.Parameter(torch.zeros(2))
    assert client.pull("w", [0, 1], out=out).wait() is out
    with pytest.raises((TypeError, ValueError)):
        client.push("w", torch.ones(4), weight="much")
    client.push("w", torch.ones(4), weight=torch.tensor(2.0)).wait(5)
    assert client.blocking.pull("w").tolist() == [1.0] * 4
