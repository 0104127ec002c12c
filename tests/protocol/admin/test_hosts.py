"""The desk and the keepers of hosts, on a network whose connections break at any moment."""

from random import Random

import pytest

from shoal.protocol.admin import hosts as protocol
from shoal.protocol.admin.hosts import (
    DESK,
    LOST_S,
    HostCame,
    HostDesk,
    HostKeeper,
    HostLost,
    HostReported,
    HostRequest,
    Leave,
    Reported,
)
from shoal.protocol.machine import (
    Asked,
    Discard,
    PeerLost,
    Received,
    Resolve,
    Send,
    Sink,
    Stop,
    Ticked,
)
from shoal.protocol.messages.hosts import REPORTS_MAX, HostAnswered, HostAsked, HostHeld

HELD = HostHeld("host-a", "/runs/a", "tcp://10.0.0.7:0")


class Network:
    """A desk and keepers; each connection loses what is under way when it breaks."""

    def __init__(self, hosts, seed=0, breaks=0.0):
        self.random, self.breaks = Random(seed), breaks
        self.now = 0.0
        self.desk = HostDesk()
        self.store = {host: {} for host in hosts}
        self.keepers = {
            host: HostKeeper(
                HELD, "tcp://desk", lambda asked, data, h=host: self.do(h, asked, data)
            )
            for host in hosts
        }
        self.queues = {host: ([], []) for host in hosts}  # to the desk, to the keeper
        self.connected = dict.fromkeys(hosts, False)
        self.cut_until = dict.fromkeys(hosts, 0.0)
        self.held, self.resolved, self.lost = [], {}, {}
        self.said = {host: [] for host in hosts}
        self.reported = {host: [] for host in hosts}
        self.started = []

    def do(self, host, asked, data):
        if asked.what == "start":
            self.started.append(asked.number)
        if asked.what == "put":
            self.store[host][asked.name] = data
        return HostAnswered(asked.number), asked.name.encode() if asked.what == "read" else b""

    def perform(self, effects, host=None):
        for each in effects:
            match each:
                case Send(to, message, buffers):
                    data = b"".join(map(bytes, buffers))
                    if host is None and self.connected[to]:
                        self.queues[to][1].append((message, data))
                    elif host is not None and (self.connected[host] or self.dial(host)):
                        self.queues[host][0].append((message, data))
                case Resolve(number, outcome):
                    assert number not in self.resolved, "resolved twice"
                    self.resolved[number] = outcome
                case HostCame(name):
                    self.held.append(name)
                case HostLost(name, reason):
                    assert name not in self.lost, "lost twice"
                    self.lost[name] = reason
                case HostReported(name, report):
                    self.reported[name].append(report)

    def dial(self, host):
        self.connected[host] = self.now >= self.cut_until[host]
        return self.connected[host]

    def cut(self, host, seconds):
        """Break a host's connection for some time; what is under way is lost."""
        self.cut_until[host] = self.now + seconds
        if self.connected[host]:
            self.connected[host] = False
            for queue in self.queues[host]:
                queue.clear()
            self.perform(self.desk.handle(PeerLost(host), self.now))
            self.perform(self.keepers[host].handle(PeerLost(DESK), self.now), host)

    def step(self):
        """Deliver one message, or let time pass."""
        ready = [(h, to) for h, pair in self.queues.items() for to in (0, 1) if pair[to]]
        for host in self.keepers:
            if self.connected[host] and self.random.random() < self.breaks:
                self.cut(host, self.random.choice((0.0, 0.5, LOST_S - 2)))
                return
        if not ready:
            self.now += 0.25
            self.perform(self.desk.handle(Ticked(), self.now))
            for host, keeper in self.keepers.items():
                if keeper.deadline() is not None:
                    self.perform(keeper.handle(Ticked(), self.now), host)
            return
        host, to_keeper = self.random.choice(ready)
        message, data = self.queues[host][to_keeper].pop(0)
        machine, sender = (self.keepers[host], DESK) if to_keeper else (self.desk, host)
        sink = machine.arriving(sender, message, len(data)) if data else None
        if isinstance(sink, Sink):
            sink.views[0][:] = data
        payload = sink if isinstance(sink, Sink) else None
        effects = machine.handle(Received(sender, message, payload), self.now)
        self.perform(effects, host if to_keeper else None)

    def ask(self, number, host, what="read", name="", data=b"", limit_s=1e9):
        asked = HostAsked(number, what, name or f"file {number}")
        request = HostRequest(host, asked, data, limit_s)
        self.perform(self.desk.handle(Asked(0, request), self.now))

    def report(self, host):
        """Have a process of a host end."""
        self.said[host].append(f"{host} {len(self.said[host])}")
        event = Asked(0, Reported(self.said[host][-1]))
        self.perform(self.keepers[host].handle(event, self.now), host)

    def until(self, true, steps=100_000):
        for _ in range(steps):
            if true():
                return
            self.step()
        raise AssertionError("it never comes to an end")


def run(seed, breaks=0.05, questions=20):
    network = Network(["a", "b"], seed, breaks)
    network.until(lambda: len(network.held) == 2)
    for number in range(questions):
        host = network.random.choice("ab")
        match number % 3:
            case 0:
                network.ask(number, host, "put", f"put {number}", b"%d" % number)
            case 1:
                network.ask(number, host)
            case 2:
                network.ask(number, host, "start", data=b"{}")
        for _ in range(network.random.randrange(3)):
            network.report(network.random.choice("ab"))
        for _ in range(network.random.randrange(6)):
            network.step()
    network.until(lambda: len(network.resolved) == questions)
    network.until(lambda: network.reported == network.said)
    return network


@pytest.mark.parametrize("block", range(4))
def test_every_question_is_answered_once_however_often_connections_break(block):
    for seed in range(block * 500, block * 500 + 500):
        network = run(seed)
        assert network.lost == {}, seed
        assert sorted(network.started) == [n for n in range(20) if n % 3 == 2], seed
        assert sorted(network.held) == ["a", "b"], seed
        for number, outcome in network.resolved.items():
            assert outcome.error is None, seed
            answered, data = outcome.value
            assert answered.number == number
            if number % 3 == 1:
                assert data == f"file {number}".encode()
            if number % 3 == 0:
                stores = [s for s in network.store.values() if f"put {number}" in s]
                assert [s[f"put {number}"] for s in stores] == [b"%d" % number], seed


def unanswered_is_forgotten(monkeypatch):
    held = HostDesk._held

    def forgetful(self, host, message, out):
        held(self, host, message, out)
        out[:] = [each for each in out if not isinstance(getattr(each, "message", None), HostAsked)]

    monkeypatch.setattr(HostDesk, "_held", forgetful)


def the_folder_is_told_once(monkeypatch):
    handle = HostKeeper.handle

    def once(self, event, now):
        return [] if isinstance(event, PeerLost) else handle(self, event, now)

    monkeypatch.setattr(HostKeeper, "handle", once)


def a_broken_connection_is_a_lost_host(monkeypatch):
    monkeypatch.setattr(protocol, "LOST_S", 0.3)


def a_process_is_started_twice(monkeypatch):
    monkeypatch.setattr(HostKeeper, "_once", lambda self, asked, data: self._answer(asked, data))


def reports_are_forgotten(monkeypatch):
    report = HostKeeper._report

    def forgetful(self, out):
        report(self, out)
        self._first += len(self._reports)
        self._reports.clear()

    monkeypatch.setattr(HostKeeper, "_report", forgetful)


def answers_are_not_matched(monkeypatch):
    monkeypatch.setattr(HostDesk, "_asked", lambda self, host, number: True)


@pytest.mark.parametrize(
    "bug",
    [
        unanswered_is_forgotten,
        the_folder_is_told_once,
        a_broken_connection_is_a_lost_host,
        answers_are_not_matched,
        a_process_is_started_twice,
        reports_are_forgotten,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_is_caught(bug, monkeypatch):
    bug(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        test_every_question_is_answered_once_however_often_connections_break(0)


@pytest.fixture
def network():
    found = Network(["a", "b"])
    found.until(lambda: len(found.held) == 2)
    return found


def test_a_host_that_is_away_for_too_long_is_lost_with_its_questions(network):
    network.ask(0, "a")
    network.cut("a", LOST_S + 5)
    network.until(lambda: 0 in network.resolved)
    assert "broken for 20 s" in network.resolved[0].error.message
    assert LOST_S <= network.now <= LOST_S + 1
    network.ask(1, "a")
    assert "broken" in network.resolved[1].error.message, "a question after that waits"
    network.until(lambda: network.now > LOST_S + 10)  # it is back
    network.ask(2, "a")
    assert network.resolved[2].error is not None
    network.ask(3, "b")
    network.until(lambda: 3 in network.resolved)
    assert network.resolved[3].error is None


def test_a_host_that_is_back_in_time_is_not_lost(network):
    network.ask(0, "a")
    network.cut("a", LOST_S - 2)
    network.until(lambda: 0 in network.resolved)
    assert network.resolved[0].error is None


def test_a_host_that_is_silent_is_lost_after_the_limit_of_the_question(network):
    network.keepers["a"].handle = lambda event, now: []
    network.ask(0, "a", limit_s=7.0)
    began = network.now
    network.until(lambda: 0 in network.resolved)
    assert "not answered for 7 s" in network.resolved[0].error.message
    assert 7.0 <= network.now - began <= 8.0


def test_others_than_the_desk_are_told_nothing():
    keeper = HostKeeper(HELD, "tcp://desk", lambda asked, data: pytest.fail("it was done"))
    asked = HostAsked(0, "put", "a")
    assert keeper.problem_of(Received("worker-7", asked))
    assert isinstance(keeper.arriving("worker-7", asked, 10), Discard)
    assert not keeper.problem_of(Received(DESK, asked))


@pytest.mark.parametrize("nbytes", [0, 1, protocol.PIECE_BYTES, protocol.PIECE_BYTES + 1, 1 << 40])
def test_no_more_memory_is_given_than_a_piece_needs(nbytes):
    keeper = HostKeeper(HELD, "tcp://desk", lambda asked, data: (HostAnswered(0), b""))
    arrival = keeper.arriving(DESK, HostAsked(0, "put", "a"), nbytes)
    assert isinstance(arrival, Sink) == (nbytes <= protocol.PIECE_BYTES)


def test_answers_that_nobody_has_asked_for_are_dropped(network):
    network.ask(5, "a")
    for sender, number in (("b", 5), ("a", 6)):
        answer = HostAnswered(number)
        assert isinstance(network.desk.arriving(sender, answer, 10), Discard)
        assert not network.desk.handle(Received(sender, answer), network.now)
    assert isinstance(network.desk.arriving("a", HostAnswered(5), 1 << 40), Discard)
    assert isinstance(network.desk.arriving("a", HostAnswered(5), 10), Sink)


def test_a_host_is_lost_once_and_what_it_says_later_is_ignored(network):
    network.cut("a", LOST_S + 5)
    network.until(lambda: network.now > LOST_S + 10)
    assert [*network.lost] == ["a"]
    network.report("a")
    for _ in range(100):
        network.step()
    assert network.reported["a"] == []


@pytest.mark.parametrize("count", [0, 1, 17, 1000, REPORTS_MAX + 1, 10_000])
def test_reports_made_while_the_host_was_away_come_when_it_is_back(network, count):
    network.cut("a", 3.0)
    for _ in range(count):
        network.report("a")
    network.until(lambda: network.now > 5.0 and network.reported == network.said)
    assert len(network.reported["a"]) == count


def test_both_end_where_they_are_asked_to(network):
    for machine in (network.desk, network.keepers["a"]):
        assert machine.handle(Asked(0, Leave()), 0.0) == [Stop()]
        assert machine.address_of("worker-0") is None
        assert machine.role_of("worker-0") is None
        machine.check()
