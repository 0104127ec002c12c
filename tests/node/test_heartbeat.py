"""Heartbeats of a process, beside a loop that may be busy."""

import threading
import time

import pytest

from shoal.factories import call_user_code
from shoal.node.heartbeat import HeartbeatThread, LoopProgress
from shoal.node.node import Node
from shoal.protocol.machine import Discard, Received
from shoal.protocol.messages.base import SCHEDULER
from shoal.protocol.messages.membership import ProcessHeartbeat
from shoal.transport import Identity

EVERY_S = 0.02


class Scheduler:
    """A machine that keeps the heartbeats that it receives."""

    def __init__(self):
        self.received = []

    def address_of(self, node):
        return None

    def problem_of(self, received):
        return ""

    def role_of(self, node):
        return None

    def deadline(self):
        return None

    def arriving(self, sender, message, nbytes):
        return Discard("")

    def handle(self, event, now):
        if isinstance(event, Received):
            self.received.append((event.sender, event.message))
        return []


@pytest.fixture
def scheduler(tmp_path):
    node = Node(Scheduler(), Identity(SCHEDULER, "scheduler"))
    node.listen(f"unix://{tmp_path}/scheduler")
    yield node
    node.close()


class Loop:
    """A thread that makes turns, until it is told to call a function."""

    def __init__(self):
        self.progress = LoopProgress()
        self.call, self.goes_on = None, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.over = False
        self.thread.start()

    def run(self):
        while not self.over:
            self.progress.turn()
            self.goes_on.wait(EVERY_S / 10)
            if self.call is not None:
                self.call()
                self.call = None

    def hold(self):
        self.goes_on.wait()


@pytest.fixture
def loop():
    loop = Loop()
    yield loop
    loop.over = True
    loop.goes_on.set()
    loop.thread.join()


@pytest.fixture
def beats(scheduler, loop, tmp_path):
    """Starts the heartbeats of a member of an incarnation; returns when one is as it should be."""
    threads = []

    def beats(true, incarnation=3):
        if not threads:
            me, address = Identity("server-a", "server"), f"unix://{tmp_path}/scheduler"
            given = me, address, loop.progress, lambda: incarnation, EVERY_S
            threads.append(HeartbeatThread(*given))
            threads[0].start()
        received, until = scheduler.machine.received, time.monotonic() + 10
        while not any(true(message) for _, message in received):
            assert time.monotonic() < until
            scheduler.poll(0.05)
        return next(message for _, message in received if true(message))

    yield beats
    for each in threads:
        each.close()


def test_a_loop_that_makes_turns_is_at_no_place(scheduler, beats):
    beat = beats(lambda beat: beat.turns > 5)
    assert beat == ProcessHeartbeat("server-a", 3, beat.turns)
    assert {sender for sender, _ in scheduler.machine.received} == {"server-a-heartbeat"}


def test_a_loop_that_makes_no_turn_is_said_to_be_where_it_is(loop, beats):
    loop.call = loop.hold
    beat = beats(lambda beat: beat.at)
    assert beat.at.startswith("Loop.hold (test_heartbeat.py:")  # and not in threading.py
    assert not beat.in_user_code
    loop.goes_on.set()
    assert beats(lambda later: later.turns > beat.turns).at == ""


def test_user_code_is_said_to_be_user_code(loop, beats):
    loop.call = lambda: call_user_code(loop.hold)
    assert beats(lambda beat: beat.at).in_user_code


def test_a_member_that_has_not_joined_sends_none(scheduler, loop, beats, tmp_path):
    me = Identity("server-b", "server")
    address = f"unix://{tmp_path}/scheduler"
    thread = HeartbeatThread(me, address, loop.progress, lambda: 0, EVERY_S)
    thread.start()
    beats(lambda beat: beat.turns > 20)
    thread.close()
    assert {message.node for _, message in scheduler.machine.received} == {"server-a"}


def test_a_scheduler_that_is_started_again_is_sent_heartbeats_again(scheduler, beats, tmp_path):
    last = beats(lambda beat: beat.turns > 5)
    scheduler.close()
    after = Node(Scheduler(), Identity(SCHEDULER, "scheduler"))
    try:
        after.listen(f"unix://{tmp_path}/scheduler")
        until = time.monotonic() + 10
        while not after.machine.received:
            assert time.monotonic() < until
            after.poll(0.05)
        assert after.machine.received[0][1].turns > last.turns
    finally:
        after.close()
