"""The codecs of a job, and the seconds that they take here."""

import pytest

from shoal.apps.codec_times import codecs_of, measured_times, times_of
from shoal.codecs import codec_of
from shoal.runs.job import JobSpec
from shoal.simulation.codec_times import CodecTime


@pytest.mark.parametrize(
    ("codec", "server_codec", "names"),
    [
        ("", "", []),
        ("none", "none", []),
        ("int:8", "delta:qsgd:4", ["int:8", "qsgd:4"]),
        ("int:8", "int:bits=8", ["int:8"]),
        ({"*.bias": "none", "0": "exact", "*": "topk:0.1+int:8"}, "", ["topk:0.1+int:8"]),
        ("powersgd:2", "", []),
    ],
)
def test_the_codecs_of_a_job(codec, server_codec, names):
    assert [
        str(each) for each in codecs_of(JobSpec(codec=codec, server_codec=server_codec))
    ] == names


def test_times_are_measured_for_a_value():
    found = measured_times([codec_of("int:8"), codec_of("onebit"), codec_of("zlib:1")])
    assert set(found) == {"int:8", "onebit", "zlib:1"}
    assert all(time.encode_s > 0 and time.decode_s > 0 for time in found.values())
    assert found["int:8"].nbytes == pytest.approx(1.0, abs=0.02)
    assert found["onebit"].nbytes < 0.15


def test_a_run_counts_its_own_codecs():
    times = {name: CodecTime(1.0, 1.0, 1.0) for name in ("int:8", "qsgd:4")}
    assert times_of(JobSpec(codec="int:8"), times) == {"int:8": times["int:8"]}
    assert times_of(JobSpec(codec="onebit"), times) == {}
