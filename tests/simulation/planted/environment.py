"""Bugs around the protocol: of paths, disks, and buffers that are lent."""

from contextlib import contextmanager
from unittest.mock import patch

from msgspec.structs import replace

from shoal.protocol.machine import Detach, PeerLost
from shoal.protocol.scheduler.machine import SchedulerMachine
from shoal.protocol.worker.machine import WorkerMachine
from shoal.simulation import world as world_module
from shoal.simulation.node import SimDisk
from tests.simulation.planted.patches import bug, instead

names_are_not_synced = bug(
    SimDisk, "sync", instead(None),
    "A file is renamed, and its folder is not synced: a loss of power undoes the rename.",
)  # fmt: skip


@contextmanager
def silent_paths_are_kept():
    """A connection whose packets vanish is never replaced."""
    right = world_module.World.break_connection

    def break_connection(self, one, other, *, closed=True):
        if closed:
            right(self, one, other)
        else:
            self.network.blackhole(one, other, float("inf"))

    with patch.object(world_module.World, "break_connection", break_connection):
        yield


@contextmanager
def replaced_counts_as_broken():
    """The scheduler takes a connection that was replaced for one that its peer has closed."""
    right = SchedulerMachine.handle

    def handle(self, event, now):
        if isinstance(event, PeerLost):
            event = replace(event, closed=True)
        return right(self, event, now)

    with patch.object(SchedulerMachine, "handle", handle):
        yield


@contextmanager
def given_up_without_a_copy():
    """The buffers of a push that was given up are the caller's again, and are sent later."""
    right = WorkerMachine.handle

    def handle(self, event, now):
        return [each for each in right(self, event, now) if not isinstance(each, Detach)]

    with patch.object(WorkerMachine, "handle", handle):
        yield
