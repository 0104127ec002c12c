"""What a worker believes of the lists of keys that servers have."""

import numpy as np

from shoal.protocol.messages.base import SAME, KeyList, Part
from shoal.protocol.worker import known_lists
from shoal.protocol.worker.known_lists import KnownLists
from shoal.protocol.worker.server_part import ServerPart

A, B = b"a" * 16, b"b" * 16
KEYS, VALUES, MORE = (memoryview(bytes(size)) for size in (16, 8, 24))


def part(server="s", lists=(A, B)):
    pushes, pulls = (Part(0, 0, 9, 2),), (Part(1, 0, 9, 3),)
    return ServerPart(server, pushes, pulls, (KEYS, VALUES, MORE), [], 48, 0, lists=lists)


def test_a_list_is_told_until_a_server_has_admitted_it():
    known, theirs = KnownLists(), part()
    for _ in range(2):
        assert known.lists(theirs) == (KeyList(A, 16), KeyList(B, 24))
        assert known.told(theirs) == (KEYS, VALUES, MORE)
    known.learn(theirs)
    assert known.lists(theirs) == (KeyList(A, 0), KeyList(B, 0))
    assert known.told(theirs) == (VALUES,)
    assert known.told(part("t")) == (KEYS, VALUES, MORE)  # another server
    assert known.told(part(lists=(A, b""))) == (VALUES, MORE)  # a list that nobody keeps


def test_what_a_server_lacks_is_told_again():
    known, theirs = KnownLists(), part()
    known.learn(theirs)
    known.forget(theirs)
    assert known.told(theirs) == (KEYS, VALUES, MORE)
    known.learn(theirs)
    assert known.told(theirs) == (VALUES,)


def test_a_list_that_a_server_drops_again_and_again_is_always_told():
    known, theirs = KnownLists(), part()
    for _ in range(known_lists.LACKED_MAX):
        known.learn(theirs)
        known.forget(theirs)
    known.learn(theirs)
    assert known.told(theirs) == (KEYS, VALUES, MORE)
    assert known.lists(theirs) == (KeyList(b"", 16), KeyList(b"", 24))  # and it need not keep them
    other = part(lists=(b"c" * 16, b"d" * 16))
    known.learn(other)
    assert known.told(other) == (VALUES,)


def test_a_list_that_a_server_has_is_no_worse_for_the_losses_before():
    known, theirs = KnownLists(), part()
    for _ in range(3 * known_lists.LACKED_MAX):
        known.learn(theirs)
        known.forget(theirs)
        known.learn(theirs)  # as it was told
        known.learn(theirs)  # as it was named
    assert known.told(theirs) == (VALUES,)


def test_what_is_known_is_bounded(monkeypatch):
    monkeypatch.setattr(known_lists, "LISTS_MAX", 3)
    known = KnownLists()
    digests = [bytes([number]) * 16 for number in range(5)]
    for each in digests:
        known.learn(part(lists=(each, b"")))
    told = [len(known.told(part(lists=(each, b"")))) for each in digests]
    assert told == [3, 3, 2, 2, 2]
    for each in digests:
        known.forget(part(lists=(each, b"")))
    assert len(known._lacked) <= 4


def test_a_part_without_its_push_keeps_the_lists_of_its_pulls():
    same, own = Part(0, 0, 9, SAME), Part(1, 0, 9, 3)
    pushes = (Part(0, 0, 9, 2), Part(2, 0, 4))
    buffers = (KEYS, VALUES, memoryview(bytes(4)), MORE)
    theirs = ServerPart("s", pushes, (same, own), buffers, [], 52, 0, lists=(A, B))
    assert theirs.key_buffers() == [0, 3]
    pulls = theirs.without_push()
    assert pulls.lists == (A, B)
    assert pulls.buffers == (KEYS, MORE)
    assert [each.keys for each in pulls.pulls] == [2, 3]
    assert pulls.key_buffers() == [0, 1]
    assert np.array([each.nbytes for each in pulls.buffers]).tolist() == [16, 24]
    assert theirs.__class__("s", pushes, (same,), buffers[:3], [], 9, 0).without_push().lists == ()
