"""Consistency rules: what they say, and which are refused."""

import msgspec
import pytest

from shoal.errors import InvalidValue
from shoal.tables.consistency import Consistency, Cover, Quorum, asp, bsp, ssp


@pytest.mark.parametrize(
    "rule",
    [
        asp(),
        bsp(),
        ssp(2),
        bsp(Quorum(3, grace_s=0.5)),
        ssp(1, "round_end", Cover(((0, 1), (2,)))),
    ],
)
def test_a_rule_travels(rule):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(rule), type=Consistency) == rule
    assert msgspec.json.decode(msgspec.json.encode(rule), type=Consistency) == rule


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Quorum(0), "a quorum has 1 to 65536 workers, not 0"),
        (lambda: Quorum("3"), "not '3'"),
        (lambda: Quorum(1, -0.1), "grace window of a quorum has 0 to 86400 s, not -0.1"),
        (lambda: Quorum(1, float("nan")), "not nan"),
        (lambda: Quorum(1, float("inf")), "not inf"),
        (lambda: Cover(()), "groups of one worker or more"),
        (lambda: Cover(((0,), ())), "groups of one worker or more"),
        (lambda: Cover(((0, 1), (1, 2))), "different ranks >= 0"),
        (lambda: Cover(((0, -1),)), "different ranks >= 0"),
        (lambda: ssp(2, closes=Quorum(1)), "closes is a rule of rounds"),
        (lambda: Consistency(closes=Quorum(1)), "closes is a rule of rounds"),
        (lambda: Consistency("bsp", apply_at="arrival"), "bsp applies pushes at the end"),
        (lambda: Consistency("ssp", -1), "staleness is a number of clocks >= 0, not -1"),
    ],
)
def test_an_impossible_rule_is_refused(build, message):
    with pytest.raises(InvalidValue, match=message):
        build()
