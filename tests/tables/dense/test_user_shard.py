"""Dense tables whose access method is a user's, and raises."""

import pytest
import torch

from shoal.errors import AccessFailed
from shoal.keys import KeyRange
from shoal.tables.access import AccessMethod
from shoal.tables.dense.methods import access_methods
from shoal.tables.dense.shard import DenseShard
from shoal.tables.dense.user_shard import UserShard
from shoal.tables.opening import open_shard
from shoal.tables.own_methods import access_method
from shoal.tables.spec import Access
from tests.tables.dense.pushes import one, send, send_round, some, table

ROWS = KeyRange(0, 10)


class Failing(AccessMethod):
    """Adds, and then raises where it has counted to `fails_at`."""

    fails_at = -1
    calls = prepared_calls = 0

    def state(self):
        return {"total": 0.0}

    def apply(self, rows, slots, update, step, lr=None):
        rows += update
        slots["total"] += update
        type(self).calls += 1
        if self.calls == self.fails_at:
            raise ValueError("it burst")

    def prepared(self, rows, slots, update):
        type(self).prepared_calls += 1
        return super().prepared(rows, slots, update)


@pytest.fixture
def shard():
    access_method("t.failing")(Failing)
    shard = open_shard(table(10, 4, Access("t.failing"), spans=(0, 3)), ROWS)
    send(shard, "apply", one(KeyRange(0, 3), 1.0))  # the counts of the first fragment differ
    send(shard, "apply", one(ROWS, 1.0))
    Failing.calls, Failing.fails_at = 0, 3
    yield shard
    Failing.fails_at = -1
    del access_methods._known["t.failing"]


def state_of(shard):
    tensors = {"rows": shard.rows, **shard.slots}
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    return copies, shard.updates, [*shard.versions]


def assert_same(one, other):
    assert one[1:] == other[1:]
    assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])


def rounds(shard, push):
    send_round(shard, [push, push])


@pytest.mark.parametrize("keys", [None, [1, 5, 9]])
@pytest.mark.parametrize("how", ["apply", "merge", "round"])
def test_a_push_that_fails_half_way_leaves_the_shard_as_it_was(shard, how, keys):
    push = one(ROWS, 1.0) if keys is None else some(ROWS, keys, 1.0)
    before = state_of(shard)
    with pytest.raises(AccessFailed, match=r"^apply of .* 't.failing' raised ValueError: it burst"):
        rounds(shard, push) if how == "round" else send(shard, how, push)
    assert_same(state_of(shard), before)
    send(shard, "apply", push)
    assert state_of(shard)[1] != before[1]


def test_only_users_methods_have_such_shards(shard):
    assert type(shard) is UserShard
    assert not shard.streams
    assert [type(each) for each in shard.split([KeyRange(0, 4), KeyRange(4, 10)])] == [
        UserShard
    ] * 2
    assert type(open_shard(table(10, 4, Access("sgd")), ROWS)) is DenseShard


def test_a_users_prepared_update_is_used(shard):
    assert Failing.prepared_calls > 0


def test_no_update_is_read_in_memory_that_its_method_cannot_write_to():
    """A method that tries ends its process, where the memory is a mapping for reading."""
    spec = table(access="sum")
    assert DenseShard(spec, spec.keys).reads_lent
    assert not UserShard(spec, spec.keys).reads_lent
    assert not UserShard(spec, spec.keys).split([spec.keys])[0].reads_lent
