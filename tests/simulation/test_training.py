"""Simulated training takes the time that it is told, and says what went wrong."""

from types import SimpleNamespace

import pytest
import torch

from shoal.errors import RoundClosed, UnknownName
from shoal.protocol.machine import Outcome
from shoal.simulation.draws import Draws
from shoal.simulation.network import Network, NetworkOptions
from shoal.simulation.training import raising
from shoal.tables.spec import Access
from tests.strategies.problems import around, train


def test_a_step_takes_the_slowest_workers_time():
    workers = train("sync", around(3, 10), batch_s=[0.01, 0.02, 0.5])
    for worker in workers:
        assert 5.0 < worker.times[9] < 5.2


def test_a_slow_network_takes_its_time():
    """10 kB/s: the 24 bytes of a push and the rows that come back, and messages around them."""
    slow = NetworkOptions(bandwidth=1e4, jitter_s=0.0)
    fast = train("sync", around(2, 10), batch_s=0.0)[0].times[9]
    assert train("sync", around(2, 10), batch_s=0.0, network=slow)[0].times[9] > 1.3 * fast


def test_batches_may_take_different_times():
    workers = train("asgd", around(1, 10), batch_s=lambda batch: 1.0 if batch == 4 else 0.01)
    assert 1.0 < workers[0].times[4] - workers[0].times[3] < 1.1
    assert workers[0].times[9] < 1.3


def test_an_error_of_a_worker_is_raised():
    with pytest.raises(UnknownName, match="unknown access method 'not_there'"):
        train("sync", around(2, 2), access=Access("not_there"))


def test_errors_of_requests_are_raised_in_a_program():
    found = []

    def program():
        try:
            yield "push"
        except RoundClosed as late:
            found.append(late.message)
        found.append((yield "pull").clock_min)
        return "done"

    running = raising(program())
    assert next(running) == "push"
    assert running.send(Outcome(error=RoundClosed("too late"))) == "pull"
    with pytest.raises(StopIteration) as stop:
        running.send(Outcome(clock_min=7))
    assert (stop.value.value, found) == ("done", ["too late", 7])


def test_what_a_host_sends_queues_behind_what_it_has_sent():
    """Three messages of 1000 bytes at 1 kB/s, from one host, and from three to one."""
    options = NetworkOptions(delay_s=0.0, jitter_s=0.0, host_bandwidth=10_000.0)
    network = Network(options, Draws(0))
    arrivals = [network.send(0.0, "a", target, 10000)[0] for target in ("b", "c", "d")]
    assert [round(at, 3) for (at,) in arrivals] == [1.0, 2.0, 3.0]
    arrivals = [network.send(10.0, source, "a", 10000)[0] for source in ("b", "c", "d")]
    assert [round(at, 3) for (at,) in arrivals] == [11.0, 12.0, 13.0]


def test_a_slow_link_has_no_sums_sent_again():
    """Pieces of 240 kB take 0.5 s at 4 Mbit/s, which is longer than until a worker is probed."""
    slow = NetworkOptions(
        jitter_s=0.0, host_bandwidth=0.5e6, bandwidth=1e12, link_bytes=1 << 40, streams=True
    )
    sent = []

    def watch(client):
        return SimpleNamespace(
            stepped=lambda *_: sent.append(client.bytes_sent),
            exchanged=lambda: None,
            epoch_done=lambda *_: None,
        )

    batches = [[torch.zeros(1, dtype=torch.float64)] * 40] * 4
    train(
        "allreduce",
        batches,
        lambda x, batch: (x * x).sum(),
        network=slow,
        size=120_000,
        watched=watch,
    )
    needed = 42 * 2 * 3 / 4 * 120_001 * 8  # the first parameters, and a round without data
    assert max(sent) < 1.01 * needed


def test_a_message_of_one_packet_delays_no_payload():
    """What is small fits between the packets of a payload: it does not put off what comes next."""
    options = NetworkOptions(delay_s=0.0, jitter_s=0.0, host_bandwidth=1000.0)
    for size in (100, 1460):
        network = Network(options, Draws(0))
        network.send(0.0, "a", "t", 4000)
        network.send(0.0, "b", "x", 5000)
        network.send(0.0, "b", "t", size)  # on its way from 5 s on
        [[at], _] = network.send(0.0, "c", "t", 4000)
        assert at == pytest.approx(8.0)


def test_a_host_that_is_free_receives_at_once():
    """Its link is taken from 3 to 4 s, by what its sender sends last."""
    options = NetworkOptions(delay_s=0.0, jitter_s=0.0, host_bandwidth=10_000.0)
    network = Network(options, Draws(0))
    for target in ("t0", "t1", "t2", "t3"):
        network.send(0.0, "a", target, 10000)
    assert [round(at, 3) for at in network.send(0.0, "b", "t3", 10000)[0]] == [1.0]
    assert [round(at, 3) for at in network.send(0.0, "c", "t3", 25000)[0]] == [6.5]


def test_only_gradients_take_time():
    """FedAvg: the slow worker of four is drawn in some of the rounds only."""
    whole, some = (
        train("fedavg", around(4, 20), epochs=4, batch_s=[0.1, 0.1, 0.1, 1.0], fraction=fraction)
        for fraction in (1.0, 0.25)
    )
    taken = sum(result.weight > 0 for result in some[3].results)
    assert taken < 80
    assert whole[0].ended_s == pytest.approx(80, abs=1)
    least = taken * 1.0 + (80 - taken) * 0.1
    assert some[0].ended_s == pytest.approx(least, abs=1)


@pytest.mark.parametrize("name", ["sync", "allreduce"])
def test_hooks_see_bytes_and_idle_time(name):
    """A worker of two that takes 0.1 s a batch waits for one that takes 0.3 s."""
    seen = {}

    class Watch:
        def __init__(self, client):
            self.client = client

        def stepped(self, epoch, step, result):
            client = self.client
            seen[self] = (client.bytes_sent, client.bytes_received, client.idle_s, client.now)

        def exchanged(self): ...

        def epoch_done(self, epoch, step): ...

    train(name, around(2, 10), batch_s=[0.1, 0.3], watched=Watch)
    sent, received, idle, ended = zip(*seen.values(), strict=True)
    assert min(*sent, *received) >= 10 * 3 * 8
    assert min(idle) < 0.3
    assert 1.9 < max(idle) < 2.2
    assert 3.0 < max(ended) < 3.3
