"""Bugs of worker groups that somebody could write, each planted by replacing one method."""

from contextlib import contextmanager
from unittest.mock import patch

from shoal.protocol.messages.membership import Frozen
from shoal.protocol.scheduler import membership as membership_module
from shoal.protocol.scheduler.ledgers import LeaseLedgers
from shoal.protocol.server.chains.chain import Chains
from shoal.protocol.server.chains.link import Link
from shoal.protocol.server.requests.checkpointing import Checkpointer
from shoal.protocol.server.requests.wait_queue import WaitQueue
from shoal.protocol.server.state.replicas import Replicas
from shoal.protocol.server.state.rounds import Rounds


@contextmanager
def clock_of_another_group():
    """A head's clock counts for the tables of every group."""

    def along(self, path, group):
        return [replica for replica in self.replicas.values() if replica.chain[: len(path)] == path]

    with patch.object(Chains, "_along", along):
        yield


@contextmanager
def told_once_for_all_groups():
    """What the next server was told of one group's clock is taken to be told of the others'."""

    class Announced(dict):
        def get(self, key, default=None):
            return max((at for (path, _), at in self.items() if path == key[0]), default=default)

    right = Link.__init__

    def init(self, *args):
        right(self, *args)
        self.announced = Announced()

    with patch.object(Link, "__init__", init):
        yield


@contextmanager
def new_head_asks_one_group():
    """Who takes over asks the first group alone how far it is."""
    right = Replicas.adopt

    def adopt(self, view, rank, take):
        moved = right(self, view, rank, take)
        moved.begin = {group: at for group, at in moved.begin.items() if not group}
        return moved

    with patch.object(Replicas, "adopt", adopt):
        yield


@contextmanager
def groups_begin_alike():
    """A worker's first round is the one that the first group has come to."""
    right = Frozen.standing
    with patch.object(Frozen, "standing", lambda self, group: right(self, "")):
        yield


@contextmanager
def visitor_waits():
    """A read of another group's table goes by the reader's own clocks."""

    def own_pulls(self, taken):
        return [self._replicas[number] for number, _, _ in taken.footprint.pulls]

    with patch.object(WaitQueue, "_own_pulls", own_pulls):
        yield


@contextmanager
def group_begins_incomplete():
    """A group begins with whoever of it is there."""
    with patch.object(membership_module, "gathering", lambda members, previous, finished=(): set()):
        yield


@contextmanager
def rounds_of_all_groups():
    """A group's clock closes the rounds of others."""
    right_close = Rounds.close

    def below(self, group, clock):
        return sorted(at for _, at in self.open if at < clock)

    def close(self, group, clock):
        groups = [of for of, at in self.open if at == clock]
        return right_close(self, groups[0], clock) if groups else []

    with patch.object(Rounds, "below", below), patch.object(Rounds, "close", close):
        yield


@contextmanager
def guests_are_saved():
    """A checkpoint of the first group's clock has others' tables as well."""

    def reached(self, out):
        clock = self._clocks.of("").minimum
        for replica in self._chains.replicas.values():
            self.before(replica, self._chains.reached(replica, clock), out)

    right = Checkpointer.before

    def before(self, replica, clock, out):
        group, replica.group = replica.group, ""
        try:
            right(self, replica, clock, out)
        finally:
            replica.group = group

    with (
        patch.object(Checkpointer, "reached", reached),
        patch.object(Checkpointer, "before", before),
    ):
        yield


@contextmanager
def one_ledger():
    """All groups lease the same batches."""
    right = LeaseLedgers.of
    with patch.object(LeaseLedgers, "of", lambda self, group: right(self, "")):
        yield
