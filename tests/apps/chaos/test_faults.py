"""The injector of `shoal chaos`: what it is asked for happens, comes back, or is missed by name."""

import json
import signal
from random import Random
from types import SimpleNamespace

import pytest

from shoal.apps.chaos import faults
from shoal.apps.chaos.command import DRAWN, draw_faults
from shoal.apps.chaos.faults import RECOVERY_S, FaultInjector
from shoal.errors import InvalidValue, JoinTimeout
from shoal.protocol.scheduler.options import SchedulerOptions
from shoal.runs.job import JobSpec
from shoal.simulation.faults.schedule import LASTING, fault_of


class Processes:
    """An engine of processes that end when they are told to, and are not started by themselves."""

    def __init__(self, folder):
        self.folder = SimpleNamespace(events=folder / "events.jsonl")
        self.running = {"scheduler": 1, "server-0": 2, "server-1": 3, "worker-0": 4, "worker-1": 5}
        self.signals, self.again, self.due = [], [], set()
        self.view(2, 3)

    def view(self, servers, workers):
        event = {"kind": "view", "servers": servers, "workers": workers, "whole": servers == 2}
        event |= {"view": [1, 1], "reason": ""}
        with self.folder.events.open("a") as file:
            file.write(json.dumps({"t": 0.0, "node": "scheduler", **event}) + "\n")

    def restarts(self, name):
        return name in self.due

    def start_again(self, name):
        self.again.append(name)
        self.running[name] = 10 + len(self.again)

    def kill(self, pid, what):
        self.signals.append((pid, what))


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(faults.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def processes(tmp_path, monkeypatch):
    made = Processes(tmp_path)
    monkeypatch.setattr(faults.os, "kill", made.kill)
    return made


def injector(processes, *names, early=False):
    job = JobSpec(servers=2, workers=2, replicas=2, seed=3)
    return FaultInjector(processes, job, [fault_of(name) for name in names], len(names), early)


def turn(made, clock, seconds=0.0):
    """Let time pass, in the steps of an engine."""
    until = clock.now + seconds
    while True:
        made.tick()
        if clock.now >= until:
            return
        clock.now += 0.05


def test_a_server_that_has_left_in_order_is_started_again(processes, clock):
    made = injector(processes, "exit-server-1", "restart-server-0")
    for name in ("server-1", "server-0"):
        turn(made, clock, 1.0)
        assert processes.running.pop(name) is not None  # it leaves at the first signal
        processes.view(1, 3)
        turn(made, clock, 0.1)
        assert processes.again[-1] == name
        assert not made.over
        processes.view(2, 3)
    turn(made, clock, 0.1)
    assert made.over
    assert [each.name for each in made.injected] == ["server-1", "server-0"]


def test_a_server_that_the_engine_starts_again_is_left_to_it(processes, clock):
    made = injector(processes, "kill-server-1")
    turn(made, clock, 1.0)
    del processes.running["server-1"]
    processes.due.add("server-1")
    turn(made, clock, 1.0)
    assert processes.again == []


def test_a_process_that_has_just_ended_gets_no_fault(processes, clock, monkeypatch):
    """It has ended by itself, and the engine has not seen that yet."""

    def gone(pid, what):
        raise ProcessLookupError

    made = injector(processes, "kill-server-1")
    with monkeypatch.context() as patched:
        patched.setattr(faults.os, "kill", gone)
        turn(made, clock, 1.0)
    assert (made.injected, made.over) == ([], False)
    processes.running["server-1"] = 9  # the engine has started it again
    processes.view(2, 3)
    turn(made, clock, 1.0)
    assert processes.signals == [(9, signal.SIGKILL)]


def test_a_job_that_is_over_gets_no_servers(processes, clock):
    made = injector(processes, "kill-worker")
    turn(made, clock)
    processes.running = {"scheduler": 1}
    turn(made, clock, 1.0)
    assert processes.again == []
    assert not made.over


def test_a_cluster_that_does_not_recover_is_named(processes, clock):
    made = injector(processes, "kill-server-1", "kill-worker-0")
    turn(made, clock, 1.0)
    processes.running["server-1"] = 9
    processes.view(1, 3)
    why = "60 s after kill-server of server-1, fault 1 of 2, .* 1 of 2 servers, 3 of 3 workers, and"
    with pytest.raises(JoinTimeout, match=why):
        turn(made, clock, RECOVERY_S + 1.0)
    assert len(made.injected) == 1


@pytest.mark.parametrize("ended", [False, True])
def test_a_stopped_process_goes_on_after_its_time_unless_it_was_ended(processes, clock, ended):
    """The run may have gone on without it, and its place may be taken."""
    made = injector(processes, "stop-worker-0:12s")
    turn(made, clock, 1.0)
    assert processes.signals == [(4, signal.SIGSTOP)]
    turn(made, clock, 10.0)
    if ended:
        processes.running["worker-0"] = 44
    turn(made, clock, 2.0)
    assert processes.signals[1:] == [] if ended else [(4, signal.SIGCONT)]
    assert made.over


def test_a_process_that_ends_as_it_goes_on_is_no_error(processes, clock, monkeypatch):
    def gone(pid, what):
        raise ProcessLookupError

    made = injector(processes, "stop-worker-0")
    turn(made, clock, 1.0)
    monkeypatch.setattr(faults.os, "kill", gone)
    turn(made, clock, 2.0)
    assert made.over


@pytest.mark.parametrize("count", [1, 17, 60])
def test_a_tenth_of_drawn_faults_is_longer_than_the_failure_timeout(count):
    drawn = draw_faults(count, Random(4))
    assert len(drawn) == count
    lasting = [each for each in drawn if each.seconds > SchedulerOptions(0, 1).failure_timeout_s]
    assert len(lasting) == -(-count // 10)
    assert {each.what for each in lasting} <= {*LASTING}
    assert drawn == draw_faults(count, Random(4))
    assert {f"{each.what}-{each.role}" for each in draw_faults(1000, Random(1))} == {*DRAWN}


def test_only_a_fault_that_is_taken_back_has_a_duration():
    assert str(fault_of("stop-server-1@4:12s")) == "stop-server:12s"
    with pytest.raises(InvalidValue, match="kill-server:12s: it has no duration"):
        fault_of("kill-server:12s")
