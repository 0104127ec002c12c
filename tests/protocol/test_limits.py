"""Fields beyond their limits are refused when they are decoded, before memory is taken for them."""

import math
import time

import msgspec
import pytest

from shoal.errors import BadMessage
from shoal.protocol.limits import LISTED_MAX, NUMBER_MAX, PARTS_MAX, WINDOW
from shoal.transport.wire import HEADER_MAX, decode


def header(*fields):
    return msgspec.msgpack.encode(fields)


def request(**changed):
    fields = {
        "view": [1, 1], "incarnation": 1, "seq": 0, "forget_below": 0, "clock": 0, "pushes": [],
        "advance": -1, "pulls": [], "weight": 1.0, "rates": [], "assign": False, "follows": [],
        "updates": 0,
    }  # fmt: skip
    assert decode(header("Request", *fields.values()))
    return header("Request", *{**fields, **changed}.values())


@pytest.mark.parametrize(
    "data",
    [
        request(view=[-1, 0]),
        request(view=[0, 1 << 63]),
        request(incarnation=-1),
        request(seq=NUMBER_MAX + 1),
        request(clock=-1),
        request(advance=-2),
        request(advance=NUMBER_MAX + 1),
        request(pushes=[[-1, 0, 4]]),
        request(pushes=[[0, -1, 4]]),
        request(pushes=[[0, 0, 1 << 63]]),
        request(pushes=[[0, 0, 4, -3]]),
        request(pushes=[[0, 0, 4, 1 << 62]]),
        request(pushes=[[0, 0, 4, -1, 17]]),
        request(rates=[math.inf]),
        request(updates=-1),
        request(pulls=[[0, 0, 0]] * (PARTS_MAX + 1)),
        request(follows=[0] * (WINDOW + 1)),
        header("Replicate", [1, 1], -1, [], 0),
        header("Replicate", [1, 1], 0, [1 << 16], 0),
        header("Replicate", [1, 1], 0, [], 0, "push", [], [], [math.nan]),
        header("Replicate", [1, 1], 0, [], 0, "push", [], [], [], [], -1, math.inf),
        header("WaitTimes", 1, [[1, math.nan]]),
        header("WaitTimes", 1, [[1, -1.0]]),
        header("Lease", 1, 0, 0, 1),
        header("Lease", 1, 0, 1, 0),
        header("MissingPieces", 1, 0, list(range(LISTED_MAX + 1))),
        header("OpenShards", [1, 1], [1, 1], [[["t", 4], [[0, 1 << 63]]]]),
        header("Join", "n", "worker", "", "", 1 << 40),
        header("BarrierArrival", 1, "x" * 2000, 0, ["workers"]),
    ],
    ids=lambda data: str(data[:60]),
)
def test_fields_beyond_their_limits(data):
    with pytest.raises(BadMessage, match="Expected"):
        decode(data)


def test_a_tuple_that_is_too_long_is_refused_by_its_length():
    data = header("Replicate", [1, 1], 0, [], 0, "push", [], [0] * (HEADER_MAX - 100))
    began = time.perf_counter()
    with pytest.raises(BadMessage, match="length"):
        decode(data)
    assert time.perf_counter() - began < 0.05
