"""The laws of engines: functions of `make`, which returns (engine, folder, lose).

    @pytest.mark.parametrize("law", ENGINE_LAWS, ids=lambda law: law.__name__)
    def test_law(law, tmp_path):
        law(lambda: (MyEngine(), tmp_path, lose))

Runs have their folders in `folder`. `lose(host)` ends a host with all that runs on it, without a
word to anybody, as a power cut does.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any

from shoal.engines.base import Engine, Host, Reservation, Started, Task, Wants
from shoal.errors import InvalidValue, NotTrusted, ProcessDied
from shoal.node.launch import launch_id, listens_at, wants
from shoal.protocol.supervision.supervisor import Exit
from shoal.storage.run_folder import RunFolder
from shoal.testing.connections import laws_in, raises

Lose = Callable[[Host], None]
Make = Callable[[], tuple[Engine, Path, Lose]]

TIMEOUT_S = 30.0
KILL_S = 1.0  # from a kill to its report
LOG_BYTES = 50 << 20
FLOOD_S = 5.0  # for a process to start and end beside one that writes LOG_BYTES to its log
CLOSES_S = 0.0  # for the library of an engine to close its own descriptors after a stop
NAMES = ("scheduler", "server-0", "worker-0")


# ---------------------------------------------------------------------------- processes


def ends(how: str, code: int = 0, text: str = "", folder: str = "") -> None:
    """Be a process that ends in some way, or waits for a signal."""
    match how:
        case "exit":
            sys.exit(code)
        case "user's error":
            runpy.run_path(text)
        case "our error":
            raise InvalidValue(text)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "launch":
            Path(text).write_text(launch_id())
        case "write":
            (Path(folder) / "checkpoints").mkdir()
            for name in ("left", "checkpoints/left"):
                (Path(folder) / name).write_text(text)
        case "listen":
            listens_at(text)
            signal.pause()
        case "log":
            line = b"x" * 1023 + b"\n"
            for _ in range(LOG_BYTES // len(line)):
                os.write(2, line)
            signal.pause()
        case "ask":
            listens_at("it asks")
            for file in text.split():
                wants(file)
            signal.pause()
        case "wait":
            listens_at("it waits")
            signal.pause()
        case "handler":
            signal.signal(signal.SIGUSR1, lambda number, frame: _leave(code, frame))
            listens_at("it waits")
            while True:
                signal.pause()


def _leave(code: int, _: FrameType | None) -> None:
    sys.exit(code)


class _Run:
    """A reservation, and the reports of its hosts."""

    def __init__(
        self, reservation: Reservation, folder: Path, lose: Lose, replaces_hosts: bool
    ) -> None:
        self.reservation = reservation
        self.replaces_hosts = replaces_hosts
        self.folder = folder
        self.lose = lose
        self.started: list[Started] = []
        self.exits: list[Exit] = []
        self.wants: list[Wants] = []

    def start(self, name: str, how: str, **args: Any) -> str:
        task = Task(name, "shoal.testing.engines:ends", {"how": how, **args}, preload=())
        return self.reservation.host(name).start(task)

    def signal(self, name: str, number: int) -> None:
        self.reservation.host(name).signal(name, number)

    def until(self, true: Callable[[], object]) -> None:
        """Take reports until something is true; every wait is for a report."""
        limit_s = TIMEOUT_S
        until = monotonic() + limit_s
        while not true():
            left = until - monotonic()
            assert left > 0, f"no report within {limit_s:g} s; so far {self.started}, {self.exits}"
            hosts = {host.fileno(): host for host in self.reservation.hosts}
            poll = select.poll()
            for fileno in hosts:
                poll.register(fileno, select.POLLIN)
            for fileno, _ in poll.poll(left * 1000):
                self.take(hosts[fileno])

    def take(self, host: Host) -> None:
        for each in host.reports():
            if isinstance(each, Started):
                self.started.append(each)
            elif isinstance(each, Wants):
                self.wants.append(each)
            else:
                self.exits.append(each)

    def waits(self, name: str) -> Started:
        """Return the report of a process that has said that it waits."""
        self.until(lambda: [each for each in self.started if each.name == name and each.address])
        return [each for each in self.started if each.name == name and each.address][-1]

    def ended(self, name: str) -> Exit:
        self.until(lambda: [each for each in self.exits if each.name == name])
        return [each for each in self.exits if each.name == name][-1]


@contextmanager
def _reserved(make: Make) -> Iterator[_Run]:
    engine, folder, lose = make()
    reservation = engine.reserve(RunFolder.create(folder, "laws"), NAMES)
    try:
        yield _Run(reservation, folder, lose, engine.replaces_hosts)
    finally:
        for host in reservation.hosts:
            host.stop()


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# ---------------------------------------------------------------------------- laws


def every_way_to_end_is_reported(make: Make) -> None:
    with _reserved(make) as run:
        launches = {
            "scheduler": run.start("scheduler", "exit", code=0),
            "server-0": run.start("server-0", "exit", code=3),
            "worker-0": run.start("worker-0", "kill"),
        }
        codes = {name: run.ended(name).code for name in launches}
        assert codes == {"scheduler": 0, "server-0": 3, "worker-0": -signal.SIGKILL}, codes
        assert {each.name: each.launch for each in run.exits} == launches
        assert len(run.exits) == 3, "an end was reported twice"
        assert not any(each.error for each in run.exits), "an error of a process without one"


def an_error_comes_with_its_type_text_and_traceback(make: Make) -> None:
    with _reserved(make) as run:
        script = run.folder / "train.py"
        script.write_text("def step():\n    raise ValueError('the loss is nan')\nstep()\n")
        run.start("worker-0", "user's error", text=str(script))
        run.start("server-0", "our error", text="lr has to be positive")
        users, ours = run.ended("worker-0"), run.ended("server-0")
        assert isinstance(users.error, ProcessDied), f"a user's error became {users.error!r}"
        assert "ValueError: the loss is nan" in str(users.error)
        for part in (str(script), "in step"):
            assert part in str(users.error), f"the traceback is missing: {users.error}"
        assert type(ours.error) is InvalidValue, f"its type was lost: {ours.error!r}"
        assert ours.error.message == "lr has to be positive"
        run.start("server-0", "exit", code=1)
        run.until(lambda: len(run.exits) == 3)
        assert run.exits[-1].error is None, "the error of an earlier process of that name"


def a_kill_is_reported_at_once(make: Make) -> None:
    with _reserved(make) as run:
        run.start("server-0", "wait")
        run.waits("server-0")
        began = monotonic()
        run.signal("server-0", signal.SIGKILL)
        assert run.ended("server-0").code == -signal.SIGKILL
        assert monotonic() - began < KILL_S, f"{monotonic() - began:.1f} s after the kill"


def a_process_is_told_its_launch(make: Make) -> None:
    with _reserved(make) as run:
        launches: list[str] = []
        for name in (*NAMES, "server-0"):
            told = run.folder / f"launch-{len(launches)}"
            launches.append(run.start(name, "launch", text=str(told)))
            run.until(lambda: len(run.exits) == len(launches))
            assert told.read_text() == launches[-1]
        assert len(set(launches)) == len(launches), "two starts are the same launch"


def an_address_is_reported_when_a_process_listens(make: Make) -> None:
    with _reserved(make) as run:
        addresses = {run.reservation.host(name).address(name) for name in NAMES}
        some_port = {each for each in addresses if each.endswith(":0")}
        assert some_port or len(addresses) == len(NAMES), f"two processes share one: {addresses}"
        launch = run.start("server-0", "listen", text="tcp://10.0.0.7:4711")
        told = run.waits("server-0")
        assert (told.launch, told.address) == (launch, "tcp://10.0.0.7:4711")
        assert [each.address for each in run.started] == ["", "tcp://10.0.0.7:4711"]
        assert {each.pid for each in run.started} == {told.pid}


def files_that_a_process_asks_for_are_reported(make: Make) -> None:
    files = [f"30/server-{number}.safetensors" for number in range(100)]
    with _reserved(make) as run:
        launch = run.start("server-0", "ask", text=" ".join(files))
        run.until(lambda: len(run.wants) >= len(files))
        assert run.wants == [Wants("server-0", launch, file) for file in files]
        assert run.waits("server-0").address == "it asks"


def a_signal_reaches_the_process_that_it_names(make: Make) -> None:
    with _reserved(make) as run:
        for name, code in (("server-0", 7), ("worker-0", 8)):
            run.start(name, "handler", code=code)
            run.waits(name)
        run.signal("worker-0", signal.SIGUSR1)
        assert run.ended("worker-0").code == 8
        assert [each.name for each in run.exits] == ["worker-0"]
        run.signal("worker-0", signal.SIGKILL)  # which has ended: nothing happens
        run.signal("server-0", signal.SIGUSR1)
        assert run.ended("server-0").code == 7


def reports_do_not_wait(make: Make) -> None:
    with _reserved(make) as run:
        run.start("server-0", "wait")
        run.waits("server-0")
        began = monotonic()
        for host in run.reservation.hosts:
            assert not host.reports()
        assert monotonic() - began < KILL_S


def a_lost_host_reports_the_ends_of_all_its_processes(make: Make) -> None:
    with _reserved(make) as run:
        for name in NAMES:
            run.start(name, "wait")
        pids = {name: run.waits(name).pid for name in NAMES}
        host = run.reservation.host("server-0")
        there = {name for name in NAMES if run.reservation.host(name) is host}
        run.lose(host)
        run.until(lambda: {each.name for each in run.exits} >= there)
        lost = {each.name for each in run.exits}
        assert lost == there, f"processes of other hosts ended: {lost - there}"
        assert all(each.code < 0 and each.how for each in run.exits)
        assert all(each.host_lost is not run.replaces_hosts for each in run.exits)
        run.take(host)
        assert len(run.exits) == len(there), "an end was reported twice"
        until = monotonic() + TIMEOUT_S
        while any(_lives(pids[name]) for name in there):
            assert monotonic() < until, "a process outlives its host"
            sleep(0.01)  # nobody reports what the system does
        poll = select.poll()
        poll.register(host.fileno(), select.POLLIN)
        assert not poll.poll(0), "a lost host has no more reports"
        if not run.replaces_hosts:
            with raises(ProcessDied):
                run.start("server-0", "exit")
        else:
            launch = run.start("server-0", "exit", code=3)
            run.until(lambda: run.exits[-1].launch == launch)
            assert run.exits[-1].code == 3


def nothing_is_left_after_stop(make: Make) -> None:
    with _reserved(make) as run:  # what is imported or opened once is there by then
        run.start("server-0", "wait")
        run.waits("server-0")
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    with _reserved(make) as run:
        for name in NAMES:
            run.start(name, "wait")
        pids = [run.waits(name).pid for name in NAMES]
        private = [host.private for host in run.reservation.hosts]
        assert all(each.stat().st_mode & 0o077 == 0 for each in private), "others may enter"
        for host in run.reservation.hosts:
            host.stop()
            host.stop()
        assert not any(map(_lives, pids)), "a process outlives its host"
        assert not any(each.exists() for each in private), "a private folder is left"
    until = monotonic() + CLOSES_S
    while (left := len([*Path("/proc/self/fd").iterdir()])) != descriptors:
        if CLOSES_S and left < descriptors:  # the library had some to close at the first look
            break
        assert monotonic() < until, "a descriptor is left"
        sleep(0.01)  # the library tells nobody


def what_processes_leave_is_listed_and_read(make: Make) -> None:
    with _reserved(make) as run:
        host = run.reservation.host("server-0")
        run.start("server-0", "write", text="0123456789", folder=str(host.folder.path))
        run.ended("server-0")
        assert host.files.listed()["left"].size == 10
        assert host.files.state("left") == host.files.listed()["left"]
        assert "logs/server-0.log" in host.files.listed()
        assert (host.files.read("left", 3, 4), host.files.read("left", 8, 4)) == (b"3456", b"89")
        assert host.files.digest("left", 2, 5) == sha256(b"23456").hexdigest()
        with raises(OSError):
            host.files.read("nothing", 0, 1)
        host.files.put("inputs/it", 0, b"half", last=False)
        with raises(OSError):  # half a file is none
            host.files.state("inputs/it")
        for _ in range(2):  # the connection may have broken
            host.files.put("inputs/it", 4, b" and all", last=True)
        assert host.files.read("inputs/it", 0, 100) == b"half and all"
        for name in ("inputs/../../escaped", "../escaped", "/tmp/escaped", ""):
            with raises((NotTrusted, OSError)):
                host.files.put(name, 0, b"", last=True)
        host.files.remove("checkpoints/left")
        assert not [*(name for name in host.files.listed() if name.startswith("checkpoints"))]


def a_flood_of_log_holds_up_nobody(make: Make) -> None:
    with _reserved(make) as run:
        run.start("worker-0", "log")
        began = monotonic()
        run.start("server-0", "exit", code=5)
        assert run.ended("server-0").code == 5
        assert monotonic() - began < FLOOD_S
        log = run.reservation.host("worker-0").folder.log("worker-0")
        until = monotonic() + TIMEOUT_S
        while True:
            with suppress(OSError):
                if log.stat().st_size >= LOG_BYTES:
                    break
            assert monotonic() < until, "the log is not whole"
            sleep(0.01)  # nobody reports what a process writes
        run.signal("worker-0", signal.SIGKILL)
        assert run.ended("worker-0").code == -signal.SIGKILL


ENGINE_LAWS = laws_in(__name__)
