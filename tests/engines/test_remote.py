"""Hosts behind keepers: what they refuse, what is lost with them, and their clocks."""

import signal
import time
from types import SimpleNamespace

import msgspec
import pytest

from shoal.engines import remote
from shoal.engines.base import Task
from shoal.engines.host_files import LocalFiles
from shoal.engines.local import LocalHost
from shoal.engines.remote import Desk, Keeper, Said
from shoal.errors import InvalidValue, JoinTimeout, NotTrusted, ProcessDied
from shoal.protocol.admin.hosts import Reported
from shoal.protocol.messages.hosts import HostHeld
from shoal.protocol.supervision.supervisor import Exit
from shoal.storage.run_folder import RunFolder

TOKEN = "a token of sixteen and more"


def agree(task):
    if task.entry == "os:system":
        raise NotTrusted("this rank was not asked to run os:system")


@pytest.fixture
def desk():
    desk = Desk("tcp://127.0.0.1:0", TOKEN)
    yield desk
    desk.close()
    desk.close()


@pytest.fixture
def pair(desk, tmp_path):
    """A host, and the keeper that answers for it."""
    local = LocalHost(RunFolder.begin_in(tmp_path / "run"), "b")
    keeper = Keeper("rank-1", local, desk.address, TOKEN, agree)
    yield desk.host("rank-1", 10.0), keeper
    keeper.close()
    keeper.close()


def test_a_host_that_does_not_come_is_named(desk):
    with pytest.raises(JoinTimeout, match="host rank-7 has not connected to tcp"):
        desk.host("rank-7", 0.05)


def test_a_keeper_with_another_token_does_not_come(desk, tmp_path):
    local = LocalHost(RunFolder.begin_in(tmp_path / "run"), "b")
    keeper = Keeper("rank-1", local, desk.address, "another token of sixteen", agree)
    try:
        with pytest.raises(JoinTimeout):
            desk.host("rank-1", 0.5)
    finally:
        keeper.close()


def test_a_task_that_the_keeper_does_not_agree_to_is_not_started(pair):
    host, _ = pair
    with pytest.raises(ProcessDied, match="server-1 cannot be started on b: this rank was not"):
        host.start(Task("server-1", "os:system", preload=()))
    host.start(Task("server-1", "shoal.testing.engines:ends", {"how": "wait"}, preload=()))


def test_a_keeper_changes_nothing_but_what_is_sent_and_pruned(pair, tmp_path):
    host, _ = pair
    for name in ("events.jsonl", "logs/worker-0.log", "checkpoints/x", "/tmp/x"):
        with pytest.raises(PermissionError, match="put is not allowed there"):
            host.files.put(name, 0, b"x", last=True)
    for name in ("events.jsonl", "inputs/x"):
        with pytest.raises(PermissionError, match="remove is not allowed there"):
            host.files.remove(name)
    with pytest.raises(PermissionError, match="not below the run's folder"):
        host.files.read("../secret", 0, 1)
    with pytest.raises(FileNotFoundError):
        host.files.digest("nothing", 0, 1)
    assert (tmp_path / "run" / "events.jsonl").exists()


def test_the_folder_begins_at_a_time_of_the_hosts_clock(desk, tmp_path):
    local = LocalHost(RunFolder(tmp_path / "fresh"), "b")
    keeper = Keeper("rank-1", local, desk.address, TOKEN, agree)
    host = desk.host("rank-1", 10.0)
    host.files.begin(1234.5)
    assert RunFolder(tmp_path / "fresh").started_at() == 1234.5
    with pytest.raises(FileExistsError, match="of another run"):
        host.files.begin(1.0)
    keeper.close()


def test_a_report_that_cannot_be_read_loses_its_host(desk, pair):
    host, keeper = pair
    host.start(Task("server-1", "shoal.testing.engines:ends", {"how": "wait"}, preload=()))
    keeper._node.ask(Reported('{"name": 7}'))
    assert "its report cannot be read" in ended(host).how
    assert desk.host("rank-1", 1.0) is host, "the desk has ended"


@pytest.mark.parametrize("size", [0, 1, 1 << 16, 5 << 20])
def test_an_error_of_any_size_is_reported(pair, size):
    host, keeper = pair
    host.start(Task("server-1", "shoal.testing.engines:ends", {"how": "wait"}, preload=()))
    error = InvalidValue("begin " + "\0" * size + " end", ["a step" * size] * 100)
    for _ in range(20):
        report = Exit("other", 1, f"launch {size}", error)
        keeper._node.ask(Reported(msgspec.json.encode(Said.of(report)).decode()))
    found = ended(host)
    assert found.error.message.startswith("begin ")
    assert found.error.message.endswith(" end")


def test_an_error_nobody_thought_of_is_an_answer(pair, monkeypatch):
    host, _ = pair
    monkeypatch.setattr(LocalFiles, "listed", lambda self: 1 / 0)
    with pytest.raises(OSError, match="ZeroDivisionError"):
        host.files.listed()
    assert host.files.sees(host.files.path, 0) is False, "the keeper has ended"


def ended(host):
    """The first end that a host reports."""
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        if ends := [each for each in host.reports() if isinstance(each, Exit)]:
            return ends[0]
    raise AssertionError("no end was reported")


def test_a_host_is_lost_with_its_connection(desk, pair, monkeypatch):
    host, keeper = pair
    monkeypatch.setattr("shoal.protocol.admin.hosts.LOST_S", 0.2)
    launch = host.start(Task("server-1", "shoal.testing.engines:ends", {"how": "wait"}, preload=()))
    keeper.close()
    end = ended(host)
    assert end.host_lost
    assert (end.name, end.launch, end.code) == ("server-1", launch, -signal.SIGKILL)
    assert "lost with its host: its connection has been broken" in end.how
    with pytest.raises(ConnectionError, match="has been broken"):
        host.files.listed()
    with pytest.raises(ProcessDied, match="cannot be started on b"):
        host.start(Task("server-1", "shoal.testing.engines:ends", preload=()))
    host.stop()


def test_nothing_is_asked_after_the_end(desk, pair):
    host, _ = pair
    desk.close()
    with pytest.raises(ConnectionError, match="the run has ended"):
        host.files.listed()


def test_the_fastest_answer_tells_how_far_a_clock_is_ahead(monkeypatch):
    """The other clock is 100 s ahead; an answer takes 1 s or more, most of it on one way."""
    now = [0.0]
    ways = [(1.0, 9.0), (0.5, 0.5), (4.0, 1.0), (2.0, 2.0), (0.1, 5.0)]
    monkeypatch.setattr(remote, "time", lambda: now[0])

    def ask(host, what):
        there, back = ways.pop()
        now[0] += there
        said = repr(now[0] + 100.0).encode()
        now[0] += back
        return said

    held = HostHeld("b", "/runs/a", "tcp://10.0.0.7:0")
    files = remote.RemoteFiles(
        SimpleNamespace(ask=lambda host, what, name: ask(host, what)), "b", held
    )
    files.measure()
    assert files.ahead_s == pytest.approx(100.0)


@pytest.mark.parametrize(
    "report",
    [
        Exit("server-1", -9, "launch", how="was lost with its host", host_lost=True),
        Exit("worker-0", 1, "launch"),
        remote.Started("server-1", "launch", 4711, "tcp://10.0.0.7:4000"),
    ],
)
def test_reports_travel_as_they_are(report):
    assert Said.of(report).report() == report


def test_errors_travel_with_their_type_and_story():
    report = Exit("worker-0", 1, "launch", InvalidValue("lr has to be positive", ["a push"]))
    found = Said.of(report).report().error
    assert type(found) is InvalidValue
    assert (found.message, [*found.trace]) == ("lr has to be positive", ["a push"])
