"""Every law of an engine, on every engine; and bugs that the laws have to catch."""

import os
import shutil
import signal
from itertools import count

import pytest

from shoal.engines import local
from shoal.engines.base import Engine, Started, Wants
from shoal.engines.host_files import LocalFiles
from shoal.engines.hosts import Hosts, HostsEngine
from shoal.engines.local import LocalEngine, LocalHost, OneHost
from shoal.engines.remote import Desk, Keeper
from shoal.storage.run_folder import RunFolder
from shoal.storage.scratch import ScratchFolder
from shoal.testing import engines
from shoal.testing.engines import ENGINE_LAWS, NAMES
from shoal.testing.machines import MachinesEngine

pytestmark = pytest.mark.real
no_namespaces = os.geteuid() != 0 or not shutil.which("tc")


def lose(host):
    """The fork server stands for the machine."""
    os.kill(host._fork_server.pid, signal.SIGKILL)


@pytest.fixture
def here(tmp_path):
    return lambda: (LocalEngine(), tmp_path, lose)


@pytest.fixture
def namespaces(tmp_path):
    with Hosts(NAMES) as hosts:
        yield lambda: (HostsEngine(hosts), tmp_path, lose)


@pytest.fixture
def machines(tmp_path):
    """A machine for the servers, and one for all others."""
    with Hosts(["a", "b"]) as hosts:
        where = {"server-0": "b"}
        engine = MachinesEngine(hosts, tmp_path / "machines", lambda name: where.get(name, "a"))
        yield lambda: (engine, tmp_path, lose)


@pytest.mark.parametrize("law", ENGINE_LAWS, ids=lambda law: law.__name__)
def test_this_machine_keeps_the_law(law, here):
    law(here)


@pytest.mark.skipif(no_namespaces, reason="needs network namespaces")
@pytest.mark.parametrize("law", ENGINE_LAWS, ids=lambda law: law.__name__)
def test_namespaces_keep_the_law(law, namespaces):
    law(namespaces)


class OverTcp(LocalHost):
    def address(self, name):
        return "tcp://127.0.0.1:0"


class Elsewhere(Engine):
    """This machine, behind a keeper, as if it were another."""

    keeper = None

    def reserve(self, folder, names=()):
        token = "a token of sixteen and more"
        desk = Desk("tcp://127.0.0.1:0", token)
        own = RunFolder.begin_in(folder.path / "elsewhere")
        local = OverTcp(own, "b")
        keeper = Keeper("rank-1", local, desk.address, token, lambda task: None)
        host = desk.host("rank-1", 10.0)
        host._fork_server = local._fork_server
        host.private = local.private
        stop = host.stop

        def stop_all():
            stop()
            keeper.close()
            desk.close()

        host.stop = stop_all
        return OneHost(host)


@pytest.mark.parametrize("law", ENGINE_LAWS, ids=lambda law: law.__name__)
def test_a_host_behind_a_keeper_keeps_the_law(law, tmp_path):
    law(lambda: (Elsewhere(), tmp_path, lose))


@pytest.mark.skipif(no_namespaces, reason="needs network namespaces")
@pytest.mark.parametrize("law", ENGINE_LAWS, ids=lambda law: law.__name__)
def test_machines_with_folders_of_their_own_keep_the_law(law, machines):
    law(machines)


def codes_are_lost(monkeypatch):
    report = LocalHost._report
    monkeypatch.setattr(
        LocalHost,
        "_report",
        lambda self, code=None, **more: report(self, code=None if code is None else 0, **more),
    )


def errors_are_not_read(monkeypatch):
    monkeypatch.setattr(LocalHost, "_error", lambda self, name, code: None)


def errors_of_earlier_processes_stay(monkeypatch):
    unlink = local.Path.unlink
    monkeypatch.setattr(
        local.Path,
        "unlink",
        lambda path, **how: None if path.suffix == ".error" else unlink(path, **how),
    )


def all_starts_are_one_launch(monkeypatch):
    monkeypatch.setattr(local.secrets, "token_hex", lambda nbytes: "always the same")


def a_lost_host_says_nothing(monkeypatch):
    lose_all = LocalHost._lose
    monkeypatch.setattr(LocalHost, "_lose", lambda self: lose_all(self)[:0])


def addresses_are_forgotten(monkeypatch):
    report = LocalHost._report

    def forgetful(self, **told):
        found = report(self, **told)
        return Started(found.name, found.launch, found.pid) if "address" in told else found

    monkeypatch.setattr(LocalHost, "_report", forgetful)


def wishes_are_lost(monkeypatch):
    reports = LocalHost.reports
    monkeypatch.setattr(
        LocalHost,
        "reports",
        lambda self: [each for each in reports(self) if not isinstance(each, Wants)],
    )


def private_folders_stay(monkeypatch):
    monkeypatch.setattr(ScratchFolder, "remove", lambda self: None)


def signals_go_to_the_first(monkeypatch):
    tell = LocalHost._tell

    def astray(self, command):
        if "signal" in command:
            command["name"] = next(iter(self._running), "")
        tell(self, command)

    monkeypatch.setattr(LocalHost, "_tell", astray)


def kills_are_slow(monkeypatch):
    taken = count()
    reports = LocalHost.reports

    def slow(self):
        found = reports(self)
        if any(not isinstance(each, Started) for each in found):
            engines.sleep(0.0 if next(taken) else 1.2)  # the first of them comes late
        return found

    monkeypatch.setattr(LocalHost, "reports", slow)


def half_a_file_is_there(monkeypatch):
    put = LocalFiles.put
    monkeypatch.setattr(
        LocalFiles, "put", lambda self, name, start, data, last: put(self, name, start, data, True)
    )


def any_file_is_written(monkeypatch):
    monkeypatch.setattr("shoal.engines.host_files.below", lambda folder, name: folder / name)


PLANTED = {
    codes_are_lost: engines.every_way_to_end_is_reported,
    errors_are_not_read: engines.an_error_comes_with_its_type_text_and_traceback,
    errors_of_earlier_processes_stay: engines.an_error_comes_with_its_type_text_and_traceback,
    all_starts_are_one_launch: engines.a_process_is_told_its_launch,
    a_lost_host_says_nothing: engines.a_lost_host_reports_the_ends_of_all_its_processes,
    addresses_are_forgotten: engines.an_address_is_reported_when_a_process_listens,
    wishes_are_lost: engines.files_that_a_process_asks_for_are_reported,
    private_folders_stay: engines.nothing_is_left_after_stop,
    signals_go_to_the_first: engines.a_signal_reaches_the_process_that_it_names,
    kills_are_slow: engines.a_kill_is_reported_at_once,
    half_a_file_is_there: engines.what_processes_leave_is_listed_and_read,
    any_file_is_written: engines.what_processes_leave_is_listed_and_read,
}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught_by_its_law(bug, here, monkeypatch):
    monkeypatch.setattr(engines, "TIMEOUT_S", 5.0)
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        PLANTED[bug](here)
