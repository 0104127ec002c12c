"""Custom tables: calls as words, and a server's part."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import AccessFailed, InvalidValue, UnknownName
from shoal.keys import SLOTS, KeyRange, slot_of
from shoal.tables.consistency import bsp
from shoal.tables.custom.calls import HEAD, Call, Pairs, answer_of, elements, read_answer
from shoal.tables.custom.shard import CustomShard, handler, made
from shoal.tables.opening import checked
from shoal.tables.spec import Access, TableSpec

SPEC = TableSpec("kv", kind="custom", access=Access("lists"))
EVERYTHING = KeyRange(0, SLOTS)


def call(number, what, keys=(), values=(), lens=None, cmd=0, settled=0, client=1):
    flat = np.asarray(values, np.float32)
    if lens is None:
        lens = [len(flat) // max(1, len(keys))] * len(keys)
    lens = np.array(lens if what == "push" else [], np.int64)
    keys = np.array(keys, np.uint64)
    return Call(client, number, settled, what, cmd, keys, lens, flat.view(np.uint8).data)


def asked(shard, *arguments, **options):
    words = call(*arguments, **options).words()
    staged = shard.stage_keys(EVERYTHING, len(words))
    staged.words[:] = words
    lens, values = read_answer(shard.read_keys(staged))
    return lens.tolist(), np.frombuffer(values, np.float32).tolist()


lists = st.dictionaries(
    st.integers(0, (1 << 64) - 1), st.lists(st.integers(-9, 9), max_size=4), max_size=6
)


@given(lists, st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_call_decodes_to_what_was_encoded(rows, cmd):
    keys = sorted(rows)
    pairs = Pairs.of(np.array(keys, np.uint64), [np.array(rows[k]) for k in keys], "float32")
    values = pairs.values.view(np.uint8).data
    read = Call.read(Call(7, 8, 6, "push", cmd, pairs.keys, pairs.lens, values).words())
    assert (read.client, read.number, read.forget_below, read.what, read.cmd) == (
        7,
        8,
        6,
        "push",
        cmd,
    )
    again = Pairs(read.keys, np.frombuffer(read.values, np.float32), read.lens)
    assert {key: values.tolist() for key, values in again} == rows
    back = read_answer(memoryview(answer_of(pairs.lens, values)))
    assert back[0].tolist() == pairs.lens.tolist()
    assert back[1] == values


@given(lists, st.randoms())
def test_chosen_pairs_are_those_at_the_given_positions(rows, random):
    keys = sorted(rows)
    pairs = Pairs.of(np.array(keys, np.uint64), [np.array(rows[k]) for k in keys], "float32")
    which = np.array(sorted(random.sample(range(len(keys)), len(keys) // 2)), np.int64)
    found = {key: values.tolist() for key, values in pairs.chosen(which)}
    assert found == {keys[at]: rows[keys[at]] for at in which.tolist()}
    assert len(elements(pairs.lens, which)) == sum(map(len, found.values()))


@given(st.data())
def test_mutated_calls_are_refused_or_answered(data):
    words = call(1, "push", [3, 8], [1, 2, 3], [2, 1]).words()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(words) - 1))
        words[at] = data.draw(st.sampled_from([0, 1, 2, 3, 12, 1 << 40, (1 << 64) - 1]))
    words = words[: data.draw(st.integers(0, len(words)))]
    shard = CustomShard(SPEC, EVERYTHING)
    staged = shard.stage_keys(EVERYTHING, len(words))
    staged.words[:] = words
    try:
        read_answer(shard.read_keys(staged))
    except AccessFailed:
        assert not shard.handler.rows


def test_the_lists_handler_adds_replaces_and_pulls_values():
    shard = CustomShard(SPEC, EVERYTHING)
    asked(shard, 1, "push", [3, 8], [1, 2, 5], [2, 1])
    asked(shard, 2, "push", [3], [10, 20])
    assert asked(shard, 3, "pull", [3, 5, 8]) == ([2, 0, 1], [11, 22, 5])
    asked(shard, 4, "push", [3], [7], cmd=1)
    assert asked(shard, 5, "pull", [3]) == ([1], [7])
    assert len(shard) == 2
    with pytest.raises(AccessFailed, match="key 3 has 1 values and the push has 2"):
        asked(shard, 6, "push", [2, 3], [1, 1, 2], [1, 2])
    assert asked(shard, 7, "pull", [2, 3]) == ([0, 1], [7])  # nothing of it was done
    with pytest.raises(AccessFailed, match="lists' failed in request: TypeError: it has no req"):
        asked(shard, 8, "request")


def test_a_repeated_call_is_applied_once():
    shard = CustomShard(SPEC, EVERYTHING)
    for _ in range(3):
        asked(shard, 1, "push", [3], [1])
    asked(shard, 1, "push", [3], [1], client=2)
    assert asked(shard, 2, "pull", [3]) == ([1], [2])
    asked(shard, 3, "push", [3], [1], settled=3)
    assert asked(shard, 2, "pull", [3]) == ([], [])  # late: nobody waits for it
    asked(shard, 1, "push", [3], [1])
    assert asked(shard, 4, "pull", [3]) == ([1], [3])
    assert len(shard._answered[1].answers) == 2


def test_a_failed_call_is_not_repeated_and_departed_workers_are_forgotten():
    calls = []

    class Failing:
        rows = 3

        def push(self, pairs, cmd):
            calls.append(cmd)
            raise ValueError(len(calls))

        def pull(self, keys, cmd):
            return [np.zeros((2, 3))]

    handler("failing", Failing)
    shard = CustomShard(TableSpec("t", kind="custom", access=Access("failing")), EVERYTHING)
    assert len(shard) == 0  # its rows are none
    for _ in range(2):
        with pytest.raises(AccessFailed, match="ValueError: 1"):
            asked(shard, 1, "push", [5], [1])
    assert calls == [0]
    with pytest.raises(AccessFailed, match="one-dimensional"):
        asked(shard, 2, "pull", [5])
    shard.keep({2, 3})
    assert not shard._answered
    with pytest.raises(InvalidValue, match="numpy arrays, which have no bfloat16"):
        checked(TableSpec("t", kind="custom", dtype="bfloat16", access=Access("lists")))


class Picky:
    def __init__(self, least=0):
        self.least = least

    def push(self, pairs, cmd):
        raise OSError("no disk")

    def pull(self, keys, cmd):
        return [[1.0]]

    def request(self, head, body):
        return body[::-1] if head else "text"


def test_a_users_handler_is_called_and_its_errors_are_named():
    handler("picky", Picky)
    spec = TableSpec("own", kind="custom", access=Access("picky", {"least": 3}))
    checked(spec)
    shard = CustomShard(spec, EVERYTHING)
    assert shard.handler.least == 3
    assert asked(shard, 1, "pull", [5]) == ([1], [1])
    with pytest.raises(AccessFailed, match="'picky' failed in push: OSError: no disk"):
        asked(shard, 2, "push", [5], [1])
    with pytest.raises(AccessFailed, match=r"pull\(\) returned 1 rows of 2 keys"):
        asked(shard, 3, "pull", [5, 6])
    with pytest.raises(AccessFailed, match="failed in request: TypeError"):
        asked(shard, 4, "request")
    words = Call(1, 5, 0, "request", 1, values=memoryview(b"abc")).words()
    staged = shard.stage_keys(EVERYTHING, len(words))
    staged.words[:] = words
    assert bytes(read_answer(shard.read_keys(staged))[1]) == b"cba"
    assert shard.state()["keys"].numel() == 0  # it does not save


def test_an_impossible_custom_table_is_refused():
    with pytest.raises(UnknownName, match=r"unknown handler 'list'.*did you mean 'lists'"):
        made(TableSpec("t", kind="custom", access=Access("list")))
    with pytest.raises(InvalidValue, match=r"handler 'lists' cannot be created: TypeError.*size"):
        checked(TableSpec("t", kind="custom", access=Access("lists", {"size": 1})))
    for options in ({"row_shape": (3,)}, {"consistency": bsp()}, {"rows": 3}, {"max_rows": 3}):
        with pytest.raises(InvalidValue, match="table 't'"):
            TableSpec("t", kind="custom", access=Access("lists"), **options)
    shard = CustomShard(SPEC, EVERYTHING)
    assert "handler" in shard.stage(EVERYTHING, 3).problem()


def test_a_saved_custom_shard_is_restored_on_other_servers():
    shard = CustomShard(SPEC, EVERYTHING)
    keys = list(range(100))
    asked(shard, 1, "push", keys, range(200))
    halves = [KeyRange(0, SLOTS // 2), KeyRange(SLOTS // 2, SLOTS)]
    found = {}
    for held in halves:
        other = CustomShard(SPEC, held)
        other.restore(EVERYTHING, shard.state(), True)
        assert all(slot_of(key) in held for key in other.handler.rows)
        found |= {key: row.tolist() for key, row in other.handler.rows.items()}
    assert found == {key: [2 * key, 2 * key + 1] for key in keys}
    assert HEAD == 7


def test_a_snapshot_carries_rows_answers_and_errors_to_a_replica():
    one, other = CustomShard(SPEC, EVERYTHING), CustomShard(SPEC, EVERYTHING)
    asked(one, 1, "push", [3, 9], [1.0, 2.0])
    with pytest.raises(AccessFailed) as failed:
        asked(one, 2, "push", [3], [1.0, 2.0])
    assert asked(one, 3, "pull", [3, 9]) == ([1, 1], [1.0, 2.0])
    asked(other, 1, "push", [4], [7.0], client=5)  # what it had before is of no use
    piece = one.snapshot(0, 10)
    assert (piece.rows, piece.last) == (EVERYTHING, True)
    staged = other.stage_snapshot(piece.rows, piece.keys)
    staged.views[0][:] = piece.views[0]
    other.install(staged)
    assert asked(other, 3, "pull", [3, 9]) == ([1, 1], [1.0, 2.0])
    assert asked(other, 1, "push", [3, 9], [1.0, 2.0]) == ([], [])  # is not done again
    with pytest.raises(AccessFailed, match="has 1 values and the push has 2") as again:
        asked(other, 2, "push", [3], [1.0, 2.0])
    assert again.value.message == failed.value.message
    assert asked(other, 4, "pull", [3, 4, 9]) == ([1, 0, 1], [1.0, 2.0])


class Doubles:
    """Adds in another dtype than its table's, and counts under a key that is nobody's."""

    def __init__(self):
        self.rows, self.requests = {}, 0

    def push(self, pairs, cmd):
        for key, values in pairs:
            self.rows[key] = self.rows.get(key, 0) + values.astype(np.float64)

    def pull(self, keys, cmd):
        return [self.rows[key] for key in keys.tolist()]

    def request(self, head, body):
        self.requests += 1
        return b"done"

    def save(self):
        keys = np.array([0, *sorted(self.rows)], np.uint64)
        return Pairs.of(keys, [[self.requests], *(self.rows[k] for k in sorted(self.rows))], "f8")

    def load(self, pairs):
        self.rows = dict(iter(pairs))
        self.requests = int(self.rows.pop(0)[0])


def synced_version(one):
    other = CustomShard(one.spec, one.held)
    piece = one.snapshot(0, 10)
    staged = other.stage_snapshot(piece.rows, piece.keys)
    staged.views[0][:] = piece.views[0]
    other.install(staged)
    return other


def test_a_snapshot_carries_saved_pairs_of_any_dtype_and_key():
    handler("doubles", Doubles)
    slots = KeyRange(slot_of(9), slot_of(9) + 1)
    one = CustomShard(TableSpec("d", kind="custom", access=Access("doubles")), slots)
    asked(one, 1, "push", [9], [1.5])
    asked(one, 2, "request")
    other = synced_version(one)
    assert other.handler.rows[9].tolist() == [1.5]
    assert other.handler.requests == 1


class Broken(Doubles):
    def save(self):
        raise OSError("the disk of its own is full")


class Wrong(Doubles):
    def save(self):
        return self.rows


def test_a_handler_that_saves_no_pairs_is_refused():
    handler("wrong", Wrong)
    shard = CustomShard(TableSpec("d", kind="custom", access=Access("wrong")), EVERYTHING)
    with pytest.raises(AccessFailed, match="'wrong' failed in save: AttributeError"):
        shard.snapshot(0, 10)


def test_a_handler_that_fails_to_save_is_named():
    handler("broken", Broken)
    shard = CustomShard(TableSpec("d", kind="custom", access=Access("broken")), EVERYTHING)
    with pytest.raises(AccessFailed, match="'broken' failed in save: OSError: the disk"):
        shard.snapshot(0, 10)


class Forgetful:
    def push(self, pairs, cmd):
        pass


class Alone(Doubles):
    replicated = False


def test_a_handler_without_save_or_replication_is_not_marked_as_saving():
    assert checked(SPEC).saves
    for name, factory in (("forgetful", Forgetful), ("alone", Alone)):
        handler(name, factory)
        assert not checked(TableSpec("kv", kind="custom", access=Access(name))).saves


def test_a_snapshot_that_is_none_is_a_failure_of_the_handler():
    shard = CustomShard(TableSpec("t", kind="custom", access=Access("lists")), KeyRange(0, 4096))
    for words in (0, 1, 3):
        staged = shard.stage_snapshot(shard.held, words)
        staged.words[:] = (1 << 64) - 1
        with pytest.raises(AccessFailed, match="failed in load"):
            shard.install(staged)
