"""The seconds of codecs in simulated time."""

import numpy as np
import pytest

from shoal.collective.base import AllGather
from shoal.keys import KeyRange
from shoal.protocol.machine import Received
from shoal.protocol.messages.base import Part
from shoal.protocol.messages.requests import EncodedRequest, Request
from shoal.protocol.requests import Exchange, PullOp, PushOp, Start
from shoal.simulation.codec_times import CodecTime, CodecTimes
from shoal.tables.consistency import bsp
from shoal.tables.spec import Span, TableSpec
from tests.strategies.problems import around, train

INT8, FP16 = CodecTime(2.0, 3.0, 1.0), CodecTime(5.0, 7.0, 2.0)
TIMES = {"int:8": INT8, "fp16": FP16}
ROWS = 4000
SPEC = TableSpec("w", ROWS, fragment_rows=1000, codec="int:8", server_codec="fp16")


def spec_of(name):
    assert name == "w"
    return SPEC


def push(rows=SPEC.keys, keys=None):
    return PushOp("w", rows, memoryview(bytes(4 * len(rows))), keys)


def pull(rows=SPEC.keys, **more):
    return PullOp("w", rows, memoryview(bytearray(4 * len(rows))), **more)


def test_a_worker_encodes_before_a_request_and_decodes_after_it():
    times = CodecTimes(TIMES, 2)
    both = Exchange((push(), push(KeyRange(0, 1000))), pulls=(pull(KeyRange(1000, 3000)),))
    assert times.before(both, spec_of) == 2.0 * 5000
    assert times.before(Start(both), spec_of) == 2.0 * 5000
    assert times.after(both, spec_of) == 7.0 * 2000
    assert times.before(Exchange((push(),), assign=True), spec_of) == 0
    assert times.before(Exchange((push(keys=memoryview(b"")),)), spec_of) == 0
    assert times.after(Exchange(pulls=(pull(exact=True),)), spec_of) == 0
    assert times.before(object(), spec_of) == 0


def test_layers_without_a_codec_take_no_time():
    spans = Span(0, "a", "exact"), Span(1000, "b")
    table = TableSpec("w", ROWS, fragment_rows=1000, codec="int:8", spans=spans)
    assert CodecTimes(TIMES, 2).of_table(table).encode_s == 2.0 * 3 / 4
    assert CodecTimes(TIMES, 2).of_table(table, True) == CodecTime()
    assert CodecTimes({}, 2).of_table(table).encode_s == 0


def test_workers_decode_what_the_others_have_gathered():
    times = CodecTimes({"int:8": INT8}, 4)
    gather = AllGather(np.zeros(100, np.uint8))
    assert times.before(gather, spec_of) == 2.0 * 100
    assert times.after(gather, spec_of) == 3.0 * 100 * 3
    several = CodecTimes(TIMES, 4)
    assert several.before(gather, spec_of) == (2.0 + 5.0 / 2) / 2 * 100


@pytest.mark.parametrize(("server_codec", "pulled"), [("fp16", 5.0), ("delta:fp16", 5.0 + 7.0)])
def test_a_server_decodes_pushes_and_encodes_rows_once_for_all(server_codec, pulled):
    how = {"fragment_rows": 1000, "codec": "int:8", "server_codec": server_codec}
    table = TableSpec("w", ROWS, consistency=bsp(), **how)
    parts = (Part(0, 0, 4000),)
    times = CodecTimes(TIMES, 2)
    request = EncodedRequest((1, 1), 1, 1, 0, 0, parts, -1, parts, sizes=((9,),), pulled=((9,),))
    assert times.of_event(Received("worker-0", request, None), [table]) == (3.0 + pulled / 2) * 4000
    plain = Request((1, 1), 1, 1, 0, 0, parts, -1, parts)
    assert times.of_event(Received("worker-0", plain, None), [table]) == 0


def test_codecs_take_the_time_of_a_run():
    def ended(times):
        workers = train(
            "sync",
            around(2, 6),
            lambda x, batch: (x * x).sum() + batch.sum(),
            size=2000,
            codec_times=times,
            codec="int:8",
            server_codec="int:8",
        )
        return max(worker.ended_s for worker in workers), [r.loss for r in workers[0].results]

    slow, losses = ended(CodecTimes({"int:8": CodecTime(1e-6, 1e-6, 1.0)}, 2))
    fast, same = ended(None)
    assert slow > fast + 6 * 2000 * 2e-6
    assert losses == same
