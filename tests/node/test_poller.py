import os
import threading
from itertools import pairwise
from time import monotonic

import pytest

from shoal.node import poller as poller_module
from shoal.node.poller import CROWDED_WAITS, SPIN_PENALTY_MAX, Poller


@pytest.fixture
def pipe():
    poller = Poller()
    reader, writer = os.pipe()
    poller.register(reader, 1)
    yield poller, reader, writer
    poller.close()
    os.close(reader)
    os.close(writer)


def test_wait_returns_what_is_ready(pipe):
    poller, reader, writer = pipe
    os.write(writer, b"x")
    assert poller.wait(1.0, monotonic()) == [(reader, 1)]


def test_wait_sleeps_until_something_is_ready(pipe):
    poller, reader, writer = pipe
    timer = threading.Timer(0.05, os.write, (writer, b"x"))
    timer.start()
    assert poller.wait(30.0, monotonic()) == [(reader, 1)]
    timer.join()


@pytest.mark.parametrize("timeout_s", [0.0, 0.0001, 0.02])
def test_wait_without_an_event_returns_after_its_timeout(pipe, timeout_s):
    begin = monotonic()
    assert pipe[0].wait(timeout_s, begin) == []
    assert monotonic() - begin >= timeout_s * 0.9  # epoll counts in milliseconds


def test_spinning_in_vain_backs_off_exponentially(pipe, monkeypatch):
    poller = pipe[0]
    looked = []
    monkeypatch.setattr(poller_module.os, "sched_yield", lambda: looked.append(wait))
    for wait in range(500):
        poller.wait(1e-6, monotonic() - 1.0 if looked and looked[-1] == wait else monotonic())
    spins = sorted(set(looked))
    pauses = [b - a for a, b in pairwise(spins)]
    assert pauses[:4] == [2, 3, 5, 9]
    assert max(pauses) <= SPIN_PENALTY_MAX + 1


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nowhere to go")
def test_a_poller_on_a_shared_core_moves_to_another_with_backoff(pipe, monkeypatch):
    poller, _, writer = pipe
    allowed = os.sched_getaffinity(0)
    moves, real = [], os.sched_setaffinity

    def moved(pid, cores):
        moves.append(set(cores))
        real(pid, cores)

    def somebody_else_runs():
        begin = monotonic()
        while monotonic() - begin < 2 * poller_module.CROWDED_S:
            pass
        os.write(writer, b"x")

    monkeypatch.setattr(poller_module.os, "sched_setaffinity", moved)
    monkeypatch.setattr(poller_module.os, "sched_yield", somebody_else_runs)
    for _ in range(7 * 2 * CROWDED_WAITS):
        assert poller.wait(1.0, monotonic())
        os.read(pipe[1], 100)
    assert moves[0] < allowed
    assert all(cores == allowed for cores in moves[1::2])
    assert 2 <= len(moves) <= 6, "each time it takes twice as long to be noticed"
    assert os.sched_getaffinity(0) == allowed
