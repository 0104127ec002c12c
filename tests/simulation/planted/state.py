"""Bugs of whole states, assigned and read."""

from contextlib import contextmanager
from unittest.mock import patch

from msgspec.structs import replace

from shoal.protocol.server.chains.operations import Operation
from shoal.protocol.worker import rerouting as rerouting_module
from shoal.tables.dense.shard import DenseShard


@contextmanager
def updates_stay_at_the_head():
    """The servers after the head are not told how many updates assigned rows have had."""
    right = Operation.message

    def message(self, *args):
        return replace(right(self, *args), updates=0)

    with patch.object(Operation, "message", message):
        yield


@contextmanager
def states_are_written_as_rows():
    """Servers write the rows of a state, and not the slots."""

    def write_state(self, staged, updates):
        staged.values, staged.slots = staged.states()[0], 0
        self.write(staged)

    with patch.object(DenseShard, "write_state", write_state):
        yield


@contextmanager
def slots_are_lost_on_the_way():
    """A request that is sent to other servers than before goes without its slots."""
    right = rerouting_module._asked

    def asked(*args):
        return tuple([replace(op, slots=()) for op in ops] for ops in right(*args))

    with patch.object(rerouting_module, "_asked", asked):
        yield


@contextmanager
def the_first_fragment_counts_for_all():
    """A pull of a state is told the number of updates of its first fragment."""
    right = DenseShard.most_updates

    def most_updates(self, rows):
        [(_, first), *_] = self._touched(rows)
        return right(self, first)

    with patch.object(DenseShard, "most_updates", most_updates):
        yield


@contextmanager
def states_are_read_from_the_first_row():
    """A pull of some rows' state brings the slots of the shard's first rows."""
    right = DenseShard.read_state

    def read_state(self, rows):
        first = type(rows)(self.held.start, self.held.start + len(rows))
        return [right(self, rows)[0], *right(self, first)[1:]]

    with patch.object(DenseShard, "read_state", read_state):
        yield
